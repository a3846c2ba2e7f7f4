// out_i = log(sum over j of e^z_j) - z_t for each row z of logits, t the row's token, and its gradient in the place of the
// logits: z <- factor (softmax(z) - e_t). A token below 0 is none: out and gradient are 0. A workgroup a row, read twice.
// Barriers: those of the largest and of the sum over the workgroup, and one before the token's own logit is written.
// words: logits stride rows cols tokens out factor
extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy(float* arena, const u32* table) {
    __shared__ float parts[32];
    u32 row = group_index();
    const u32* item = find_item(table, row);
    if (!item) return;
    u32 cols = item[3];
    float* z = arena + item[0] + (size_t)row * item[1];
    float token = arena[item[4] + row], factor = float_of(item[6]);
    if (token < 0.0f) {
        for (u32 k = threadIdx.x; k < cols; k += THREADS) z[k] = 0.0f;
        if (threadIdx.x == 0) arena[item[5] + row] = 0.0f;
        return;
    }
    u32 came = (u32)token;
    float top = -3.0e38f, sum = 0.0f;
#pragma unroll 4
    for (u32 k = threadIdx.x; k < cols; k += THREADS) top = fmaxf(top, z[k]);
    top = group_max(top, parts);
#pragma unroll 4
    for (u32 k = threadIdx.x; k < cols; k += THREADS) sum += expf(z[k] - top);
    float total = top + logf(group_sum(sum, parts));
    if (threadIdx.x == 0) arena[item[5] + row] = total - z[came];
    __syncthreads();
#pragma unroll 4
    for (u32 k = threadIdx.x; k < cols; k += THREADS)
        z[k] = factor * (expf(z[k] - total) - (k == came ? 1.0f : 0.0f));
}
