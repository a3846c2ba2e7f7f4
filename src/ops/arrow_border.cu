// Structured borders and factored couplings of an arrow system.
//
//     border       C + ridge = E E', E diagonal or chol(G) (x) I_r; a border vector is M x r, row-major (p = M r)
//     coupling     X[s][k r + l] = h[i][k] J[s][l] for the row unknown s of block i
//
// E of a Kronecker border is stored mirrored, M x M: element (max, min) of chol(G) at both (i, j) and (j, i).
// Many vectors of one kind lie one behind the other: rows m apart, borders `pitch` apart, parts n r apart.
// constants: none.

// One column x <- E^-1 x or E^-T x by a warp, 32 rows at a time: in a block on the diagonal lane i owns row i, and
// values pass from lane to lane; then the rows that are left lose the products of the whole block.
template <bool BACKWARD>
__device__ __forceinline__ void substitute(const double* E, int basis, double* x, int lane)
{
    int blocks = (basis + 31) / 32;
    for (int step = 0; step < blocks; ++step) {
        int base = 32 * (BACKWARD ? blocks - 1 - step : step), i = base + lane;
        const double* e = E + (long long)base * basis;
        double row[32];
#pragma unroll
        for (int c = 0; c < 32; ++c) row[c] = i < basis && base + c < basis ? e[c * basis + i] : 0.0;
        double v = i < basis ? x[i] : 0.0, inverse = i < basis ? 1.0 / E[(long long)i * (basis + 1)] : 0.0;
#pragma unroll
        for (int k = 0; k < 32; ++k) {
            int c = BACKWARD ? 31 - k : k;
            double value = __shfl_sync(~0u, v * inverse, c);
            if (BACKWARD ? lane < c : lane > c) v -= row[c] * value;
        }
        if (i < basis) x[i] = v * inverse;
        __syncwarp();
        int begin = BACKWARD ? 0 : base + 32, end = BACKWARD ? base : basis, columns = min(32, basis - base);
        for (int j = begin + lane; j < end; j += 32) {
            double sum = 0.0;
#pragma unroll 16
            for (int c = 0; c < columns; ++c) sum += e[(long long)c * basis + j] * x[base + c];
            x[j] -= sum;
        }
        __syncwarp();
    }
}

// X <- E^-1 X (`backward` = 0) or E^-T X for M x r matrices, out of place or in place. Block c tiles + x of 256 threads
// owns the columns width x .. of matrix c, in shared memory (M x width numbers); warp w the columns w, w + 8, ... of them.
// Two barriers.
extern "C" __global__ void __launch_bounds__(256) root_solve(
    const double* E, int basis, int part, int pitch, int width, int backward, const double* from, double* to)
{
    extern __shared__ double x[];
    int tiles = (part + width - 1) / width;
    long long matrix = (long long)(blockIdx.x / tiles) * pitch;
    int first = blockIdx.x % tiles * width, mine = min(width, part - first);
    for (int e = threadIdx.x; e < basis * mine; e += 256) {
        int k = e / mine, l = e % mine;
        x[l * basis + k] = from[matrix + (long long)k * part + first + l];
    }
    __syncthreads();
    for (int l = threadIdx.x / 32; l < mine; l += 8) {
        if (backward) substitute<true>(E, basis, x + l * basis, threadIdx.x % 32);
        else substitute<false>(E, basis, x + l * basis, threadIdx.x % 32);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < basis * mine; e += 256) {
        int k = e / mine, l = e % mine;
        to[matrix + (long long)k * part + first + l] = x[l * basis + k];
    }
}

// X <- E^-1 X for a diagonal E, vectors `pitch` apart: thread j of block (c, y) owns element 256 y + j of vector c.
extern "C" __global__ void __launch_bounds__(256) root_divide(
    const double* e, int p, int pitch, const double* from, double* to)
{
    int j = blockIdx.y * 256 + threadIdx.x;
    long long at = (long long)blockIdx.x * pitch + j;
    if (j < p) to[at] = from[at] / e[j];
}

