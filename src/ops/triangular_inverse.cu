// out <- the inverses of a factor's diagonal blocks, zeros elsewhere; ENTRIES entries a workgroup.
// words: inverse n out out_stride; blocks are PANEL x PANEL, one after another
extern "C" __global__ void __launch_bounds__(THREADS) triangular_leaf(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    const float* blocks = arena + item[0];
    u32 n = item[1], from = group * ENTRIES, rest = n * n - from;
    float* out = arena + item[2];
#pragma unroll 4
    for (u32 step = 0; step < ENTRIES / THREADS; ++step) {
        u32 offset = step * THREADS + threadIdx.x;
        if (offset >= rest) return;
        u32 i = (from + offset) / n, j = (from + offset) % n;
        bool inside = i / PANEL == j / PANEL && j <= i;
        out[(size_t)i * item[3] + j] = inside ? blocks[(size_t)i * PANEL + j % PANEL] : 0.0f;
    }
}
