// The squared distance of y from a target, row by row, and its gradient in the place of y: out_i = w_i sum over k of
// (y_ik - target_ik)^2, y <- factor w_i (y - target), w_i = 1 without weights; a warp a row, ROWS rows a workgroup.
// words: y y_stride target target_stride rows cols out factor weights
extern "C" __global__ void __launch_bounds__(THREADS) squared_error(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 lane = threadIdx.x % 32, rows = item[4], cols = item[5];
    float factor = float_of(item[7]);
    for (u32 row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        u32 i = group * ROWS + row;
        if (i >= rows) return;
        float* y = arena + item[0] + (size_t)i * item[1];
        const float* target = arena + item[2] + (size_t)i * item[3];
        float weight = item[8] == NONE ? 1.0f : arena[item[8] + i], sum = 0.0f;
#pragma unroll 4
        for (u32 k = lane; k < cols; k += 32) {
            float apart = y[k] - target[k];
            sum += apart * apart;
            y[k] = factor * weight * apart;
        }
        sum = warp_sum(sum);
        if (lane == 0) arena[item[6] + i] = weight * sum;
    }
}
