// Pieces of the inverse of a symmetric positive definite matrix S of order p, column-major, both triangles.
//
//     S^-1 by halves: with S = [[A, B'], [B, C]],  T = B A^-1,  Z = C - T B',
//     S^-1 = [[A^-1 + T' Z^-1 T, .], [-Z^-1 T, Z^-1]]
//
// Products are cuBLAS's; here are the leaves, the mirror images, and the way in and out of half storage.
// Half storage: the tiles (I, J), I >= J, of TILE x TILE one after another, tile I(I+1)/2 + J; element (r, c) of a tile
// at c * TILE + r; beyond p zeros; tiles on the diagonal whole.
// constants: LEAF (a multiple of 32), TILE (64), DENSE, IDENTITY, DIAGONAL, KRONECKER (forms of C).

// The inverse of a leaf of order n <= LEAF by the symmetric sweep operator: for each k, with d = a_kk,
//     a_ij -= a_ik a_kj / d,  a_ik /= d,  a_kk = -1/d,  which ends with -A^-1.
// d is the squared k-th pivot of Cholesky. One block of 256 threads, few enough for cheap barriers: thread (x, y) of
// 32 x 8 owns the elements (y + 8 r, x + 32 c) in registers, so that a row is one warp's. The column of each step and
// 1/d, divided once, go through shared memory, in turn through two buffers: one barrier a step. The next column is
// updated and published first, so that its division runs beside the other updates. Reads the lower triangle, writes
// both.
extern "C" __global__ void __launch_bounds__(256) invert_leaf(
    double* S, int ld, int n, int base, double* pivots, int* status)
{
    constexpr int R = LEAF / 8, C = LEAF / 32;
    __shared__ double column[2][LEAF];
    __shared__ double reciprocal[2];
    int x = threadIdx.x % 32, y = threadIdx.x / 32;
    double a[R][C];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int c = 0; c < C; ++c) {
            int i = y + 8 * r, j = x + 32 * c;
            int low = max(i, j), high = min(i, j);
            a[r][c] = low < n ? S[low + (long long)high * ld] : (i == j ? 1.0 : 0.0);
        }
    if (x == 0)
#pragma unroll
        for (int r = 0; r < R; ++r) column[0][y + 8 * r] = a[r][0];
    if (threadIdx.x == 0) reciprocal[0] = 1.0 / a[0][0];
    __syncthreads();
#pragma unroll
    for (int rb = 0; rb < R; ++rb) {
        constexpr int ROWS = 8;
        const int cb = rb / 4;
#pragma unroll 1
        for (int kk = 0; kk < ROWS; ++kk) {
            int k = rb * ROWS + kk, next = k + 1;
            const double* now = column[k & 1];
            double inverse = reciprocal[k & 1], left[R], up[C];
#pragma unroll
            for (int c = 0; c < C; ++c) up[c] = now[x + 32 * c];
#pragma unroll
            for (int r = 0; r < R; ++r) left[r] = now[y + ROWS * r] * inverse;
            bool my_row = y == kk, my_column = x == k % 32;
            // Sends column `next`, which lies in column block c of the lanes next % 32.
            auto publish = [&](int c) {
                if (next < LEAF && x == next % 32) {
                    double* then = column[next & 1];
#pragma unroll
                    for (int r = 0; r < R; ++r) then[y + ROWS * r] = a[r][c];
                    if (y == next % ROWS)
                        reciprocal[next & 1] = 1.0 / (kk + 1 < ROWS ? a[rb][c] : a[rb + 1 < R ? rb + 1 : rb][c]);
                }
            };
#pragma unroll
            for (int r = 0; r < R; ++r) {
                double v = a[r][cb] - left[r] * up[cb];
                a[r][cb] = my_column ? left[r] : v;
            }
            if (my_row) a[rb][cb] = my_column ? -inverse : up[cb] * inverse;
            bool boundary = rb % 4 == 3 && kk + 1 == ROWS;
            if (!boundary) publish(cb);
#pragma unroll
            for (int c = 0; c < C; ++c) {
                if (c == cb) continue;
#pragma unroll
                for (int r = 0; r < R; ++r) a[r][c] -= left[r] * up[c];
                if (my_row) a[rb][c] = up[c] * inverse;
            }
            if (boundary) publish(cb + 1 < C ? cb + 1 : cb);
            if (threadIdx.x == 0 && k < n) {
                pivots[base + k] = now[k];
                if (!(now[k] > 0.0)) atomicMin(status, base + k);
            }
            __syncthreads();
        }
    }
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int c = 0; c < C; ++c) {
            int i = y + 8 * r, j = x + 32 * c;
            if (i < n && j < n) S[j + (long long)i * ld] = -a[r][c];
        }
}

