// One try of Newton's method on a quadratic phi(z) = 1/2 z'Hz - b'z whose vectors stay on the device; all are
// `size` long, the m row unknowns first.
// constants: THREADS.

// candidate = z + step; thread i owns element i.
extern "C" __global__ void __launch_bounds__(256) take_step(
    const double* z, const double* step, int size, double* candidate)
{
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < size) candidate[i] = z[i] + step[i];
}

// The sum over the block in a fixed order: lanes by halving, then warps. Two barriers.
__device__ double block_sum(double v, double* warps)
{
    for (int width = 16; width > 0; width /= 2) v += __shfl_xor_sync(~0u, v, width);
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
    double sum = 0.0;
    for (int w = 0; w < THREADS / 32; ++w) sum += warps[w];
    return sum;
}

// The larger; NaN wins.
__device__ double larger(double a, double b) { return b > a || b != b ? b : a; }

__device__ double block_largest(double v, double* warps)
{
    for (int width = 16; width > 0; width /= 2) v = larger(v, __shfl_xor_sync(~0u, v, width));
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
    double most = 0.0;
    for (int w = 0; w < THREADS / 32; ++w) most = larger(most, warps[w]);
    return most;
}

// Everything that the host decides by, and the descent direction -grad phi = b - Hz at the candidate:
//     scalars = { z'Hz, b'z, step' R step, descent' step, 0 * step, max|b - Hz|, sum ((b - Hz)/max)^2, max|z|,
//                 sum (z/max)^2 },  z the candidate, R the ridge on |diag H|, descent that of the point before.
// One block of THREADS threads; thread t owns the elements t, t + THREADS, ...
extern "C" __global__ void __launch_bounds__(THREADS) survey(
    const double* z, const double* product, const double* b, const double* step, const double* descent,
    const double* diagonal, int m, int size, double row_ridge, double border_ridge, double relative, double* next,
    double* scalars)
{
    __shared__ double warps[THREADS / 32];
    double curve = 0.0, slope = 0.0, damping = 0.0, gain = 0.0, bad = 0.0, most_next = 0.0, most_z = 0.0;
    for (int i = threadIdx.x; i < size; i += THREADS) {
        double rest = b[i] - product[i];
        next[i] = rest;
        curve += z[i] * product[i];
        slope += b[i] * z[i];
        damping += ((i < m ? row_ridge : border_ridge) + relative * fabs(diagonal[i])) * step[i] * step[i];
        gain += descent[i] * step[i];
        bad += 0.0 * step[i];
        most_next = larger(most_next, fabs(rest));
        most_z = larger(most_z, fabs(z[i]));
    }
    double sums[5] = {curve, slope, damping, gain, bad};
    for (int k = 0; k < 5; ++k) {
        double sum = block_sum(sums[k], warps);
        if (threadIdx.x == 0) scalars[k] = sum;
    }
    most_next = block_largest(most_next, warps);
    most_z = block_largest(most_z, warps);
    double squares_next = 0.0, squares_z = 0.0;
    for (int i = threadIdx.x; i < size; i += THREADS) {
        double v = next[i] / most_next, w = z[i] / most_z;
        squares_next += v * v;
        squares_z += w * w;
    }
    squares_next = block_sum(squares_next, warps);
    squares_z = block_sum(squares_z, warps);
    if (threadIdx.x == 0) {
        scalars[5] = most_next;
        scalars[6] = squares_next;
        scalars[7] = most_z;
        scalars[8] = squares_z;
    }
}
