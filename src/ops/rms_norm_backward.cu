// The gradient of y = s x o w, s = 1 / sqrt(mean(x^2) + epsilon): dx = s w o dy - s^3 / n (sum of dy o w o x) x, or added
// to dx; a warp a row, ROWS rows a workgroup. dx may be dy: a thread reads what it writes, and nothing else after the sum.
// words: x x_stride dy dy_stride dx dx_stride rows cols weight epsilon add
extern "C" __global__ void __launch_bounds__(THREADS) rms_norm_backward(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 lane = threadIdx.x % 32, rows = item[6], cols = item[7];
    const float* weight = arena + item[8];
    for (u32 row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        u32 i = group * ROWS + row;
        if (i >= rows) return;
        const float* x = arena + item[0] + (size_t)i * item[1];
        const float* dy = arena + item[2] + (size_t)i * item[3];
        float* dx = arena + item[4] + (size_t)i * item[5];
        float square = 0.0f, dot = 0.0f;
#pragma unroll 4
        for (u32 k = lane; k < cols; k += 32) {
            square += x[k] * x[k];
            dot += dy[k] * weight[k] * x[k];
        }
        float scale = 1.0f / sqrtf(warp_sum(square) / cols + float_of(item[9]));
        float along = scale * scale * scale * warp_sum(dot) / cols;
#pragma unroll 4
        for (u32 k = lane; k < cols; k += 32) {
            float value = scale * weight[k] * dy[k] - along * x[k];
            dx[k] = item[10] ? dx[k] + value : value;
        }
    }
}
