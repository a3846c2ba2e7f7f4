// One resident solve of an arrow system, five kernels long (with corrections: nine or thirteen).
//
//     u_i = L_i^-1 b_i          v = b_beta - sum Y_i' u_i         (reduce_rows, sum_parts)
//     x = S^-1 v                                                  (multiply_half, sum_tiles)
//     t_i = L_i^-T (u_i - Y_i x)                                  (back_substitute)
//
// Right-hand side and step lie in pinned host memory and are read and written there. Floors: Y twice and half of S^-1
// once, each at the speed of memory. What fits in L2 is kept there from solve to solve: rows below `kept_rows` and
// tiles below `kept_tiles` are read plainly, the rest as streams that are evicted first.
// Every kernel starts while its predecessor still runs, fetches what does not depend on it, and then waits for it.
// constants: ROW_DIM, TILE (64), CHUNK_ROWS (most rows of one part in reduce_rows).

__device__ __forceinline__ void let_next_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ double2 read(const double2* at, bool keep) { return keep ? *at : __ldcs(at); }

// parts[c][j] = sum over the rows of part c of Y[row][j] u[row]. Block (x, c) of 256 threads owns the columns
// 512 x .. 512 x + 511 of part c (blocks c * per_part .. of the row blocks); thread t owns two neighbouring columns.
// Its first eight rows are fetched before u is known. Column block 0 also stores u. One barrier.
extern "C" __global__ void __launch_bounds__(256) reduce_rows(
    const double* Y, const double* L, const int* offsets, const int* starts, const double* rhs, int n, int pitch,
    int per_part, int kept_rows, double* u, double* parts)
{
    __shared__ double us[CHUNK_ROWS];
    let_next_start();
    int block0 = blockIdx.y * per_part, block1 = min(n, block0 + per_part);
    int first = offsets[block0], rows = offsets[block1] - first;
    int j = blockIdx.x * 512 + threadIdx.x * 2;
    bool mine = j < pitch;
    const double* y = Y + (long long)first * pitch + j;
    double2 ahead[8];
#pragma unroll
    for (int r = 0; r < 8; ++r)
        ahead[r] = mine && r < rows ? read((const double2*)(y + (long long)r * pitch), first + r < kept_rows)
                                    : make_double2(0.0, 0.0);
    for (int i = block0 + threadIdx.x; i < block1; i += 256) {
        int at = offsets[i], d = offsets[i + 1] - at;
        const double* l = L + starts[i];
        double b[ROW_DIM];
#pragma unroll
        for (int r = 0; r < ROW_DIM; ++r) b[r] = r < d ? rhs[at + r] : 0.0;
#pragma unroll
        for (int r = 0; r < ROW_DIM; ++r) {
            if (r >= d) break;
#pragma unroll
            for (int c = 0; c < ROW_DIM; ++c)
                if (c < r) b[r] -= l[r * d + c] * b[c];
            b[r] /= l[r * d + r];
            us[at - first + r] = b[r];
            if (blockIdx.x == 0) u[at + r] = b[r];
        }
    }
    __syncthreads();
    if (!mine) return;
    double2 sum = make_double2(0.0, 0.0);
#pragma unroll
    for (int r = 0; r < 8; ++r)
        if (r < rows) {
            sum.x += ahead[r].x * us[r];
            sum.y += ahead[r].y * us[r];
        }
#pragma unroll 8
    for (int r = 8; r < rows; ++r) {
        double2 v = read((const double2*)(y + (long long)r * pitch), first + r < kept_rows);
        sum.x += v.x * us[r];
        sum.y += v.y * us[r];
    }
    *(double2*)(parts + (long long)blockIdx.y * pitch + j) = sum;
}

// v[j] = b[j] - sum_c parts[c][j]. A block of 256 threads owns 32 columns; group g of 32 threads adds the parts
// g, g + 8, ..., then the groups are added in their order. One barrier.
extern "C" __global__ void __launch_bounds__(256) sum_parts(
    const double* parts, const double* b, int count, int p, int pitch, double* v)
{
    __shared__ double groups[8][32];
    let_next_start();
    int x = threadIdx.x % 32, g = threadIdx.x / 32, j = blockIdx.x * 32 + x;
    double own = g == 0 && j < p ? b[j] : 0.0;
    wait_for_previous();
    double sum = 0.0;
    if (j < p) {
#pragma unroll 8
        for (int c = g; c < count; c += 8) sum += parts[(long long)c * pitch + j];
    }
    groups[g][x] = sum;
    __syncthreads();
    if (g == 0 && j < p) {
        for (int k = 0; k < 8; ++k) own -= groups[k][x];
        v[j] = own;
    }
}

