// Conjugate gradients, one matrix and a step length for each column; ENTRIES entries a workgroup.
// words: x r p q z diagonal before curvature after len cols

__device__ __forceinline__ float ratio(float a, float b) { return b > 0.0f ? a / b : 0.0f; }

// x += alpha p, r -= alpha q, z = r / diagonal
extern "C" __global__ void __launch_bounds__(THREADS) conjugate_step(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 end = min(item[9], (group + 1) * ENTRIES), cols = item[10];
    for (u32 e = group * ENTRIES + threadIdx.x; e < end; e += THREADS) {
        u32 i = e / cols, j = e % cols;
        float alpha = ratio(arena[item[6] + j], arena[item[7] + j]);
        arena[item[0] + e] += alpha * arena[item[2] + e];
        float rest = arena[item[1] + e] - alpha * arena[item[3] + e];
        arena[item[1] + e] = rest;
        arena[item[4] + e] = ratio(1.0f, arena[item[5] + i]) * rest;
    }
}

// p = z + beta p
extern "C" __global__ void __launch_bounds__(THREADS) conjugate_turn(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 end = min(item[9], (group + 1) * ENTRIES), cols = item[10];
    for (u32 e = group * ENTRIES + threadIdx.x; e < end; e += THREADS) {
        u32 j = e % cols;
        float beta = ratio(arena[item[8] + j], arena[item[6] + j]);
        arena[item[2] + e] = arena[item[4] + e] + beta * arena[item[2] + e];
    }
}
