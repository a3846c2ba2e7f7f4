// Cholesky factors of the row blocks, and the coupling scaled by them.
//
//     L_i = chol(D_i + ridge)        Y_i = L_i^-1 B_i
//
// D and L: the blocks d_i x d_i one after another (starts[i]), row-major; B: (sum d_i) x p, row-major, rows p apart;
// Y: the same with rows `pitch` apart (p rounded up to even, so that rows can be read two numbers at a time).
// constants: ROW_DIM, the largest d_i (1..16).

// One warp owns one block: lane r owns row r of it. Four warps a block of threads, each with its own 16 x 17 tile of
// shared memory; no barrier wider than a warp. `pivots` gets the squared diagonal of L before its root is taken;
// `status` the smallest index of a pivot that is not positive.
extern "C" __global__ void __launch_bounds__(128) factor_rows(
    const double* D, const int* offsets, const int* starts, double absolute, double relative, int n,
    double* L, double* pivots, int* status)
{
    __shared__ double tiles[4][16][17];
    double (*a)[17] = tiles[threadIdx.x / 32];
    int lane = threadIdx.x % 32, i = blockIdx.x * 4 + threadIdx.x / 32;
    if (i >= n) return;
    int first = offsets[i], d = offsets[i + 1] - first, start = starts[i];
    for (int e = lane; e < d * d; e += 32) {
        double v = D[start + e];
        a[e / d][e % d] = e / d == e % d ? v + absolute + relative * fabs(v) : v;
    }
    __syncwarp();
    for (int k = 0; k < d; ++k) {
        double pivot = a[k][k];
        if (lane == 0) {
            pivots[first + k] = pivot;
            if (!(pivot > 0.0)) atomicMin(status, first + k);
        }
        double root = sqrt(pivot);
        __syncwarp();
        if (lane == k) a[k][k] = root;
        if (lane > k && lane < d) a[lane][k] /= root;
        __syncwarp();
        if (lane > k && lane < d)
            for (int c = k + 1; c <= lane; ++c) a[lane][c] -= a[lane][k] * a[c][k];
        __syncwarp();
    }
    for (int e = lane; e < d * d; e += 32) L[start + e] = e / d >= e % d ? a[e / d][e % d] : 0.0;
}

// Thread j of column block x owns column j of Y_i for i = y, y + grid.y, ...; 128 threads, so that even p = 441 fills
// its blocks; one barrier a row block, around the shared copy of L_i. Columns p..pitch are set to zero.
extern "C" __global__ void __launch_bounds__(128) couple_rows(
    const double* B, const double* L, const int* offsets, const int* starts, int n, int p, int pitch, double* Y)
{
    __shared__ double l[ROW_DIM * ROW_DIM];
    int j = blockIdx.x * 128 + threadIdx.x;
    for (int i = blockIdx.y; i < n; i += gridDim.y) {
        int first = offsets[i], d = offsets[i + 1] - first;
        __syncthreads();
        for (int e = threadIdx.x; e < d * d; e += 128) l[e] = L[starts[i] + e];
        __syncthreads();
        if (j >= pitch) continue;
        double y[ROW_DIM];
#pragma unroll
        for (int r = 0; r < ROW_DIM; ++r) {
            if (r >= d) break;
            double v = j < p ? B[(long long)(first + r) * p + j] : 0.0;
#pragma unroll
            for (int c = 0; c < ROW_DIM; ++c)
                if (c < r) v -= l[r * d + c] * y[c];
            y[r] = v / l[r * d + r];
            Y[(long long)(first + r) * pitch + j] = y[r];
        }
    }
}

// U <- L^-1 b for k right-hand sides, each (sum d_i) long. Thread (i, column) owns block i of one of them.
extern "C" __global__ void __launch_bounds__(128) forward_rows(
    const double* L, const int* offsets, const int* starts, int n, int m, const double* b, double* U)
{
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    int first = offsets[i], d = offsets[i + 1] - first;
    const double* l = L + starts[i];
    b += (long long)blockIdx.y * m + first;
    U += (long long)blockIdx.y * m + first;
    double u[ROW_DIM];
#pragma unroll
    for (int r = 0; r < ROW_DIM; ++r) {
        if (r >= d) break;
        double v = b[r];
#pragma unroll
        for (int c = 0; c < ROW_DIM; ++c)
            if (c < r) v -= l[r * d + c] * u[c];
        u[r] = v / l[r * d + r];
        U[r] = u[r];
    }
}

// T <- L^-T U for k columns; owner as above. In place where T = U.
extern "C" __global__ void __launch_bounds__(128) backward_rows(
    const double* L, const int* offsets, const int* starts, int n, int m, const double* U, double* T)
{
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    int first = offsets[i], d = offsets[i + 1] - first;
    const double* l = L + starts[i];
    U += (long long)blockIdx.y * m + first;
    T += (long long)blockIdx.y * m + first;
    double t[ROW_DIM];
#pragma unroll
    for (int r = ROW_DIM - 1; r >= 0; --r) {
        if (r >= d) continue;
        double v = U[r];
#pragma unroll
        for (int c = 0; c < ROW_DIM; ++c)
            if (c > r && c < d) v -= l[c * d + r] * t[c];
        t[r] = v / l[r * d + r];
        T[r] = t[r];
    }
}