// Products of tile t = (I, J) of a symmetric matrix in half storage (spd_inverse.cu) with x, both ways:
//     sums[I][J][r] = sum_c T[r][c] x_J[c],   sums[J][I][c] = sum_r T[r][c] x_I[r].
// Block t of 256 threads; warp w owns the columns w, w + 8, ... of the tile, lane l its rows 2l and 2l + 1, so that a
// warp reads 512 bytes at once and a thread has eight reads in flight before it waits for x. One barrier.
extern "C" __global__ void __launch_bounds__(256) multiply_half(
    const double* half, const double* x, int p, int kept_tiles, double* sums)
{
    __shared__ double2 across[8][32];
    let_next_start();
    int lane = threadIdx.x % 32, w = threadIdx.x / 32, t = blockIdx.x;
    bool keep = t < kept_tiles;
    const double2* tile = (const double2*)(half + (long long)t * TILE * TILE);
    double2 a[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) a[k] = read(tile + (w + 8 * k) * 32 + lane, keep);
    int I = (int)((sqrt(8.0 * t + 1.0) - 1.0) * 0.5);
    while ((I + 1) * (I + 2) / 2 <= t) ++I;
    while (I * (I + 1) / 2 > t) --I;
    int J = t - I * (I + 1) / 2, tiles = (p + TILE - 1) / TILE;
    wait_for_previous();
    int i = I * TILE + 2 * lane;
    double2 xi = make_double2(i < p ? x[i] : 0.0, i + 1 < p ? x[i + 1] : 0.0);
    double2 down = make_double2(0.0, 0.0);
    double dots[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        int j = J * TILE + w + 8 * k;
        double xj = j < p ? x[j] : 0.0;
        down.x += a[k].x * xj;
        down.y += a[k].y * xj;
        dots[k] = a[k].x * xi.x + a[k].y * xi.y;
    }
    across[w][lane] = down;
    // Eight sums over 32 lanes: halve the values while the lanes pair up, then finish the one that is left.
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        bool upper = lane & 16;
        double give = upper ? dots[k] : dots[k + 4], own = upper ? dots[k + 4] : dots[k];
        dots[k] = own + __shfl_xor_sync(~0u, give, 16);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        bool upper = lane & 8;
        double give = upper ? dots[k] : dots[k + 2], own = upper ? dots[k + 2] : dots[k];
        dots[k] = own + __shfl_xor_sync(~0u, give, 8);
    }
    bool upper = lane & 4;
    double give = upper ? dots[0] : dots[1], own = upper ? dots[1] : dots[0];
    double dot = own + __shfl_xor_sync(~0u, give, 4);
    dot += __shfl_xor_sync(~0u, dot, 2);
    dot += __shfl_xor_sync(~0u, dot, 1);
    if (I != J && lane % 4 == 0) {
        int k = (lane & 16 ? 4 : 0) + (lane & 8 ? 2 : 0) + (lane & 4 ? 1 : 0);
        sums[((long long)J * tiles + I) * TILE + w + 8 * k] = dot;
    }
    __syncthreads();
    if (threadIdx.x < TILE) {
        const double* columns = (const double*)across;
        double sum = 0.0;
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += columns[k * TILE + threadIdx.x];
        sums[((long long)I * tiles + J) * TILE + threadIdx.x] = sum;
    }
}

