// C <- alpha op(A) op(B) + beta C on tensor cores, many products at once: operands rounded to TF32, sums in f32, always
// in the same order. Words as in gemm.cu; of the flags those of transposition alone.
//
// A workgroup computes TILE x TILE entries of C, its eight warps 32 x 16 each. Operands pass by STEP of k at a time, one
// step ahead, as they lie in memory: rows of k numbers or of TILE numbers, in either case with a pitch that keeps the
// fragments of a warp on different banks.

constexpr u32 A_TRANSPOSED = 1, B_TRANSPOSED = 2, STEP = 32, STAGE = TILE * (STEP + 4);

__device__ __forceinline__ u32 rounded(float x) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

// One operand: TILE rows (or columns) of it, over all of k.
struct Operand {
    const float* from;
    u32 stride, limit, depth;
    // Whether k is the contiguous direction; whether copies of 16 bytes are aligned.
    bool along_k, aligned;

    __device__ Operand(const float* matrix, u32 stride, u32 first, u32 size, u32 depth, bool along_k)
        : from(matrix + (along_k ? (size_t)first * stride : first)), stride(stride), limit(size - first), depth(depth),
          along_k(along_k), aligned(stride % 4 == 0 && (size_t)from % 16 == 0) {}

    __device__ __forceinline__ u32 row_pitch() const { return along_k ? STEP + 4 : 1; }
    __device__ __forceinline__ u32 k_pitch() const { return along_k ? 1 : TILE + 8; }

    // Queues the copy of STEP of k from k0 on; 0 outside.
    __device__ __forceinline__ void fetch(float* stage, u32 k0) const {
        u32 width = along_k ? STEP : TILE, pitch = along_k ? STEP + 4 : TILE + 8;
        u32 rows = along_k ? limit : depth - min(depth, k0), cols = along_k ? depth - min(depth, k0) : limit;
        const float* start = from + (along_k ? k0 : (size_t)k0 * stride);
        u32 own = aligned ? 4 : 1;
        for (u32 at = threadIdx.x * own; at < TILE * STEP; at += THREADS * own) {
            u32 row = at / width, col = at % width;
            u32 numbers = row < rows && col < cols ? min(own, cols - col) : 0;
            const float* source = numbers ? start + ((size_t)row * stride + col) : from;
            if (aligned) copy_16(stage + row * pitch + col, source, numbers);
            else copy_4(stage + row * pitch + col, source, numbers);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 2) gemm_tf32(float* arena, const u32* table) {
    __shared__ __align__(16) float shared[4 * STAGE];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 m = item[6], n = item[7], depth = item[8], flags = item[9];
    u32 across = (n + TILE - 1) / TILE, i0 = group / across * TILE, j0 = group % across * TILE;
    Operand a(arena + item[0], item[1], i0, m, depth, !(flags & A_TRANSPOSED));
    Operand b(arena + item[2], item[3], j0, n, depth, flags & B_TRANSPOSED);
    u32 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    u32 row = warp / 4 * 32 + g, column = warp % 4 * 16 + g;
    u32 a_row = a.row_pitch(), a_k = a.k_pitch(), b_row = b.row_pitch(), b_k = b.k_pitch();
    float sum[2][2][4] = {};
    u32 steps = (depth + STEP - 1) / STEP;
    a.fetch(shared, 0);
    b.fetch(shared + STAGE, 0);
    for (u32 step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        if (step + 1 < steps) {
            float* next = shared + (step + 1) % 2 * 2 * STAGE;
            a.fetch(next, (step + 1) * STEP);
            b.fetch(next + STAGE, (step + 1) * STEP);
        }
        const float* left = shared + step % 2 * 2 * STAGE + row * a_row + t * a_k;
        const float* right = shared + step % 2 * 2 * STAGE + STAGE + column * b_row + t * b_k;
#pragma unroll
        for (u32 k = 0; k < STEP; k += 8) {
            u32 x[2][4], y[2][2];
#pragma unroll
            for (u32 e = 0; e < 2; ++e) {
                const float* of = left + 16 * e * a_row + k * a_k;
                x[e][0] = rounded(of[0]);
                x[e][1] = rounded(of[8 * a_row]);
                x[e][2] = rounded(of[4 * a_k]);
                x[e][3] = rounded(of[8 * a_row + 4 * a_k]);
            }
#pragma unroll
            for (u32 f = 0; f < 2; ++f) {
                const float* of = right + 8 * f * b_row + k * b_k;
                y[f][0] = rounded(of[0]);
                y[f][1] = rounded(of[4 * b_k]);
            }
#pragma unroll
            for (u32 e = 0; e < 2; ++e)
#pragma unroll
                for (u32 f = 0; f < 2; ++f) multiply_tf32(sum[e][f], x[e], y[f][0], y[f][1]);
        }
    }
    float alpha = float_of(item[10]), beta = float_of(item[11]);
#pragma unroll
    for (u32 e = 0; e < 2; ++e)
#pragma unroll
        for (u32 f = 0; f < 2; ++f)
#pragma unroll
            for (u32 c = 0; c < 4; ++c) {
                u32 i = i0 + row + 16 * e + c / 2 * 8, j = j0 + warp % 4 * 16 + 8 * f + 2 * t + c % 2;
                if (i >= m || j >= n) continue;
                float* to = arena + item[4] + (size_t)i * item[5] + j;
                float value = alpha * sum[e][f][c];
                *to = beta != 0.0f ? value + beta * *to : value;
            }
}
