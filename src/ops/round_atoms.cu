// The decoder's rows of an atom brought into form: one row to length 1, a pair to rho times its polar factor; a workgroup
// an atom.
// words: decoder stride r rows_an_atom
extern "C" __global__ void __launch_bounds__(THREADS) round_atoms(float* arena, const u32* table) {
    __shared__ float parts[32];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 r = item[2], m = item[3];
    float *x = arena + item[0] + (size_t)group * m * item[1], *y = x + item[1];
    float a = 0.0f, b = 0.0f, c = 0.0f;
    for (u32 k = threadIdx.x; k < r; k += THREADS) {
        a += x[k] * x[k];
        if (m > 1) {
            b += y[k] * y[k];
            c += x[k] * y[k];
        }
    }
    a = group_sum(a, parts);
    if (m == 1) {
        float factor = a > 0.0f ? 1.0f / sqrtf(a) : 1.0f;
        for (u32 k = threadIdx.x; k < r; k += THREADS) x[k] *= factor;
        return;
    }
    b = group_sum(b, parts);
    c = group_sum(c, parts);
    float determinant = a * b - c * c;
    if (!(determinant > 1e-6f * (a + b) * (a + b))) return;
    float q = sqrtf(determinant), factor = 0.5f / q;
    float aa = factor * (b + q), ab = -factor * c, bb = factor * (a + q);
    for (u32 k = threadIdx.x; k < r; k += THREADS) {
        float left = x[k], right = y[k];
        x[k] = aa * left + ab * right;
        y[k] = ab * left + bb * right;
    }
}
