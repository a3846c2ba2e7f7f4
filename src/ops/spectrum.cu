// What the spectra of weights need around the libraries, which work in f64 on column-major matrices.

typedef unsigned int u32;

// out (rows x cols, without gaps) <- a (f32, rows `stride` apart). One thread an entry.
extern "C" __global__ void __launch_bounds__(256) widen(
    const float* a, int stride, double* out, int rows, int cols)
{
    size_t e = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (e < (size_t)rows * cols) out[e] = a[e / cols * stride + e % cols];
}

// Zeros above the diagonal of a column-major matrix of order n: a Cholesky factor stands alone then.
extern "C" __global__ void __launch_bounds__(256) keep_lower(double* a, int n)
{
    size_t e = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (e < (size_t)n * n && e % n < e / n) a[e] = 0.0;
}

// left (f32, m x r, rows `stride` apart): column k is `factors[k]` times column n-1-k of the column-major vectors (m x n).
extern "C" __global__ void __launch_bounds__(256) narrow(
    const double* vectors, const double* factors, float* left, int stride, int m, int n, int r)
{
    size_t e = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (e >= (size_t)m * r) return;
    int i = e / r, k = e % r;
    left[(size_t)i * stride + k] = (float)(vectors[(size_t)(n - 1 - k) * m + i] * factors[k]);
}
