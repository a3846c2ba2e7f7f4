// G = D_A D_A^T and h = D_A y for each row y with atoms A; a workgroup a row and a block of BLOCK x BLOCK of G on or below
// the diagonal, whose mirror it writes too. Tiles of BLOCK columns of the decoder's rows lie in shared memory.
// words: y y_stride decoder d_stride support s_stride count rows_an_atom gram g_stride right h_stride r
extern "C" __global__ void __launch_bounds__(THREADS) support_gram(float* arena, const u32* table) {
    constexpr u32 EACH = BLOCK * BLOCK / THREADS;
    __shared__ float left[BLOCK][BLOCK + 1], top[BLOCK][BLOCK + 1], own[BLOCK];
    __shared__ u32 rows[2][BLOCK];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 m = item[7], n = item[6] * m, r = item[12];
    u32 blocks = (n + BLOCK - 1) / BLOCK, triangle = blocks * (blocks + 1) / 2;
    u32 i = group / triangle, block = group % triangle, bi = 0;
    while ((bi + 1) * (bi + 2) / 2 <= block) ++bi;
    u32 bj = block - bi * (bi + 1) / 2, tid = threadIdx.x, x = tid % BLOCK, y = tid / BLOCK;
    const u32* support = (const u32*)arena + item[4] + (size_t)i * item[5];
    if (tid < 2 * BLOCK) {
        u32 a = (tid < BLOCK ? bi : bj) * BLOCK + x;
        rows[tid / BLOCK][x] = a < n ? support[a / m] * m + a % m : NONE;
    }
    const float* decoder = arena + item[2];
    const float* values = arena + item[0] + (size_t)i * item[1];
    float sums[EACH] = {}, right[EACH] = {};
    for (u32 from = 0; from < r; from += BLOCK) {
        __syncthreads();
        u32 col = from + x;
        for (u32 q = 0; q < EACH; ++q) {
            u32 a = y + q * (THREADS / BLOCK);
            bool inside = col < r;
            left[a][x] = inside && rows[0][a] != NONE ? decoder[(size_t)rows[0][a] * item[3] + col] : 0.0f;
            top[a][x] = inside && rows[1][a] != NONE ? decoder[(size_t)rows[1][a] * item[3] + col] : 0.0f;
        }
        if (y == 0) own[x] = col < r ? values[col] : 0.0f;
        __syncthreads();
#pragma unroll
        for (u32 c = 0; c < BLOCK; ++c) {
            float across = top[x][c];
#pragma unroll
            for (u32 q = 0; q < EACH; ++q) sums[q] += left[y + q * (THREADS / BLOCK)][c] * across;
        }
        if (bi == bj) {
#pragma unroll
            for (u32 q = 0; q < EACH; ++q) right[q] += left[y + q * (THREADS / BLOCK)][x] * own[x];
        }
    }
    float* gram = arena + item[8] + (size_t)i * item[9];
    for (u32 q = 0; q < EACH; ++q) {
        u32 a = bi * BLOCK + y + q * (THREADS / BLOCK), b = bj * BLOCK + x;
        if (a < n && b < n) {
            gram[a * n + b] = sums[q];
            if (bi != bj) gram[b * n + a] = sums[q];
        }
        float whole = warp_sum(right[q]);
        if (bi == bj && x == 0 && a < n) arena[item[10] + (size_t)i * item[11] + a] = whole;
    }
}
