// Row i of A becomes row places_i of out; ENTRIES entries a workgroup, numbered along the rows of A.
// words: a a_stride out out_stride rows cols places
extern "C" __global__ void __launch_bounds__(THREADS) scatter(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 a_stride = item[1], out_stride = item[3], cols = item[5];
    u32 from = group * ENTRIES, rest = item[4] * cols - from;
#pragma unroll 4
    for (u32 step = 0; step < ENTRIES / THREADS; ++step) {
        u32 offset = step * THREADS + threadIdx.x;
        if (offset >= rest) return;
        u32 i = (from + offset) / cols, j = (from + offset) % cols;
        u32 place = (u32)arena[item[6] + i];
        arena[item[2] + (size_t)place * out_stride + j] = arena[item[0] + (size_t)i * a_stride + j];
    }
}
