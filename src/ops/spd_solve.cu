// x = D L^-T L^-1 D b for a factor of D A D, by panels of PANEL rows; one workgroup.
// words: a a_stride n inverse d b x work status; inverse: L's diagonal blocks inverted, PANEL x PANEL, one after another
//
// Forward a panel's rows are multiplied with what is known, OWN of them a warp; backward a panel that is known is taken
// off everything above it, threads along the columns. So rows of L are read along their length both ways, and the
// blocks' inverses are on their way before they are needed.
constexpr u32 WARPS = THREADS / 32, OWN = PANEL / WARPS, PARTS = THREADS / PANEL;
// Loads of a thread and row of L that are on their way together.
constexpr u32 FLIGHT = 8;

struct Shared {
    float panel[PANEL];
    float parts[PARTS][PANEL];
    u32 infinite;
};

// The panel at `start`: y <- B (y - L y above), B the inverse of its diagonal block.
__device__ __forceinline__ void forward(const float* a, size_t stride, const float* block, float* y, u32 start, u32 width,
                                        Shared& shared) {
    u32 lane = threadIdx.x % 32, first = threadIdx.x / 32 * OWN;
    float inverse[OWN][PANEL / 32], sum[OWN] = {};
    const float* row[OWN];
#pragma unroll
    for (u32 e = 0; e < OWN; ++e) {
        row[e] = a + (start + min(first + e, width - 1)) * stride;
#pragma unroll
        for (u32 k = 0; k < PANEL / 32; ++k) inverse[e][k] = block[(first + e) * PANEL + 32 * k + lane];
    }
    // PANEL divides `start`.
    for (u32 k = lane; k < start; k += FLIGHT * 32) {
        float known[FLIGHT], entry[OWN][FLIGHT];
#pragma unroll
        for (u32 f = 0; f < FLIGHT; ++f) {
            bool there = k + 32 * f < start;
            known[f] = there ? y[k + 32 * f] : 0.0f;
#pragma unroll
            for (u32 e = 0; e < OWN; ++e) entry[e][f] = there ? __ldg(row[e] + k + 32 * f) : 0.0f;
        }
#pragma unroll
        for (u32 f = 0; f < FLIGHT; ++f)
#pragma unroll
            for (u32 e = 0; e < OWN; ++e) sum[e] += entry[e][f] * known[f];
    }
#pragma unroll
    for (u32 e = 0; e < OWN; ++e) {
        sum[e] = warp_sum(sum[e]);
        if (lane == 0) shared.panel[first + e] = first + e < width ? y[start + first + e] - sum[e] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (u32 e = 0; e < OWN; ++e) {
        float value = 0.0f;
#pragma unroll
        for (u32 k = 0; k < PANEL / 32; ++k) value += inverse[e][k] * shared.panel[32 * k + lane];
        value = warp_sum(value);
        if (lane == 0 && first + e < width) y[start + first + e] = value;
    }
    __syncthreads();
}

// The panel at `start`: x <- B' y, and y above less L' x.
__device__ __forceinline__ void backward(const float* a, size_t stride, const float* block, float* y, u32 start, u32 width,
                                         Shared& shared) {
    constexpr u32 SHARE = PANEL / PARTS;
    u32 column = threadIdx.x % PANEL, part = threadIdx.x / PANEL;
    float inverse[SHARE], sum = 0.0f;
#pragma unroll
    for (u32 e = 0; e < SHARE; ++e) inverse[e] = block[(part * SHARE + e) * PANEL + column];
    __syncthreads();
#pragma unroll
    for (u32 e = 0; e < SHARE; ++e) {
        u32 i = part * SHARE + e;
        sum += inverse[e] * (i < width ? y[start + i] : 0.0f);
    }
    shared.parts[part][column] = sum;
    __syncthreads();
    if (threadIdx.x < PANEL) {
        sum = 0.0f;
#pragma unroll
        for (u32 p = 0; p < PARTS; ++p) sum += shared.parts[p][column];
        shared.panel[column] = sum;
        if (column < width) y[start + column] = sum;
    }
    __syncthreads();
    for (u32 k = threadIdx.x; k < start; k += THREADS) {
        const float* above = a + start * stride + k;
        sum = y[k];
#pragma unroll
        for (u32 from = 0; from < PANEL; from += 2 * FLIGHT) {
            float entry[2 * FLIGHT];
#pragma unroll
            for (u32 f = 0; f < 2 * FLIGHT; ++f) entry[f] = from + f < width ? __ldg(above + (from + f) * stride) : 0.0f;
#pragma unroll
            for (u32 f = 0; f < 2 * FLIGHT; ++f) sum -= entry[f] * shared.panel[from + f];
        }
        y[k] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) spd_solve(float* arena, const u32* table) {
    __shared__ Shared shared;
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    const float* a = arena + item[0];
    size_t stride = item[1];
    u32 n = item[2];
    const float* inverse = arena + item[3];
    const float* d = arena + item[4];
    float* y = arena + item[7];
    // Nobody writes the status before a barrier that all threads pass.
    if (arena[item[8]] != 0.0f) return;
    for (u32 i = threadIdx.x; i < n; i += THREADS) y[i] = arena[item[5] + i] * d[i];
    if (threadIdx.x == 0) shared.infinite = 0;
    __syncthreads();
    for (u32 start = 0; start < n; start += PANEL)
        forward(a, stride, inverse + (size_t)start * PANEL, y, start, min((u32)PANEL, n - start), shared);
    for (u32 start = (n - 1) / PANEL * PANEL;; start -= PANEL) {
        backward(a, stride, inverse + (size_t)start * PANEL, y, start, min((u32)PANEL, n - start), shared);
        if (start == 0) break;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        y[i] *= d[i];
        if (!isfinite(y[i])) shared.infinite = 1;
    }
    __syncthreads();
    if (shared.infinite) {
        if (threadIdx.x == 0) arena[item[8]] = 1.0f;
        return;
    }
    for (u32 i = threadIdx.x; i < n; i += THREADS) arena[item[6] + i] = y[i];
}
