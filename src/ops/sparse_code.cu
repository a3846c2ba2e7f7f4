// Codes of rows from small normal equations G u = h; a warp a row.
// words: gram g_stride right h_stride values u_stride rows n known stiffness

constexpr u32 WARPS = THREADS / 32;

// Any u: Cholesky with a ridge, lanes share the rows below a pivot. L is packed by rows.
extern "C" __global__ void __launch_bounds__(THREADS) ray_code(float* arena, const u32* table) {
    __shared__ float factors[WARPS][MOST * (MOST + 1) / 2], parts[WARPS][MOST];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = group * WARPS + warp, n = item[7];
    if (i >= item[6]) return;
    float ridge = float_of(RIDGE_BITS);
    const float* g = arena + item[0] + (size_t)i * item[1];
    const float* h = arena + item[2] + (size_t)i * item[3];
    float* out = arena + item[4] + (size_t)i * item[5];
    float *l = factors[warp], *u = parts[warp];
    for (u32 j = 0; j < n; ++j) {
        const float* pivots = l + j * (j + 1) / 2;
        for (u32 a = j + lane; a < n; a += 32) {
            float* row = l + a * (a + 1) / 2;
            float sum = g[a * n + j];
            for (u32 k = 0; k < j; ++k) sum -= row[k] * pivots[k];
            if (a == j) sum = sqrtf(fmaxf(fmaxf(sum + ridge * g[j * n + j], ridge * g[j * n + j]), 1.17549435e-38f));
            row[j] = sum;
        }
        __syncwarp();
        float pivot = pivots[j];
        for (u32 a = j + 1 + lane; a < n; a += 32) l[a * (a + 1) / 2 + j] /= pivot;
        __syncwarp();
    }
    for (u32 a = lane; a < n; a += 32) u[a] = h[a];
    __syncwarp();
    for (u32 j = 0; j < n; ++j) {
        float value = u[j] / l[j * (j + 1) / 2 + j];
        __syncwarp();
        if (lane == 0) u[j] = value;
        for (u32 a = j + 1 + lane; a < n; a += 32) u[a] -= l[a * (a + 1) / 2 + j] * value;
        __syncwarp();
    }
    for (u32 j = n; j-- > 0;) {
        const float* row = l + j * (j + 1) / 2;
        float value = u[j] / row[j];
        __syncwarp();
        if (lane == 0) u[j] = value;
        for (u32 a = lane; a < j; a += 32) u[a] -= row[a] * value;
        __syncwarp();
    }
    for (u32 a = lane; a < n; a += 32) out[a] = u[a];
}

// Pairs of given length: one circle after another at its minimum, lanes share the entries of a row of G.
extern "C" __global__ void __launch_bounds__(THREADS) circle_code(float* arena, const u32* table) {
    __shared__ float codes[WARPS][2 * MOST];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = group * WARPS + warp, n = item[7];
    if (i >= item[6]) return;
    float stiffness = float_of(item[9]);
    const float* g = arena + item[0] + (size_t)i * item[1];
    const float* h = arena + item[2] + (size_t)i * item[3];
    float* out = arena + item[4] + (size_t)i * item[5];
    float* u = codes[warp];
    for (u32 a = lane; a < n; a += 32) u[a] = a < item[8] ? out[a] : 0.0f;
    __syncwarp();
    for (u32 sweep = 0; sweep < SWEEPS; ++sweep) {
        for (u32 a = 0; a < n; a += 2) {
            const float *upper = g + a * n, *lower = upper + n;
            float p = 0.0f, q = 0.0f;
            for (u32 b = lane; b < n; b += 32) {
                p += upper[b] * u[b];
                q += lower[b] * u[b];
            }
            p = warp_sum(p);
            q = warp_sum(q);
            float aa = upper[a], bb = lower[a + 1], ab = upper[a + 1], half = 0.5f * (aa - bb);
            float lambda = 0.5f * (aa + bb) + sqrtf(half * half + ab * ab);
            float x = h[a] - p + lambda * u[a], y = h[a + 1] - q + lambda * u[a + 1];
            float length = sqrtf(x * x + y * y);
            float free = (length + stiffness) / fmaxf(lambda + stiffness, 1.17549435e-38f);
            float amplitude = isinf(stiffness) ? 1.0f : free;
            __syncwarp();
            if (lane == 0) {
                u[a] = length > 0.0f ? amplitude * x / length : amplitude;
                u[a + 1] = length > 0.0f ? amplitude * y / length : 0.0f;
            }
            __syncwarp();
        }
    }
    for (u32 a = lane; a < n; a += 32) out[a] = u[a];
}
