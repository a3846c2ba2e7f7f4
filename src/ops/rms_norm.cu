// y <- x / sqrt(mean(x^2) + epsilon) o weight, row by row; a warp a row, ROWS rows a workgroup.
// words: x x_stride y y_stride rows cols weight epsilon
extern "C" __global__ void __launch_bounds__(THREADS) rms_norm(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 lane = threadIdx.x % 32, rows = item[4], cols = item[5];
    const float* weight = arena + item[6];
    for (u32 row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        u32 i = group * ROWS + row;
        if (i >= rows) return;
        const float* x = arena + item[0] + (size_t)i * item[1];
        float* y = arena + item[2] + (size_t)i * item[3];
        float sum = 0.0f;
#pragma unroll 4
        for (u32 k = lane; k < cols; k += 32) sum += x[k] * x[k];
        float scale = 1.0f / sqrtf(warp_sum(sum) / cols + float_of(item[7]));
#pragma unroll 4
        for (u32 k = lane; k < cols; k += 32) y[k] = x[k] * scale * weight[k];
    }
}