// Upper right <- (lower left)': `low` is rows x cols, `high` cols x rows; where both are the same square, its lower
// triangle goes to its upper one. Block (x, y) of 256 threads owns one 32 x 32 tile, through shared memory so that both
// sides are coalesced; one barrier.
extern "C" __global__ void __launch_bounds__(256) mirror(
    const double* low, double* high, int ld, int rows, int cols)
{
    __shared__ double tile[32][33];
    int x = threadIdx.x % 32, y = threadIdx.x / 32;
    int i0 = blockIdx.x * 32, j0 = blockIdx.y * 32;
    bool square = low == high;
    if (square && i0 < j0) return;
    for (int c = y; c < 32; c += 8)
        if (i0 + x < rows && j0 + c < cols) tile[c][x] = low[i0 + x + (long long)(j0 + c) * ld];
    __syncthreads();
    for (int r = y; r < 32; r += 8)
        if (i0 + r < rows && j0 + x < cols && !(square && i0 + r <= j0 + x))
            high[j0 + x + (long long)(i0 + r) * ld] = tile[x][r];
}

// Entry (i, j) of C, which is never p x p unless it is dense. `form`: DENSE (p x p), IDENTITY (nothing), DIAGONAL (p),
// KRONECKER (G, basis x basis, with C = G (x) I and p = basis * part).
__device__ __forceinline__ double border_entry(const double* C, int form, int basis, int part, int p, int i, int j)
{
    if (form == DENSE) return C[i + (long long)j * p];
    if (form == KRONECKER) return i % part == j % part ? C[i / part + (long long)(j / part) * basis] : 0.0;
    return i != j ? 0.0 : form == DIAGONAL ? C[i] : 1.0;
}

// scale_j = (c_jj + ridge + s_jj)^-1/2, with S = -Y'Y; 1 where that is not positive, which a pivot then reports.
extern "C" __global__ void __launch_bounds__(256) border_scale(
    const double* C, int form, int basis, int part, const double* S, int p, double absolute, double relative,
    double* scale)
{
    int j = blockIdx.x * 256 + threadIdx.x;
    if (j >= p) return;
    double c = border_entry(C, form, basis, part, p, j, j);
    double d = c + absolute + relative * fabs(c) + S[(long long)j * (p + 1)];
    scale[j] = d > 0.0 ? 1.0 / sqrt(d) : 1.0;
}

// Sums of |tile| along its rows and columns, for the 1-norm: sums[I][J][.] and sums[J][I][.]; 256 threads, a barrier
// before (the tile) and inside. The order of additions is fixed.
__device__ void tile_sums(const double (*tile)[TILE + 1], int I, int J, int tiles, double* sums)
{
    int r = threadIdx.x % TILE, part = threadIdx.x / TILE;
    double row = 0.0, column = 0.0;
    if (part == 0)
        for (int c = 0; c < TILE; ++c) row += fabs(tile[c][r]);
    if (part == 1)
        for (int c = 0; c < TILE; ++c) column += fabs(tile[r][c]);
    if (part == 0) sums[((long long)I * tiles + J) * TILE + r] = row;
    if (part == 1 && I != J) sums[((long long)J * tiles + I) * TILE + r] = column;
}

__device__ void tile_of(int t, int& I, int& J)
{
    I = (int)((sqrt(8.0 * t + 1.0) - 1.0) * 0.5);
    while ((I + 1) * (I + 2) / 2 <= t) ++I;
    while (I * (I + 1) / 2 > t) --I;
    J = t - I * (I + 1) / 2;
}

