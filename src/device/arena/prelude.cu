// Stands before every kernel of an arena. A kernel has two parameters, the arena and the table of this launch:
//
//     extern "C" __global__ void __launch_bounds__(THREADS) NAME(float* arena, const unsigned* table)
//
// table: items, groups, stride, 0, then for each item `stride` words, the first of them its first workgroup.

typedef unsigned int u32;

// Index of this workgroup among those of the launch; past the end where the grid was rounded up.
__device__ __forceinline__ u32 group_index() { return blockIdx.y * gridDim.x + blockIdx.x; }

// The words of the item that owns a workgroup, behind its first one; `group` becomes the workgroup within the item.
// Null past the end.
__device__ __forceinline__ const u32* find_item(const u32* table, u32& group) {
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
