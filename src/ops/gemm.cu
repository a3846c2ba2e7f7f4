// C <- f(alpha op(A) op(B) o H + beta C + diagonal I), many products at once, true f32, always summed in the same order.
// words: a a_stride b b_stride c c_stride m n k flags alpha beta diagonal h h_stride skip 0
// flags: 1 A is stored k x m; 2 B is stored n x k; 4 lower: tiles above the diagonal are left out; 8 f is the sign;
// 16 H is there.
//
// A workgroup computes TILE x TILE entries of C; of products that are large both ways it takes BIG x BIG, and the
// workgroups that are left over do nothing. Operands go to shared memory STEP rows of k at a time, one step ahead, by
// asynchronous copies: of 16 bytes where C's direction is contiguous and aligned, else of single numbers, which may be
// transposed on the way. A thread sums OWN x OWN entries in registers. Where the tile has more threads than that takes,
// they share out the rows of k of each step, and their sums are added in the end, in a fixed order.

constexpr u32 A_TRANSPOSED = 1, B_TRANSPOSED = 2, LOWER = 4, SIGN = 8, HADAMARD = 16;
constexpr u32 BIG = 128, STEP = 16, OWN = 8;
// Against bank conflicts: eight rows of k of a transposing copy fall on different banks.
constexpr u32 PAD = 4;

// One operand, as this thread copies it: `limit` rows (or columns) of it, `left` numbers of each still to come.
template <u32 SIZE>
struct Operand {
    const float* from;
    u32 stride, limit, left;
    // Whether k is the contiguous direction; where it is not, whether copies of 16 bytes are aligned.
    bool along_k, aligned;

    __device__ Operand(const float* matrix, u32 stride, u32 first, u32 size, u32 depth, bool along_k)
        : from(matrix + (along_k ? (size_t)first * stride : first)), stride(stride), limit(size - first), left(depth),
          along_k(along_k), aligned(stride % 4 == 0 && (size_t)from % 16 == 0) {}

    // Queues the copy of the next STEP rows of k to `stage`: number (k, i) goes to k * (SIZE + PAD) + i.
    __device__ __forceinline__ void fetch(float* stage) {
        if (limit >= SIZE && left >= STEP) copy<true>(stage);
        else copy<false>(stage);
        from += along_k ? STEP : (size_t)STEP * stride;
        left -= min(left, STEP);
    }

    template <bool WHOLE>
    __device__ __forceinline__ void copy(float* stage) const {
        constexpr u32 SINGLES = SIZE * STEP / THREADS, FOURS = SINGLES / 4;
        u32 t = threadIdx.x;
        if (along_k) {
#pragma unroll
            for (u32 p = 0; p < SINGLES; ++p) {
                u32 k = t % 8 + p % 2 * 8, i = t / 8 + p / 2 * (THREADS / 8);
                bool there = WHOLE || (i < limit && k < left);
                copy_4(stage + k * (SIZE + PAD) + i, there ? from + (i * stride + k) : from, there);
            }
        } else if (aligned) {
#pragma unroll
            for (u32 p = 0; p < FOURS; ++p) {
                u32 i = t % (SIZE / 4) * 4, k = t / (SIZE / 4) + p * (4 * THREADS / SIZE);
                u32 numbers = WHOLE ? 4 : k < left && i < limit ? min(4u, limit - i) : 0u;
                copy_16(stage + k * (SIZE + PAD) + i, numbers ? from + (k * stride + i) : from, numbers);
            }
        } else {
#pragma unroll
            for (u32 p = 0; p < SINGLES; ++p) {
                u32 i = t % SIZE, k = t / SIZE + p * (THREADS / SIZE);
                bool there = WHOLE || (i < limit && k < left);
                copy_4(stage + k * (SIZE + PAD) + i, there ? from + (k * stride + i) : from, there);
            }
        }
    }
};

// What becomes of a sum.
struct Finish {
    float *c;
    const float *h;
    u32 c_stride, h_stride, flags;
    float alpha, beta, diagonal;

    __device__ __forceinline__ float operator()(float sum, u32 i, u32 j) const {
        float value = alpha * sum;
        if (flags & HADAMARD) value *= h[(size_t)i * h_stride + j];
        if (beta != 0.0f) value += beta * c[(size_t)i * c_stride + j];
        if (i == j) value += diagonal;
        return flags & SIGN ? sign_of(value) : value;
    }
};

// Stores four neighbours of a row of C.
__device__ __forceinline__ void store(const Finish& finish, bool aligned, float4 sum, u32 i, u32 j, u32 n) {
    float* to = finish.c + (size_t)i * finish.c_stride + j;
    if (aligned && j + 3 < n) {
        *(float4*)to = make_float4(finish(sum.x, i, j), finish(sum.y, i, j + 1), finish(sum.z, i, j + 2),
                                   finish(sum.w, i, j + 3));
        return;
    }
    if (j < n) to[0] = finish(sum.x, i, j);
    if (j + 1 < n) to[1] = finish(sum.y, i, j + 1);
    if (j + 2 < n) to[2] = finish(sum.z, i, j + 2);
    if (j + 3 < n) to[3] = finish(sum.w, i, j + 3);
}

