// Cholesky factors by panels of PANEL columns, D A D + ridge I = L L'. The trailing updates are products (gemm).

// d_i <- A_ii^-1/2; status <- 0, or i + 1 where A_ii is not positive and finite. One workgroup.
// words: a a_stride n d status
extern "C" __global__ void __launch_bounds__(THREADS) cholesky_scale(float* arena, const u32* table) {
    __shared__ u32 failed;
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    if (threadIdx.x == 0) failed = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < item[2]; i += THREADS) {
        float square = arena[item[0] + (size_t)i * (item[1] + 1)], d = 1.0f / sqrtf(square);
        bool good = square > 0.0f && isfinite(square) && isfinite(d);
        arena[item[3] + i] = good ? d : 0.0f;
        if (!good) failed = i + 1;
    }
    __syncthreads();
    if (threadIdx.x == 0) arena[item[4]] = failed;
}

// The lower triangle of D A D, with 1 + ridge on its diagonal; ENTRIES entries of the whole square a workgroup.
// words: a a_stride n d ridge
extern "C" __global__ void __launch_bounds__(THREADS) cholesky_equilibrate(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 n = item[2], from = group * ENTRIES, rest = n * n - from;
    const float* d = arena + item[3];
#pragma unroll 4
    for (u32 step = 0; step < ENTRIES / THREADS; ++step) {
        u32 offset = step * THREADS + threadIdx.x;
        if (offset >= rest) return;
        u32 i = (from + offset) / n, j = (from + offset) % n;
        float* a = arena + item[0] + (size_t)i * item[1] + j;
        if (i > j) *a *= d[i] * d[j];
        if (i == j) *a = 1.0f + float_of(item[4]);
    }
}

// One panel. Every workgroup factors the diagonal block for itself, together with PANEL more rows X, which end as
// X L^-T: rows of A below the block, or for workgroup 0 those of the identity, which give the block's inverse. The
// diagonal block of A stays as it is.
// words: a a_stride n start diagonal inverse status
//
// Thread (x, y) of 16 x 16 owns four rows and columns of both. Step k sends column k through shared memory, in turn
// through two buffers, so that a step has one barrier; columns stay unscaled until the end (a_ik / sqrt(pivot_k)). The
// next column is updated and sent before the others, so that the others hide its way.
struct alignas(16) Column {
    float block[PANEL];
    float rows[PANEL];
    float reciprocal;
};

__device__ __forceinline__ float reciprocal_of(float x) {
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return fmaf(y, fmaf(-x, y, 1.0f), y);
}

extern "C" __global__ void __launch_bounds__(THREADS) cholesky_panel(float* arena, const u32* table) {
    static_assert(PANEL == 64 && THREADS == 256, "sixteen threads squared own four entries squared");
    __shared__ Column columns[2];
    __shared__ float scales[PANEL];
    __shared__ u32 failed;
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    if (threadIdx.x == 0) failed = arena[item[6]] != 0.0f ? NONE : 0;
    __syncthreads();
    if (failed) return;
    float* matrix = arena + item[0];
    size_t stride = item[1];
    u32 start = item[3], width = min((u32)PANEL, item[2] - start), x = threadIdx.x % 16, y = threadIdx.x / 16;
    float* below = matrix + (start + (size_t)group * PANEL) * stride + start;
    u32 height = min((u32)PANEL, item[2] - start - group * PANEL);
    float a[4][4], b[4][4];
#pragma unroll
    for (u32 r = 0; r < 4; ++r)
#pragma unroll
        for (u32 c = 0; c < 4; ++c) {
            u32 i = 4 * y + r, j = 4 * x + c;
            float unit = i == j ? 1.0f : 0.0f;
            a[r][c] = i < width && j <= i ? matrix[(start + i) * stride + start + j] : unit;
            b[r][c] = group == 0 ? unit : i < height && j < width ? below[i * stride + j] : 0.0f;
        }
    auto send = [&](u32 k, u32 c) {
        Column& to = columns[k % 2];
        if (x == k / 4) {
#pragma unroll
            for (u32 r = 0; r < 4; ++r) {
                to.block[4 * y + r] = 4 * y + r > k ? a[r][c] : 0.0f;
                to.rows[4 * y + r] = b[r][c];
            }
            if (y == x) {
                float pivot = a[c][c];
                to.reciprocal = reciprocal_of(pivot);
                scales[k] = rsqrtf(pivot);
                if (!(pivot > 0.0f && isfinite(pivot)) && !failed) failed = start + k + 1;
            }
        }
    };
    send(0, 0);
#pragma unroll 1
    for (u32 four = 0; four < PANEL; four += 4)
#pragma unroll
        for (u32 step = 0; step < 4; ++step) {
            u32 k = four + step;
            __syncthreads();
            const Column& now = columns[k % 2];
            float reciprocal = now.reciprocal;
            float4 up4 = *(const float4*)(now.block + 4 * x), left4 = *(const float4*)(now.block + 4 * y);
            float4 rows4 = *(const float4*)(now.rows + 4 * y);
            float up[4] = {up4.x * reciprocal, up4.y * reciprocal, up4.z * reciprocal, up4.w * reciprocal};
            float left[4] = {left4.x, left4.y, left4.z, left4.w}, rows[4] = {rows4.x, rows4.y, rows4.z, rows4.w};
#pragma unroll
            for (u32 turn = 1; turn <= 4; ++turn) {
                u32 c = (step + turn) % 4;
#pragma unroll
                for (u32 r = 0; r < 4; ++r) {
                    a[r][c] -= left[r] * up[c];
                    b[r][c] -= rows[r] * up[c];
                }
                if (turn == 1 && k + 1 < PANEL) send(k + 1, c);
            }
        }
    __syncthreads();
#pragma unroll
    for (u32 r = 0; r < 4; ++r)
#pragma unroll
        for (u32 c = 0; c < 4; ++c) {
            u32 i = 4 * y + r, j = 4 * x + c;
            float value = b[r][c] * scales[j];
            if (group > 0) {
                if (i < height && j < width) below[i * stride + j] = value;
            } else {
                bool inside = i < width && j < width;
                arena[item[4] + i * PANEL + j] = inside && j <= i ? a[r][c] * scales[j] : 0.0f;
                arena[item[5] + j * PANEL + i] = inside && i <= j ? value : 0.0f;
            }
        }
    if (group == 0 && threadIdx.x == 0 && failed) arena[item[6]] = failed;
}

// A <- L: the diagonal blocks to their places, zeros above the diagonal; ENTRIES entries of the square a workgroup.
// words: a a_stride n diagonal; blocks are PANEL x PANEL, one after another
extern "C" __global__ void __launch_bounds__(THREADS) cholesky_gather(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 n = item[2], from = group * ENTRIES, rest = n * n - from;
    const float* blocks = arena + item[3];
#pragma unroll 4
    for (u32 step = 0; step < ENTRIES / THREADS; ++step) {
        u32 offset = step * THREADS + threadIdx.x;
        if (offset >= rest) return;
        u32 i = (from + offset) / n, j = (from + offset) % n;
        float* a = arena + item[0] + (size_t)i * item[1] + j;
        if (j > i) *a = 0.0f;
        else if (i / PANEL == j / PANEL) *a = blocks[(size_t)i * PANEL + j % PANEL];
    }
}
