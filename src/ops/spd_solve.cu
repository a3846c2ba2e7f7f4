// x = D L^-T L^-1 D b for a factor of D A D, by panels of PANEL rows; one workgroup.
// words: a a_stride n inverse d b x work status; inverse: L's diagonal blocks inverted, PANEL x PANEL, one after another
//
// Forward a panel's rows are multiplied with what is known, a warp a row; backward a panel that is known is taken off
// everything above it, threads along the columns. So rows of L are read along their length both ways.

// to <- B v or B' v for a diagonal block's inverse B, of `width` rows that count. A barrier before and after.
template <bool TRANSPOSED>
__device__ __forceinline__ void multiply_block(const float* block, const float* v, float* to, u32 width) {
    u32 lane = threadIdx.x % 32;
    __syncthreads();
    if (TRANSPOSED) {
        // A thread a column, the block's rows in turn.
        if (threadIdx.x < width) {
            float sum = 0.0f;
#pragma unroll 16
            for (u32 i = 0; i < PANEL; ++i) sum += i < width ? block[i * PANEL + threadIdx.x] * v[i] : 0.0f;
            to[threadIdx.x] = sum;
        }
    } else {
        for (u32 i = threadIdx.x / 32; i < width; i += THREADS / 32) {
            float sum = 0.0f;
#pragma unroll
            for (u32 k = 0; k < PANEL; k += 32) sum += k + lane < width ? block[i * PANEL + k + lane] * v[k + lane] : 0.0f;
            sum = warp_sum(sum);
            if (lane == 0) to[i] = sum;
        }
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) spd_solve(float* arena, const u32* table) {
    __shared__ float panel[PANEL];
    __shared__ u32 infinite;
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    const float* a = arena + item[0];
    size_t stride = item[1];
    u32 n = item[2], lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float* inverse = arena + item[3];
    const float* d = arena + item[4];
    float* y = arena + item[7];
    if (arena[item[8]] != 0.0f) return;
    for (u32 i = threadIdx.x; i < n; i += THREADS) y[i] = arena[item[5] + i] * d[i];
    if (threadIdx.x == 0) infinite = 0;
    for (u32 start = 0; start < n; start += PANEL) {
        u32 width = min((u32)PANEL, n - start);
        __syncthreads();
        for (u32 i = warp; i < width; i += THREADS / 32) {
            const float* row = a + (start + i) * stride;
            float sum = 0.0f;
#pragma unroll 16
            for (u32 k = lane; k < start; k += 32) sum += row[k] * y[k];
            sum = warp_sum(sum);
            if (lane == 0) panel[i] = y[start + i] - sum;
        }
        multiply_block<false>(inverse + (size_t)start * PANEL, panel, y + start, width);
    }
    for (u32 start = (n - 1) / PANEL * PANEL;; start -= PANEL) {
        u32 width = min((u32)PANEL, n - start);
        multiply_block<true>(inverse + (size_t)start * PANEL, y + start, panel, width);
        if (threadIdx.x < width) y[start + threadIdx.x] = panel[threadIdx.x];
        for (u32 k = threadIdx.x; k < start; k += THREADS) {
            const float* column = a + start * stride + k;
            float sum = 0.0f;
#pragma unroll 16
            for (u32 i = 0; i < width; ++i) sum += column[i * stride] * panel[i];
            y[k] -= sum;
        }
        if (start == 0) break;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        y[i] *= d[i];
        if (!isfinite(y[i])) infinite = 1;
    }
    __syncthreads();
    if (infinite) {
        if (threadIdx.x == 0) arena[item[8]] = 1.0f;
        return;
    }
    for (u32 i = threadIdx.x; i < n; i += THREADS) arena[item[6] + i] = y[i];
}
