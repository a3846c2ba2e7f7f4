// Thousands of small arrow systems in one launch, one block of 128 threads each.
//
//     L_i = chol(D_i + ridge), [Y_i u_i] = L_i^-1 [B_i b_i], S = C + ridge - sum Y_i'Y_i, x = S^-1 (b - sum Y_i'u_i),
//     t_i = L_i^-T L_i^-1 (b_i - B_i x)
//
// System k owns the row blocks rows[k] .. rows[k + 1]; D: d x d each, B: d x p each, row-major; C: p x p a system.
// `status` of a system: 0; 1 + r when the pivot of row unknown r is not positive; -(1 + j) when pivot j of its border
// is not; `pivot` is then that pivot. The lowest int when the step is not finite. The step of a system that fails is
// zero, and the neighbours do not notice.
// Rows go through shared memory in chunks: a thread factors a block, threads own (block, column) pairs of [Y u], then
// threads own entries of the lower triangle of S and of the right-hand side, over groups of rows that are added in
// order. Largest: d = 3, p = 32. Barriers: three a chunk.
// constants: ROW_DIM (d, exactly).

constexpr int ENTRIES = 5;  // 32 * 35 / 2 entries over 128 threads

// chol(D + ridge) in packed rows; the index of the first pivot that is not positive, or ROW_DIM.
__device__ int factor(const double* D, double absolute, double relative, double* l, double& pivot)
{
    int bad = ROW_DIM;
    int at = 0;
#pragma unroll
    for (int r = 0; r < ROW_DIM; ++r)
#pragma unroll
        for (int c = 0; c <= r; ++c) {
            double v = D[r * ROW_DIM + c];
            if (r == c) v += absolute + relative * fabs(v);
#pragma unroll
            for (int k = 0; k < ROW_DIM; ++k)
                if (k < c) v -= l[r * (r + 1) / 2 + k] * l[c * (c + 1) / 2 + k];
            if (r == c) {
                if (!(v > 0.0) && bad == ROW_DIM) {
                    bad = r;
                    pivot = v;
                }
                l[at++] = sqrt(v);
            } else
                l[at++] = v / l[c * (c + 1) / 2 + c];
        }
    return bad;
}

