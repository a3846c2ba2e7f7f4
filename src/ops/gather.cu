// out_ij <- A[rows_i, cols_j], or A[cols_j, rows_i] where transposed, indices stored as numbers; ENTRIES entries a
// workgroup, numbered along the rows.
// words: a a_stride out out_stride rows cols rowindex colindex transposed
extern "C" __global__ void __launch_bounds__(THREADS) gather(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    const float* a = arena + item[0];
    float* out = arena + item[2];
    u32 a_stride = item[1], out_stride = item[3], cols = item[5];
    const float* row = item[6] == NONE ? nullptr : arena + item[6];
    const float* col = item[7] == NONE ? nullptr : arena + item[7];
    u32 from = group * ENTRIES, rest = item[4] * cols - from;
#pragma unroll 4
    for (u32 step = 0; step < ENTRIES / THREADS; ++step) {
        u32 offset = step * THREADS + threadIdx.x;
        if (offset >= rest) return;
        u32 i = (from + offset) / cols, j = (from + offset) % cols;
        u32 from_row = row ? (u32)row[i] : i, from_col = col ? (u32)col[j] : j;
        size_t place = item[8] ? (size_t)from_col * a_stride + from_row : (size_t)from_row * a_stride + from_col;
        out[(size_t)i * out_stride + j] = a[place];
    }
}