// y = alpha * base + beta * sum_J sums[I][J], for the block I of 64 rows that this block of 256 threads owns; the four
// groups of 64 threads add every fourth J, then the groups are added in their order. `base` may be null. The result
// goes to `y`, and to `step` (pinned, may be null). One barrier.
extern "C" __global__ void __launch_bounds__(256) sum_tiles(
    const double* sums, const double* base, double alpha, double beta, int p, double* y, double* step)
{
    __shared__ double groups[4][TILE];
    let_next_start();
    int r = threadIdx.x % TILE, g = threadIdx.x / TILE, tiles = (p + TILE - 1) / TILE;
    int i = blockIdx.x * TILE + r;
    wait_for_previous();
    const double* parts = sums + (long long)blockIdx.x * tiles * TILE + r;
    double sum = 0.0;
#pragma unroll 8
    for (int J = g; J < tiles; J += 4) sum += parts[J * TILE];
    groups[g][r] = sum;
    __syncthreads();
    if (g == 0 && i < p) {
        double v = beta * (groups[0][r] + groups[1][r] + groups[2][r] + groups[3][r]);
        if (base) v += alpha * base[i];
        y[i] = v;
        if (step) step[i] = v;
    }
}

// t_i = L_i^-T (u_i - Y_i x). One block of threads owns one row block; rows are taken from the last to the first,
// because the last ones were read most recently. The first reads of Y are made before x is known. Sums: each thread
// over its columns, lanes by halving, then warps in their order. Two barriers.
extern "C" __global__ void __launch_bounds__(512) back_substitute(
    const double* Y, const double* L, const int* offsets, const int* starts, const double* u, const double* x, int n,
    int p, int pitch, int kept_rows, double* t)
{
    constexpr int AHEAD = ROW_DIM <= 4 ? 8 / ROW_DIM : 1;
    __shared__ double warps[16][ROW_DIM];
    let_next_start();
    int i = n - 1 - blockIdx.x;
    int first = offsets[i], d = offsets[i + 1] - first;
    const double* y = Y + (long long)first * pitch;
    double2 ahead[AHEAD][ROW_DIM];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
        int j = 2 * (threadIdx.x + k * blockDim.x);
#pragma unroll
        for (int r = 0; r < ROW_DIM; ++r)
            ahead[k][r] = r < d && j < pitch
                ? read((const double2*)(y + (long long)r * pitch + j), first + r < kept_rows)
                : make_double2(0.0, 0.0);
    }
    wait_for_previous();
    double dot[ROW_DIM];
#pragma unroll
    for (int r = 0; r < ROW_DIM; ++r) dot[r] = 0.0;
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
        int j = 2 * (threadIdx.x + k * blockDim.x);
        double x0 = j < p ? x[j] : 0.0, x1 = j + 1 < p ? x[j + 1] : 0.0;
#pragma unroll
        for (int r = 0; r < ROW_DIM; ++r) dot[r] += ahead[k][r].x * x0 + ahead[k][r].y * x1;
    }
#pragma unroll 4
    for (int j = 2 * (threadIdx.x + AHEAD * blockDim.x); j < pitch; j += 2 * blockDim.x) {
        double x0 = x[j], x1 = j + 1 < p ? x[j + 1] : 0.0;
#pragma unroll
        for (int r = 0; r < ROW_DIM; ++r)
            if (r < d) {
                double2 v = read((const double2*)(y + (long long)r * pitch + j), first + r < kept_rows);
                dot[r] += v.x * x0 + v.y * x1;
            }
    }
#pragma unroll
    for (int r = 0; r < ROW_DIM; ++r) {
        for (int width = 16; width > 0; width /= 2) dot[r] += __shfl_xor_sync(~0u, dot[r], width);
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32][r] = dot[r];
    }
    __syncthreads();
    if (threadIdx.x < ROW_DIM) {
        double sum = 0.0;
        for (int w = 0; w < blockDim.x / 32; ++w) sum += warps[w][threadIdx.x];
        warps[0][threadIdx.x] = threadIdx.x < d ? u[first + threadIdx.x] - sum : 0.0;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    const double* l = L + starts[i];
    double out[ROW_DIM];
#pragma unroll
    for (int r = ROW_DIM - 1; r >= 0; --r) {
        if (r >= d) continue;
        double v = warps[0][r];
#pragma unroll
        for (int c = 0; c < ROW_DIM; ++c)
            if (c > r && c < d) v -= l[c * d + r] * out[c];
        out[r] = v / l[r * d + r];
        t[first + r] = out[r];
    }
}
