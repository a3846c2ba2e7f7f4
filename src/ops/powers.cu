// out <- A to a whole power, entry by entry; ENTRIES entries a workgroup.
// words: a a_stride out o_stride rows cols power
extern "C" __global__ void __launch_bounds__(THREADS) powers(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 cols = item[5], end = min(item[4] * cols, (group + 1) * ENTRIES);
    for (u32 e = group * ENTRIES + threadIdx.x; e < end; e += THREADS) {
        u32 i = e / cols, j = e % cols;
        float a = arena[item[0] + (size_t)i * item[1] + j], value = a;
        for (u32 k = 1; k < item[6]; ++k) value *= a;
        arena[item[2] + (size_t)i * item[3] + j] = value;
    }
}
