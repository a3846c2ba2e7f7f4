// Turns the pairs (x_i, x_{i + d/2}) of every head of a row by its position's angles; PAIRS pairs a workgroup, numbered
// along the rows. Row p of turns holds d/2 pairs of cosine and sine.
// words: x x_stride rows cols head_dim turns positions window; without positions, row i is at i % window
extern "C" __global__ void __launch_bounds__(THREADS) rope(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 stride = item[1], across = item[3] / 2, dim = item[4], half = dim / 2, positions = item[6], window = item[7];
    u32 from = group * PAIRS, rest = item[2] * across - from;
#pragma unroll 4
    for (u32 step = 0; step < PAIRS / THREADS; ++step) {
        u32 offset = step * THREADS + threadIdx.x;
        if (offset >= rest) return;
        u32 row = (from + offset) / across, pair = (from + offset) % across;
        u32 position = positions == NONE ? row % window : (u32)arena[positions + row];
        float* x = arena + item[0] + (size_t)row * stride + pair / half * dim + pair % half;
        const float* turn = arena + item[5] + (size_t)position * dim + pair % half * 2;
        float a = x[0], b = x[half], cosine = turn[0], sine = turn[1];
        x[0] = a * cosine - b * sine;
        x[half] = b * cosine + a * sine;
    }
}
