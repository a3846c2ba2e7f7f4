// gate <- gate / (1 + e^-a(gate)) o up. a(g) = g is SiLU, a(g) = 2 sqrt(2/pi) (g + 0.044715 g^3) the tanh form of GELU.
// ENTRIES entries a workgroup, numbered along the rows.
// words: gate gate_stride up up_stride rows cols gelu

// As on the host: e^x stays finite.
constexpr float HIGHEST = 88.3f;

extern "C" __global__ void __launch_bounds__(THREADS) gated(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 gate_stride = item[1], up_stride = item[3], cols = item[5];
    float linear = item[6] ? 1.595769f : 1.0f, cubic = item[6] ? 0.044715f : 0.0f;
    u32 from = group * ENTRIES, rest = item[4] * cols - from;
#pragma unroll 4
    for (u32 step = 0; step < ENTRIES / THREADS; ++step) {
        u32 offset = step * THREADS + threadIdx.x;
        if (offset >= rest) return;
        u32 i = (from + offset) / cols, j = (from + offset) % cols;
        float* gate = arena + item[0] + (size_t)i * gate_stride + j;
        float g = *gate, z = linear * (g + cubic * g * g * g);
        *gate = g / (1.0f + expf(fminf(-z, HIGHEST))) * arena[item[2] + (size_t)i * up_stride + j];
    }
}
