// Inner products of two matrices of one shape: of their rows, of their columns, and of the whole.
// words: a a_stride b b_stride rows cols out

// out_i = sum over k of A_ik B_ik; a warp a row, ROWS rows a workgroup.
extern "C" __global__ void __launch_bounds__(THREADS) row_dots(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 lane = threadIdx.x % 32, rows = item[4], cols = item[5];
    for (u32 row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        u32 i = group * ROWS + row;
        if (i >= rows) return;
        const float* a = arena + item[0] + (size_t)i * item[1];
        const float* b = arena + item[2] + (size_t)i * item[3];
        float sum = 0.0f;
#pragma unroll 4
        for (u32 k = lane; k < cols; k += 32) sum += a[k] * b[k];
        sum = warp_sum(sum);
        if (lane == 0) arena[item[6] + i] = sum;
    }
}

// out_k = sum over i of A_ik B_ik; COLS columns a workgroup, its other threads share the rows.
extern "C" __global__ void __launch_bounds__(THREADS) col_dots(float* arena, const u32* table) {
    constexpr u32 LANES = THREADS / COLS;
    __shared__ float parts[LANES][COLS];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 x = threadIdx.x % COLS, y = threadIdx.x / COLS, k = group * COLS + x, rows = item[4], cols = item[5];
    float sum = 0.0f;
    if (k < cols) {
        const float* a = arena + item[0] + k;
        const float* b = arena + item[2] + k;
#pragma unroll 8
        for (u32 i = y; i < rows; i += LANES) sum += a[(size_t)i * item[1]] * b[(size_t)i * item[3]];
    }
    parts[y][x] = sum;
    for (u32 width = LANES / 2; width > 0; width /= 2) {
        __syncthreads();
        if (y < width) parts[y][x] += parts[y + width][x];
    }
    if (y == 0 && k < cols) arena[item[6] + k] = parts[0][x];
}

// out_g = part g of PARTS of the sum over all entries, each over consecutive rows.
extern "C" __global__ void __launch_bounds__(THREADS) inner(float* arena, const u32* table) {
    __shared__ float parts[32];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 rows = item[4], cols = item[5], share = (rows + PARTS - 1) / PARTS;
    float sum = 0.0f;
    for (u32 i = group * share; i < min(rows, (group + 1) * share); ++i) {
        const float* a = arena + item[0] + (size_t)i * item[1];
        const float* b = arena + item[2] + (size_t)i * item[3];
#pragma unroll 4
        for (u32 k = threadIdx.x; k < cols; k += THREADS) sum += a[k] * b[k];
    }
    sum = group_sum(sum, parts);
    if (threadIdx.x == 0) arena[item[6] + group] = sum;
}