// y <- c x for a diagonal border; thread j owns element j.
extern "C" __global__ void __launch_bounds__(256) diagonal_product(const double* c, const double* x, int p, double* y)
{
    int j = blockIdx.x * 256 + threadIdx.x;
    if (j < p) y[j] = c[j] * x[j];
}

// y_i <- D_i x_i, blocks row-major; thread s owns row unknown s of block block_of[s].
extern "C" __global__ void __launch_bounds__(128) row_product(
    const double* D, const int* offsets, const int* starts, const int* block_of, const double* x, int m, double* y)
{
    int s = blockIdx.x * 128 + threadIdx.x;
    if (s >= m) return;
    int i = block_of[s], first = offsets[i], d = offsets[i + 1] - first;
    const double* row = D + starts[i] + (s - first) * d;
    double sum = 0.0;
    for (int c = 0; c < d; ++c) sum += row[c] * x[first + c];
    y[s] = sum;
}

// The coupling multiplied out, rows `pitch` apart: thread j of block (x, s) owns column j of row unknown s; columns
// p..pitch are set to zero.
extern "C" __global__ void __launch_bounds__(128) expand_coupling(
    const double* h, const double* J, const int* block_of, int basis, int part, int pitch, int m, double* X)
{
    int j = blockIdx.x * 128 + threadIdx.x;
    if (j >= pitch) return;
    for (int s = blockIdx.y; s < m; s += gridDim.y)
        X[(long long)s * pitch + j] = j < basis * part
            ? h[(long long)block_of[s] * basis + j / part] * J[(long long)s * part + j % part] : 0.0;
}

// K[s][t] <- K[s][t] T[i][j], i and j the blocks of s and t: the other half of the product of two factored couplings.
// Thread t of block (x, s) owns one element.
extern "C" __global__ void __launch_bounds__(128) block_scale(
    const double* T, const int* block_of, int n, int m, double* K)
{
    int t = blockIdx.x * 128 + threadIdx.x;
    if (t >= m) return;
    for (int s = blockIdx.y; s < m; s += gridDim.y)
        K[(long long)s * m + t] *= T[(long long)block_of[s] * n + block_of[t]];
}

// rows[s] += alpha sum_l J[s][l] W[i][l]. One warp of block (x, c) owns row unknown s of vector c; lanes are added by
// halving.
extern "C" __global__ void __launch_bounds__(256) rows_from_parts(
    const double* J, const double* W, const int* block_of, int n, int m, int part, double alpha, double* rows)
{
    int s = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (s >= m) return;
    const double* j = J + (long long)s * part;
    const double* w = W + ((long long)blockIdx.y * n + block_of[s]) * part;
    double sum = 0.0;
    for (int l = lane; l < part; l += 32) sum += j[l] * w[l];
    for (int width = 16; width > 0; width /= 2) sum += __shfl_xor_sync(~0u, sum, width);
    if (lane == 0) rows[(long long)blockIdx.y * m + s] += alpha * sum;
}

// W[i][l] = sum over the unknowns s of block i of J[s][l] rows[s]. Thread e of block (x, c) owns element e = i r + l of
// the parts of vector c.
extern "C" __global__ void __launch_bounds__(256) parts_from_rows(
    const double* J, const double* rows, const int* offsets, int n, int m, int part, double* W)
{
    long long e = (long long)blockIdx.x * 256 + threadIdx.x, count = (long long)n * part;
    if (e >= count) return;
    int i = (int)(e / part), l = (int)(e % part);
    double sum = 0.0;
    for (int s = offsets[i]; s < offsets[i + 1]; ++s)
        sum += J[(long long)s * part + l] * rows[(long long)blockIdx.y * m + s];
    W[blockIdx.y * count + e] = sum;
}