extern "C" __global__ void __launch_bounds__(128) solve_batch(
    const double* D, const double* B, const double* C, const double* row_rhs, const double* border_rhs,
    const int* rows, int p, int chunk, double absolute_row, double absolute_border, double relative,
    double* row_step, double* border_step, int* status,
    double* pivot, double* log_det)
{
    constexpr int LOWER = ROW_DIM * (ROW_DIM + 1) / 2;
    extern __shared__ double shared[];
    int wide = p + 1, entries = p * (p + 3) / 2, system = blockIdx.x, t = threadIdx.x;
    double* y = shared;                          // chunk * d rows of p + 1
    double* l = y + chunk * ROW_DIM * wide;      // chunk factors
    double* s = l + chunk * LOWER;               // p x (p + 1): S, and the right-hand side in the last column
    __shared__ int failed;
    __shared__ double log_of[128];
    double logs = 0.0;
    if (t == 0) failed = 0x7fffffff;
    int groups = max(1, 128 / entries), group = entries <= 128 ? t / entries : 0;
    int row_of[ENTRIES], col_of[ENTRIES];
    double sum[ENTRIES];
#pragma unroll
    for (int k = 0; k < ENTRIES; ++k) {
        int e = entries <= 128 ? (k == 0 ? t - group * entries : entries) : t + 128 * k;
        int r = 0;
        if (group >= groups) e = entries;
        if (e < entries) {
            // Entry e of row r is column e - r(r + 3)/2 of it, 0..r in S and r + 1 for the right-hand side.
            while ((r + 1) * (r + 4) / 2 <= e) ++r;
            int c = e - r * (r + 3) / 2;
            row_of[k] = r;
            col_of[k] = c <= r ? c : p;
        } else
            row_of[k] = -1, col_of[k] = 0;
        sum[k] = 0.0;
    }
    int begin = rows[system], end = rows[system + 1];
    for (int at = begin; at < end; at += chunk) {
        int count = min(chunk, end - at);
        __syncthreads();
        for (int i = t; i < count; i += 128) {
            double own[LOWER], value = 0.0, product = 1.0;
            int bad = factor(D + (long long)(at + i) * ROW_DIM * ROW_DIM, absolute_row, relative, own, value);
            if (bad < ROW_DIM) atomicMin(&failed, (at + i - begin) * ROW_DIM + bad);
#pragma unroll
            for (int r = 0; r < ROW_DIM; ++r) product *= own[r * (r + 1) / 2 + r];
            logs += log(product);
#pragma unroll
            for (int k = 0; k < LOWER; ++k) l[i * LOWER + k] = own[k];
        }
        __syncthreads();
        for (int e = t; e < count * wide; e += 128) {
            int i = e / wide, j = e % wide;
            const double* own = l + i * LOWER;
            long long row = (long long)(at + i) * ROW_DIM;
            double v[ROW_DIM];
#pragma unroll
            for (int r = 0; r < ROW_DIM; ++r) v[r] = j < p ? B[(row + r) * p + j] : row_rhs[row + r];
#pragma unroll
            for (int r = 0; r < ROW_DIM; ++r) {
#pragma unroll
                for (int c = 0; c < ROW_DIM; ++c)
                    if (c < r) v[r] -= own[r * (r + 1) / 2 + c] * v[c];
                v[r] /= own[r * (r + 1) / 2 + r];
                y[(i * ROW_DIM + r) * wide + j] = v[r];
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ENTRIES; ++k)
            if (row_of[k] >= 0) {
                const double *left = y + row_of[k], *right = y + col_of[k];
                double even = 0.0, odd = 0.0;
                int r = group, rows = count * ROW_DIM;
                for (; r + groups < rows; r += 2 * groups) {
                    even += left[r * wide] * right[r * wide];
                    odd += left[(r + groups) * wide] * right[(r + groups) * wide];
                }
                if (r < rows) even += left[r * wide] * right[r * wide];
                sum[k] += even + odd;
            }
    }
    log_of[t] = logs;
    // The groups subtract their sums from C and b in their order.
    long long base = (long long)system * p;
    for (int g = 0; g < groups; ++g) {
        __syncthreads();
        if (group == g)
#pragma unroll
            for (int k = 0; k < ENTRIES; ++k)
                if (row_of[k] >= 0) {
                    int r = row_of[k], c = col_of[k];
                    double own;
                    if (g > 0)
                        own = s[r * wide + c];
                    else if (c == p)
                        own = border_rhs[base + r];
                    else {
                        own = C[(base + r) * p + c];
                        if (c == r) own += absolute_border + relative * fabs(own);
                    }
                    s[r * wide + c] = own - sum[k];
                }
    }
    __syncthreads();
    // One warp factors S and solves: lane r owns row r.
    if (t < 32) {
        int bad = 0;
        double value = 0.0, log_border = 0.0;
        for (int k = 0; k < p; ++k) {
            double squared = s[k * wide + k];
            if (!(squared > 0.0) && bad == 0) {
                bad = -(1 + k);
                value = squared;
            }
            double root = sqrt(squared);
            log_border += log(root);
            __syncwarp();
            if (t == k) {
                s[k * wide + k] = root;
                s[k * wide + p] /= root;
            }
            if (t > k && t < p) s[t * wide + k] /= root;
            __syncwarp();
            if (t > k && t < p) {
                for (int c = k + 1; c <= t; ++c) s[t * wide + c] -= s[t * wide + k] * s[c * wide + k];
                s[t * wide + p] -= s[t * wide + k] * s[k * wide + p];
            }
            __syncwarp();
        }
        for (int k = p - 1; k >= 0; --k) {
            if (t == k) s[k * wide + p] /= s[k * wide + k];
            __syncwarp();
            if (t < k) s[t * wide + p] -= s[k * wide + t] * s[k * wide + p];
            __syncwarp();
        }
        if (failed != 0x7fffffff) bad = 1 + failed;
        if (t < p) {
            if (bad) s[t * wide + p] = 0.0;
            border_step[base + t] = s[t * wide + p];
        }
        if (t == 0) {
            if (failed != 0x7fffffff) {
                double own[LOWER];
                int block = begin + failed / ROW_DIM;
                factor(D + (long long)block * ROW_DIM * ROW_DIM, absolute_row, relative, own, value);
            }
            status[system] = bad;
            pivot[system] = value;
            for (int k = 0; k < 128; ++k) log_border += log_of[k];
            log_det[system] = bad ? 0.0 : 2.0 * log_border;
            failed = bad;
        }
    }
    __syncthreads();
    bool good = failed == 0;
    bool finite = t >= p || s[t * wide + p] - s[t * wide + p] == 0.0;
    for (int i = begin + t; i < end; i += 128) {
        double own[LOWER], v[ROW_DIM], value;
        factor(D + (long long)i * ROW_DIM * ROW_DIM, absolute_row, relative, own, value);
        long long row = (long long)i * ROW_DIM;
#pragma unroll
        for (int r = 0; r < ROW_DIM; ++r) {
            double sum = 0.0;
            for (int j = 0; j < p; ++j) sum += B[(row + r) * p + j] * s[j * wide + p];
            v[r] = row_rhs[row + r] - sum;
        }
#pragma unroll
        for (int r = 0; r < ROW_DIM; ++r) {
#pragma unroll
            for (int c = 0; c < ROW_DIM; ++c)
                if (c < r) v[r] -= own[r * (r + 1) / 2 + c] * v[c];
            v[r] /= own[r * (r + 1) / 2 + r];
        }
#pragma unroll
        for (int r = ROW_DIM - 1; r >= 0; --r) {
#pragma unroll
            for (int c = 0; c < ROW_DIM; ++c)
                if (c > r) v[r] -= own[c * (c + 1) / 2 + r] * v[c];
            v[r] /= own[r * (r + 1) / 2 + r];
            finite = finite && (!good || v[r] - v[r] == 0.0);
            row_step[row + r] = good ? v[r] : 0.0;
        }
    }
    if (__syncthreads_and(finite)) return;
    // Each thread clears what it wrote.
    for (int i = begin + t; i < end; i += 128)
        for (int r = 0; r < ROW_DIM; ++r) row_step[(long long)i * ROW_DIM + r] = 0.0;
    if (t < p) border_step[base + t] = 0.0;
    if (t == 0) {
        status[system] = 0x80000000;
        log_det[system] = 0.0;
    }
}
