// z_i = a_i / |a_i|, w_i = a_i |a_i| d_i; a zero row stays zero. A warp a row, ROWS rows a workgroup.
// words: a a_stride rows cols d z z_stride w w_stride; d is NONE for ones
extern "C" __global__ void __launch_bounds__(THREADS) gauge_rows(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 lane = threadIdx.x % 32, rows = item[2], cols = item[3];
    for (u32 row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        u32 i = group * ROWS + row;
        if (i >= rows) return;
        const float* a = arena + item[0] + (size_t)i * item[1];
        float* z = arena + item[5] + (size_t)i * item[6];
        float* w = arena + item[7] + (size_t)i * item[8];
        float sum = 0.0f;
#pragma unroll 4
        for (u32 k = lane; k < cols; k += 32) sum += a[k] * a[k];
        float norm = sqrtf(warp_sum(sum));
        float inverse = norm > 0.0f ? 1.0f / norm : 0.0f;
        float factor = norm * (item[4] == NONE ? 1.0f : arena[item[4] + i]);
#pragma unroll 4
        for (u32 k = lane; k < cols; k += 32) {
            float value = a[k];
            z[k] = value * inverse;
            w[k] = value * factor;
        }
    }
}
