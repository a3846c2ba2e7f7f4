// out_i <- z_t - max z - log(sum over j of e^(z_j - max z)) for each row z of logits, t the row's target. A workgroup a row.
// words: logits stride rows cols targets out
extern "C" __global__ void __launch_bounds__(THREADS) log_probability(float* arena, const u32* table) {
    __shared__ float parts[32];
    u32 row = group_index();
    const u32* item = find_item(table, row);
    if (!item) return;
    u32 cols = item[3];
    const float* z = arena + item[0] + (size_t)row * item[1];
    float top = -3.4028234e38f, sum = 0.0f;
#pragma unroll 8
    for (u32 i = threadIdx.x; i < cols; i += THREADS) top = fmaxf(top, z[i]);
    top = group_max(top, parts);
#pragma unroll 8
    for (u32 i = threadIdx.x; i < cols; i += THREADS) sum += expf(z[i] - top);
    sum = group_sum(sum, parts);
    if (threadIdx.x == 0) arena[item[5] + row] = z[(u32)arena[item[4] + row]] - top - logf(sum);
}
