// out_j <- out_j + sum over i of x_ij^2: a workgroup has COLUMNS columns, each of its warps every eighth row of them, and the
// first warp adds what they found. One barrier.
// words: x stride rows cols out
extern "C" __global__ void __launch_bounds__(THREADS) column_squares(float* arena, const u32* table) {
    __shared__ float found[THREADS];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 rows = item[2], column = group * COLUMNS + threadIdx.x % COLUMNS;
    bool inside = column < item[3];
    const float* x = arena + item[0] + column;
    float sum = 0.0f;
    if (inside) {
#pragma unroll 8
        for (u32 i = threadIdx.x / COLUMNS; i < rows; i += THREADS / COLUMNS) {
            float value = x[(size_t)i * item[1]];
            sum += value * value;
        }
    }
    found[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= COLUMNS || !inside) return;
    for (u32 k = 1; k < THREADS / COLUMNS; k++) sum += found[threadIdx.x + k * COLUMNS];
    arena[item[4] + column] += sum;
}
