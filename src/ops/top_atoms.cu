// For each row the atoms of largest gain that it does not have, the largest first, ties to the smaller number; a
// workgroup a row. A thread owns every THREADS-th atom and keeps its best; only the owner of a chosen one looks again.
// words: scores scores_stride squares support support_stride atoms taken add rows_an_atom

__device__ __forceinline__ float gain_of(const float* s, const float* squares, u32 k, u32 rows) {
    if (rows == 1) return s[k] * s[k] / fmaxf(squares[k], 1.17549435e-38f);
    float a = s[2 * k], b = s[2 * k + 1];
    return sqrtf(a * a + b * b) - 0.25f * (squares[2 * k] + squares[2 * k + 1]);
}

extern "C" __global__ void __launch_bounds__(THREADS) top_atoms(float* arena, const u32* table) {
    __shared__ u32 have[MOST];
    __shared__ float gains[THREADS / 32];
    __shared__ u32 places[THREADS / 32];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    const float* s = arena + item[0] + (size_t)group * item[1];
    const float* squares = arena + item[2];
    u32* support = (u32*)arena + item[3] + (size_t)group * item[4];
    u32 atoms = item[5], taken = item[6], end = taken + item[7], rows = item[8];
    u32 tid = threadIdx.x, lane = tid % 32;
    if (tid < taken) have[tid] = support[tid];
    float best = 0.0f;
    u32 place = NONE;
    bool look = true;
    for (u32 now = taken; now < end; ++now) {
        __syncthreads();
        if (look) {
            best = -3.402823466e+38f;
            place = NONE;
#pragma unroll 4
            for (u32 k = tid; k < atoms; k += THREADS) {
                float gain = gain_of(s, squares, k, rows);
                if (gain > best) {
                    bool known = false;
                    for (u32 j = 0; j < now; ++j) known |= have[j] == k;
                    if (!known) {
                        best = gain;
                        place = k;
                    }
                }
            }
        }
        float top = best;
        u32 where = place;
        for (u32 width = 16; width > 0; width /= 2) {
            float other = __shfl_xor_sync(~0u, top, width);
            u32 there = __shfl_xor_sync(~0u, where, width);
            if (other > top || (other == top && there < where)) {
                top = other;
                where = there;
            }
        }
        if (lane == 0) {
            gains[tid / 32] = top;
            places[tid / 32] = where;
        }
        __syncthreads();
        top = gains[0];
        where = places[0];
        for (u32 w = 1; w < THREADS / 32; ++w) {
            if (gains[w] > top || (gains[w] == top && places[w] < where)) {
                top = gains[w];
                where = places[w];
            }
        }
        look = where == place && where != NONE;
        if (where == NONE) where = 0;
        if (tid == 0) {
            have[now] = where;
            support[now] = where;
        }
    }
}
