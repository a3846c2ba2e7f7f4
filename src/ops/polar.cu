// Around the Newton-Schulz steps of a polar factor. Every matrix is r x r, its rows one after another; one workgroup.

// X <- A / s with s the fourth root of the largest absolute row sum of M = (A'A)^2; done <- 0. Where s is not positive
// and finite, or status says so already: X <- 0, done <- 1, status <- 1.
// words: a m x r done status
extern "C" __global__ void __launch_bounds__(THREADS) polar_scale(float* arena, const u32* table) {
    __shared__ float most[THREADS / 32];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    const float* a = arena + item[0];
    const float* m = arena + item[1];
    float* x = arena + item[2];
    u32 r = item[3], lane = threadIdx.x % 32;
    float largest = 0.0f;
    for (u32 i = threadIdx.x / 32; i < r; i += THREADS / 32) {
        float sum = 0.0f;
#pragma unroll 16
        for (u32 k = lane; k < r; k += 32) sum += fabsf(m[(size_t)i * r + k]);
        sum = warp_sum(sum);
        if (!(sum <= largest)) largest = sum;
    }
    if (lane == 0) most[threadIdx.x / 32] = largest;
    bool failed = arena[item[5]] != 0.0f;
    __syncthreads();
    largest = 0.0f;
    for (u32 warp = 0; warp < THREADS / 32; ++warp)
        if (!(most[warp] <= largest)) largest = most[warp];
    float scale = sqrtf(sqrtf(largest));
    failed |= !(scale > 0.0f && isfinite(scale));
    if (threadIdx.x == 0) {
        arena[item[4]] = failed ? 1.0f : 0.0f;
        if (failed) arena[item[5]] = 1.0f;
    }
    float factor = 1.0f / scale;
#pragma unroll 8
    for (u32 k = threadIdx.x; k < r * r; k += THREADS) x[k] = failed ? 0.0f : a[k] * factor;
}

// done <- 1 where 2 |M - unit I| in the Frobenius norm is at most the tolerance, or where status is not 0; the last check
// makes status 1 where that is not so.
// words: m r done status tolerance last unit
extern "C" __global__ void __launch_bounds__(THREADS) polar_check(float* arena, const u32* table) {
    __shared__ float parts[32];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    const float* m = arena + item[0];
    u32 r = item[1];
    bool done = arena[item[2]] != 0.0f, failed = arena[item[3]] != 0.0f;
    if (done) return;
    float sum = 0.0f, unit = float_of(item[6]);
    for (u32 i = threadIdx.x / 32; i < r; i += THREADS / 32)
#pragma unroll 16
        for (u32 k = threadIdx.x % 32; k < r; k += 32) {
            float d = m[(size_t)i * r + k] - (i == k ? unit : 0.0f);
            sum += d * d;
        }
    sum = group_sum(sum, parts);
    if (threadIdx.x > 0) return;
    if (failed || 2.0f * sqrtf(sum) <= float_of(item[4])) arena[item[2]] = 1.0f;
    else if (item[5]) arena[item[3]] = 1.0f;
}
