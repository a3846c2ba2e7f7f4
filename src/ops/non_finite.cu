// out_i <- the first column of row i that holds NaN or an infinity, else cols; a warp a row, ROWS rows a workgroup.
// words: a a_stride rows cols out
extern "C" __global__ void __launch_bounds__(THREADS) non_finite(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 lane = threadIdx.x % 32, rows = item[2], cols = item[3];
    for (u32 row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        u32 i = group * ROWS + row;
        if (i >= rows) return;
        const float* a = arena + item[0] + (size_t)i * item[1];
        u32 first = cols;
#pragma unroll 4
        for (u32 k = lane; k < cols; k += 32)
            if (!isfinite(a[k])) first = min(first, k);
#pragma unroll
        for (int width = 16; width > 0; width /= 2) first = min(first, __shfl_xor_sync(~0u, first, width));
        if (lane == 0) arena[item[4] + i] = (float)first;
    }
}
