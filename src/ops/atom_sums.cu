// out <- keep * out + alpha * sum over the list of an atom of u v, in the order of the list; a workgroup COLS columns of
// one atom, a thread a column. keep = 0 does not read.
// words: starts entries values u_stride count rows_an_atom rows v_stride out o_stride r keep alpha squares atoms
extern "C" __global__ void __launch_bounds__(THREADS) atom_sums(float* arena, const u32* table) {
    __shared__ u32 places[THREADS];
    __shared__ float codes[2][THREADS];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 r = item[10], tiles = (r + COLS - 1) / COLS, atom = group / tiles, tid = threadIdx.x;
    u32 c = group % tiles * COLS + tid, count = item[4], m = item[5];
    const u32* starts = (const u32*)arena + item[0];
    const u32* entries = (const u32*)arena + item[1];
    const float *values = arena + item[2], *rows = arena + item[6];
    u32 from = starts[atom], to = starts[atom + 1];
    float first = 0.0f, second = 0.0f, square[2] = {0.0f, 0.0f};
    for (u32 base = from; base < to; base += THREADS) {
        u32 here = min(to - base, (u32)THREADS);
        __syncthreads();
        if (tid < here) {
            u32 place = entries[base + tid], i = place / count, j = place % count;
            const float* u = values + (size_t)i * item[3] + j * m;
            places[tid] = i;
            codes[0][tid] = u[0];
            codes[1][tid] = m > 1 ? u[1] : 0.0f;
        }
        __syncthreads();
#pragma unroll 4
        for (u32 e = 0; e < here; ++e) {
            float v = c < r ? rows[(size_t)places[e] * item[7] + c] : 0.0f;
            first += codes[0][e] * v;
            second += codes[1][e] * v;
            square[0] += codes[0][e] * codes[0][e];
            square[1] += codes[1][e] * codes[1][e];
        }
    }
    float keep = float_of(item[11]), alpha = float_of(item[12]);
    for (u32 part = 0; part < m; ++part) {
        u32 row = atom * m + part;
        float* out = arena + item[8] + (size_t)row * item[9] + c;
        if (c < r) *out = (keep == 0.0f ? 0.0f : keep * *out) + alpha * (part ? second : first);
        if (c == 0 && item[13] != NONE) arena[item[13] + row] += square[part];
    }
}