// Way in. S holds the lower triangle of -Y'Y and gets both triangles of diag(scale) (C + ridge - Y'Y) diag(scale);
// `half` gets C + ridge - Y'Y. Block t owns tile t and its mirror image. Way out (`assemble` = 0): S holds the lower
// triangle of the inverse of the scaled matrix and gets both triangles of diag(scale) S diag(scale), and so does `half`.
// `sums` gets the 1-norm parts of the scaled matrix either way.
extern "C" __global__ void __launch_bounds__(256) half_tiles(
    int assemble, const double* C, int form, int basis, int part, double* S, const double* scale, int p,
    double absolute, double relative, double* half, double* sums)
{
    __shared__ double tile[TILE][TILE + 1];
    int I, J;
    tile_of(blockIdx.x, I, J);
    int tiles = (p + TILE - 1) / TILE;
    double* packed = half + (long long)blockIdx.x * TILE * TILE;
    for (int e = threadIdx.x; e < TILE * TILE; e += 256) {
        int r = e % TILE, c = e / TILE, i = I * TILE + r, j = J * TILE + c;
        double v = 0.0, scaled = 0.0;
        if (i < p && j < p) {
            int low = max(i, j), high = min(i, j);
            v = S[low + (long long)high * p];
            double s = scale[i] * scale[j];
            if (assemble) {
                double b = border_entry(C, form, basis, part, p, low, high);
                v += b;
                if (i == j) v += absolute + relative * fabs(b);
                scaled = v * s;
            } else {
                scaled = v;
                v *= s;
            }
        }
        packed[e] = v;
        tile[c][r] = scaled;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < TILE * TILE; e += 256) {
        int r = e % TILE, c = e / TILE;
        int i = I * TILE + r, j = J * TILE + c;
        if (i < p && j < p) S[i + (long long)j * p] = assemble ? tile[c][r] : tile[c][r] * (scale[i] * scale[j]);
        i = I * TILE + c, j = J * TILE + r;
        if (I != J && i < p && j < p)
            S[j + (long long)i * p] = assemble ? tile[r][c] : tile[r][c] * (scale[i] * scale[j]);
    }
    tile_sums(tile, I, J, tiles, sums);
}

// S <- the whole matrix out of half storage; block t owns tile t and its mirror image.
extern "C" __global__ void __launch_bounds__(256) whole_from_half(const double* half, double* S, int p)
{
    int I, J;
    tile_of(blockIdx.x, I, J);
    const double* packed = half + (long long)blockIdx.x * TILE * TILE;
    for (int e = threadIdx.x; e < TILE * TILE; e += 256) {
        int i = I * TILE + e % TILE, j = J * TILE + e / TILE;
        if (i < p && j < p) {
            S[i + (long long)j * p] = packed[e];
            S[j + (long long)i * p] = packed[e];
        }
    }
}

// panel <- the columns from tile column `first` on of the whole matrix out of half storage, p rows each. Block (I, x)
// owns tile (I, first + x).
extern "C" __global__ void __launch_bounds__(256) panel_from_half(
    const double* half, double* panel, int p, int first)
{
    int I = blockIdx.x, J = first + blockIdx.y;
    int low = max(I, J), high = min(I, J);
    const double* packed = half + ((long long)low * (low + 1) / 2 + high) * TILE * TILE;
    for (int e = threadIdx.x; e < TILE * TILE; e += 256) {
        int r = e % TILE, c = e / TILE, i = I * TILE + r, j = J * TILE + c;
        if (i < p && j < p)
            panel[i + (long long)(j - first * TILE) * p] = packed[I >= J ? c * TILE + r : r * TILE + c];
    }
}

// pivots[j] = l_jj^2 for a Cholesky factor of order p; thread j owns pivot j. `status` gets the smallest index of one that
// is not positive and finite.
extern "C" __global__ void __launch_bounds__(256) squared_diagonal(
    const double* factor, int p, double* pivots, int* status)
{
    int j = blockIdx.x * 256 + threadIdx.x;
    if (j >= p) return;
    double pivot = factor[(long long)j * (p + 1)] * factor[(long long)j * (p + 1)];
    pivots[j] = pivot;
    if (!(pivot > 0.0 && pivot <= 1.7976931348623157e308)) atomicMin(status, j);
}

// The largest column sum. One block of 1024 threads; thread t owns the columns t, t + 1024, ...
extern "C" __global__ void __launch_bounds__(1024) norm_one(const double* sums, int p, double* norm)
{
    __shared__ double most[1024];
    int tiles = (p + TILE - 1) / TILE;
    double largest = 0.0;
    for (int i = threadIdx.x; i < p; i += 1024) {
        double sum = 0.0;
        const double* parts = sums + (long long)(i / TILE) * tiles * TILE + i % TILE;
#pragma unroll 8
        for (int J = 0; J < tiles; ++J) sum += parts[J * TILE];
        largest = sum > largest || sum != sum ? sum : largest;
    }
    most[threadIdx.x] = largest;
    __syncthreads();
    for (int width = 512; width > 0; width /= 2) {
        if (threadIdx.x < width) {
            double other = most[threadIdx.x + width];
            if (!(other <= most[threadIdx.x])) most[threadIdx.x] = other;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) *norm = most[0];
}
