// m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g^2, x <- x - rate (c1 m) / (sqrt(c2 v) + epsilon); at the first step m
// and v are not read. ENTRIES numbers a workgroup.
// words: x g m v len b1 b2 c1 c2 rate epsilon first
extern "C" __global__ void __launch_bounds__(THREADS) adam(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    float *x = arena + item[0], *m = arena + item[2], *v = arena + item[3];
    const float* g = arena + item[1];
    u32 from = group * ENTRIES, rest = item[4] - from;
    float b1 = float_of(item[5]), b2 = float_of(item[6]), c1 = float_of(item[7]), c2 = float_of(item[8]);
    float rate = float_of(item[9]), epsilon = float_of(item[10]);
    bool first = item[11];
#pragma unroll 4
    for (u32 step = 0; step < ENTRIES / THREADS; ++step) {
        u32 offset = step * THREADS + threadIdx.x;
        if (offset >= rest) return;
        u32 k = from + offset;
        float slope = g[k], mean = (1.0f - b1) * slope, square = (1.0f - b2) * slope * slope;
        if (!first) {
            mean += b1 * m[k];
            square += b2 * v[k];
        }
        m[k] = mean;
        v[k] = square;
        x[k] -= rate * (c1 * mean) / (sqrtf(c2 * square) + epsilon);
    }
}
