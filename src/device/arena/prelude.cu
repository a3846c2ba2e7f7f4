// Stands before every kernel of an arena. A kernel has two parameters, the arena and the table of this launch:
//
//     extern "C" __global__ void __launch_bounds__(THREADS) NAME(float* arena, const unsigned* table)
//
// table: items, groups, stride, 0, then for each item `stride` words, the first of them its first workgroup.

typedef unsigned int u32;

// The place of an operand that is not there.
constexpr u32 NONE = 0xffffffffu;

// A word that is a float.
__device__ __forceinline__ float float_of(u32 word) { return __uint_as_float(word); }

// +1 for 0.
__device__ __forceinline__ float sign_of(float x) { return x < 0.0f ? -1.0f : 1.0f; }

// The sum over the lanes of a warp, in every lane; always added in the same order.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(~0u, value, width);
    return value;
}

// The sum over a workgroup, in every thread; `parts` has room for 32 numbers in shared memory. Two barriers.
__device__ __forceinline__ float group_sum(float value, float* parts) {
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < THREADS / 32 ? parts[threadIdx.x % 32] : 0.0f;
    return warp_sum(value);
}

// The largest over a workgroup, in every thread; `parts` has room for 32 numbers. Two barriers.
__device__ __forceinline__ float group_max(float value, float* parts) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = parts[threadIdx.x % (THREADS / 32)];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
    return value;
}

// Queues the copy of a number to shared memory; of 0 where it is not there, and nothing is read then.
__device__ __forceinline__ void copy_4(float* to, const float* from, bool there) {
    u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(there ? 4 : 0) : "memory");
}

// The same of up to 4 numbers of 16 aligned bytes, zeros behind them.
__device__ __forceinline__ void copy_16(float* to, const float* from, u32 numbers) {
    u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(4 * numbers) : "memory");
}

// C += A B on tensor cores, A 16 x 8, B 8 x 8, of numbers rounded to TF32. Lane 4 g + t holds, of A, (g, t), (g + 8, t),
// (g, t + 4), (g + 8, t + 4); of B, (t, g), (t + 4, g); of C, (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
__device__ __forceinline__ void multiply_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Index of this workgroup among those of the launch; past the end where the grid was rounded up.
__device__ __forceinline__ u32 group_index() { return blockIdx.y * gridDim.x + blockIdx.x; }

// The words of the item that owns a workgroup, behind its first one; `group` becomes the workgroup within the item.
// Null past the end. Every thread of every kernel asks this before it touches the arena: launches are queued so that
// they may start early, and here is where they wait for the one before.
__device__ __forceinline__ const u32* find_item(const u32* table, u32& group) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    if (group >= table[1]) return nullptr;
    u32 stride = table[2], low = 0, high = table[0];
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (table[4 + middle * stride] <= group) low = middle; else high = middle;
    }
    const u32* item = table + 4 + low * stride;
    group -= item[0];
    return item + 1;
}
