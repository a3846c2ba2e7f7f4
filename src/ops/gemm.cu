// C <- f(alpha op(A) op(B) o H + beta C + diagonal I), many products at once, true f32, k summed in ascending order.
// words: a a_stride b b_stride c c_stride m n k flags alpha beta diagonal h h_stride skip 0
// flags: 1 A is stored k x m; 2 B is stored n x k; 4 lower: tiles above the diagonal are left out; 8 f is the sign;
// 16 H is there.
//
// A workgroup computes TILE x TILE entries of C; of products that are large both ways it takes BIG x BIG, and the
// workgroups that are left over do nothing. Operands go to shared memory STEP rows of k at a time, STAGES in flight,
// by asynchronous copies: of 16 bytes where C's direction is contiguous and aligned, else of single numbers, which may
// be transposed on the way. A thread sums (TILE / 16) x (TILE / 16) entries in registers.

constexpr u32 A_TRANSPOSED = 1, B_TRANSPOSED = 2, LOWER = 4, SIGN = 8, HADAMARD = 16;
constexpr u32 BIG = 128, STEP = 8, STAGES = 4;
// Against bank conflicts: eight rows of k of a transposing copy fall on different banks.
constexpr u32 PAD = 4;

__device__ __forceinline__ void copy_4(float* to, const float* from, bool there) {
    u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(there ? 4 : 0) : "memory");
}

__device__ __forceinline__ void copy_16(float* to, const float* from, u32 numbers) {
    u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(4 * numbers) : "memory");
}

// One operand: `limit` rows (or columns) of it from `from` on, `depth` numbers each.
template <u32 SIZE>
struct Operand {
    const float* from;
    u32 stride, limit, depth;
    // Whether k is the contiguous direction; where it is not, whether copies of 16 bytes are aligned.
    bool along_k, aligned;

    __device__ Operand(const float* matrix, u32 stride, u32 first, u32 size, u32 depth, bool along_k)
        : from(matrix + (along_k ? (size_t)first * stride : first)), stride(stride), limit(size - first), depth(depth),
          along_k(along_k), aligned(stride % 4 == 0 && (size_t)from % 16 == 0) {}

    // Queues the copy of rows k0 .. k0 + STEP to `stage`: number (k, i) goes to k * (SIZE + PAD) + i.
    __device__ __forceinline__ void fetch(float* stage, u32 k0) const {
        u32 t = threadIdx.x;
        if (along_k) {
            u32 k = t % STEP;
#pragma unroll
            for (u32 p = 0; p < SIZE * STEP / THREADS; ++p) {
                u32 i = t / STEP + p * (THREADS / STEP);
                bool there = i < limit && k0 + k < depth;
                copy_4(stage + k * (SIZE + PAD) + i, there ? from + (size_t)i * stride + k0 + k : from, there);
            }
        } else if (aligned) {
            u32 i = t % (SIZE / 4) * 4, k = t / (SIZE / 4);
            if (k < STEP) {
                u32 numbers = k0 + k < depth && i < limit ? min(4u, limit - i) : 0u;
                copy_16(stage + k * (SIZE + PAD) + i, numbers ? from + (size_t)(k0 + k) * stride + i : from, numbers);
            }
        } else {
            u32 i = t % SIZE;
#pragma unroll
            for (u32 p = 0; p < SIZE * STEP / THREADS; ++p) {
                u32 k = t / SIZE + p * (THREADS / SIZE);
                bool there = i < limit && k0 + k < depth;
                copy_4(stage + k * (SIZE + PAD) + i, there ? from + (size_t)(k0 + k) * stride + i : from, there);
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

// The place of number e of those that a thread owns along one direction: fours, 64 apart.
__device__ __forceinline__ u32 place(u32 thread, u32 e) { return thread * 4 + e / 4 * 64 + e % 4; }

template <u32 SIZE>
__device__ __forceinline__ void product(float* arena, const u32* item, u32 group, float* shared) {
    constexpr u32 OWN = SIZE / 16, ROW = SIZE + PAD;
    u32 m = item[6], n = item[7], depth = item[8], flags = item[9];
    u32 across = (n + SIZE - 1) / SIZE, i0 = group / across * SIZE, j0 = group % across * SIZE;
    if (i0 >= m || (flags & LOWER && i0 + SIZE <= j0)) return;
    if (item[15] != NONE && arena[item[15]] != 0.0f) return;
    Operand<SIZE> a(arena + item[0], item[1], i0, m, depth, !(flags & A_TRANSPOSED));
    Operand<SIZE> b(arena + item[2], item[3], j0, n, depth, flags & B_TRANSPOSED);
    u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16, steps = (depth + STEP - 1) / STEP;
    float sum[OWN][OWN] = {};
    auto fetch = [&](u32 step) {
        if (step < steps) {
            float* stage = shared + step % STAGES * (2 * STEP * ROW);
            a.fetch(stage, step * STEP);
            b.fetch(stage + STEP * ROW, step * STEP);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (u32 step = 0; step < STAGES - 1; ++step) fetch(step);
    for (u32 step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        fetch(step + STAGES - 1);
        const float* left = shared + step % STAGES * (2 * STEP * ROW) + ty * 4;
        const float* right = shared + step % STAGES * (2 * STEP * ROW) + STEP * ROW + tx * 4;
#pragma unroll
        for (u32 k = 0; k < STEP; ++k) {
            float x[OWN], y[OWN];
#pragma unroll
            for (u32 e = 0; e < OWN; e += 4) {
                *(float4*)(x + e) = *(const float4*)(left + k * ROW + e * 16);
                *(float4*)(y + e) = *(const float4*)(right + k * ROW + e * 16);
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
#pragma unroll
    for (u32 e = 0; e < OWN; ++e) {
        u32 i = i0 + place(ty, e);
        if (i >= m) continue;
#pragma unroll
        for (u32 f = 0; f < OWN; f += 4) {
            u32 j = j0 + place(tx, f);
            float* to = finish.c + (size_t)i * finish.c_stride + j;
            if (aligned && j + 3 < n) {
                *(float4*)to = make_float4(finish(sum[e][f], i, j), finish(sum[e][f + 1], i, j + 1),
                                           finish(sum[e][f + 2], i, j + 2), finish(sum[e][f + 3], i, j + 3));
            } else {
#pragma unroll
                for (u32 q = 0; q < 4; ++q)
                    if (j + q < n) to[q] = finish(sum[e][f + q], i, j + q);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) gemm(float* arena, const u32* table) {
    __shared__ __align__(16) float shared[STAGES * 2 * STEP * (BIG + PAD)];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    if (item[6] >= 4 * BIG && item[7] >= 4 * BIG) product<BIG>(arena, item, group, shared);
    else product<TILE>(arena, item, group, shared);
}
