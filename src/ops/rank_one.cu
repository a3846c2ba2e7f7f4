// |A| ~ x lambda' by power iteration from the constant vector; one workgroup.
// words: a a_stride rows cols x lambda next tolerance

// The products of a power step: x = |A| lambda, a warp a row; its rows of next += |A|' x come from L1 right after.
// CHUNK columns at a time are summed in registers, and over the warps in shared memory.
constexpr u32 WARPS = THREADS / 32, OWN = 8, CHUNK = 32 * OWN;

__device__ __forceinline__ float row_product(const float* a, const float* lambda, u32 cols) {
    float sum = 0.0f;
#pragma unroll 16
    for (u32 k = threadIdx.x % 32; k < cols; k += 32) sum += fabsf(a[k]) * lambda[k];
    return warp_sum(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) rank_one(float* arena, const u32* table) {
    __shared__ float sums[WARPS][CHUNK];
    __shared__ float parts[32];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    const float* a = arena + item[0];
    size_t stride = item[1];
    u32 rows = item[2], cols = item[3], lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* x = arena + item[4];
    float* lambda = arena + item[5];
    float* next = arena + item[6];
    float tolerance = float_of(item[7]);
    for (u32 k = threadIdx.x; k < cols; k += THREADS) lambda[k] = rsqrtf((float)cols);
    __syncthreads();
    for (u32 step = 0; step < MAX_STEPS; ++step) {
        float square = 0.0f;
        for (u32 from = 0; from < cols; from += CHUNK) {
            float own[OWN] = {};
#pragma unroll 2
            for (u32 i = warp; i < rows; i += WARPS) {
                float product = from ? x[i] : row_product(a + i * stride, lambda, cols);
                if (!from && lane == 0) x[i] = product;
#pragma unroll
                for (u32 e = 0; e < OWN; ++e) {
                    u32 k = from + e * 32 + lane;
                    if (k < cols) own[e] += fabsf(a[i * stride + k]) * product;
                }
            }
#pragma unroll
            for (u32 e = 0; e < OWN; ++e) sums[warp][e * 32 + lane] = own[e];
            __syncthreads();
            for (u32 k = threadIdx.x; k < CHUNK && from + k < cols; k += THREADS) {
                float sum = 0.0f;
#pragma unroll
                for (u32 w = 0; w < WARPS; ++w) sum += sums[w][k];
                next[from + k] = sum;
                square += sum * sum;
            }
            __syncthreads();
        }
        float norm = sqrtf(group_sum(square, parts)), change = 0.0f;
        if (norm == 0.0f) break;
        for (u32 k = threadIdx.x; k < cols; k += THREADS) {
            float value = next[k] / norm, d = value - lambda[k];
            change += d * d;
            lambda[k] = value;
        }
        change = group_sum(change, parts);
        __syncthreads();
        if (sqrtf(change) < tolerance) break;
    }
    for (u32 i = warp; i < rows; i += WARPS) {
        float product = row_product(a + i * stride, lambda, cols);
        if (lane == 0) x[i] = product;
    }
}