template <u32 SIZE>
__device__ __forceinline__ void product(float* arena, const u32* item, u32 group, float* shared) {
    constexpr u32 ROW = SIZE + PAD, SIDE = SIZE / OWN, TEAMS = THREADS / (SIDE * SIDE), STAGE = 2 * STEP * ROW;
    u32 m = item[6], n = item[7], depth = item[8], flags = item[9];
    u32 across = (n + SIZE - 1) / SIZE, i0 = group / across * SIZE, j0 = group % across * SIZE;
    if (i0 >= m || (flags & LOWER && i0 + SIZE <= j0)) return;
    if (item[15] != NONE && arena[item[15]] != 0.0f) return;
    Operand<SIZE> a(arena + item[0], item[1], i0, m, depth, !(flags & A_TRANSPOSED));
    Operand<SIZE> b(arena + item[2], item[3], j0, n, depth, flags & B_TRANSPOSED);
    // A thread owns fours of rows and columns, half a tile apart; its team takes every TEAMS-th row of k.
    u32 tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE % SIDE, team = threadIdx.x / (SIDE * SIDE);
    u32 steps = (depth + STEP - 1) / STEP;
    // Whether any row of this warp is inside C.
    bool busy = i0 + (threadIdx.x - threadIdx.x % 32) / SIDE % SIDE * 4 < m;
    float sum[OWN][OWN] = {};
    a.fetch(shared);
    b.fetch(shared + STEP * ROW);
    for (u32 step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        if (step + 1 < steps) {
            float* stage = shared + (step + 1) % 2 * STAGE;
            a.fetch(stage);
            b.fetch(stage + STEP * ROW);
        }
        if (!busy) continue;
        const float* left = shared + step % 2 * STAGE + team * ROW + ty * 4;
        const float* right = left + STEP * ROW - ty * 4 + tx * 4;
#pragma unroll
        for (u32 k = 0; k < STEP / TEAMS; ++k) {
            float x[OWN], y[OWN];
#pragma unroll
            for (u32 e = 0; e < OWN; e += 4) {
                *(float4*)(x + e) = *(const float4*)(left + k * TEAMS * ROW + e * (SIZE / 8));
                *(float4*)(y + e) = *(const float4*)(right + k * TEAMS * ROW + e * (SIZE / 8));
            }
#pragma unroll
            for (u32 e = 0; e < OWN; ++e)
#pragma unroll
                for (u32 f = 0; f < OWN; ++f) sum[e][f] += x[e] * y[f];
        }
    }
    Finish finish{arena + item[4], arena + item[13], item[5], item[14], flags, float_of(item[10]), float_of(item[11]),
                  float_of(item[12])};
    bool aligned = (size_t)finish.c % 16 == 0 && finish.c_stride % 4 == 0;
    if (TEAMS == 1) {
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) {
            u32 i = i0 + ty * 4 + e / 4 * (SIZE / 2) + e % 4;
            if (i >= m) continue;
#pragma unroll
            for (u32 f = 0; f < OWN; f += 4)
                store(finish, aligned, *(float4*)(sum[e] + f), i, j0 + tx * 4 + f * (SIZE / 8), n);
        }
        return;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    // Half a tile at a time: every team's sums to shared memory, then all threads add them.
    constexpr u32 HALF = SIZE / 2 * SIZE;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        __syncthreads();
#pragma unroll
        for (u32 e = 0; e < 4; ++e)
#pragma unroll
            for (u32 f = 0; f < OWN; f += 4)
                *(float4*)(shared + team * HALF + (ty * 4 + e) * SIZE + tx * 4 + f * (SIZE / 8)) =
                    *(float4*)(sum[half * 4 + e] + f);
        __syncthreads();
        for (u32 four = threadIdx.x; four < HALF / 4; four += THREADS) {
            u32 i = i0 + half * (SIZE / 2) + four / (SIZE / 4), j = j0 + four % (SIZE / 4) * 4;
            float4 total = *(float4*)(shared + four * 4);
#pragma unroll
            for (u32 other = 1; other < TEAMS; ++other) {
                float4 part = *(float4*)(shared + other * HALF + four * 4);
                total = make_float4(total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w);
            }
            if (i < m) store(finish, aligned, total, i, j, n);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) gemm(float* arena, const u32* table) {
    __shared__ __align__(16) float shared[2 * 2 * STEP * (BIG + PAD)];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    // By the shape only, so that a product's result does not depend on its table.
    if (min(item[6], item[7]) >= 4 * BIG) product<BIG>(arena, item, group, shared);
    else product<TILE>(arena, item, group, shared);
}
