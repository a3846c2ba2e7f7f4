// The gated activation out <- gate s o up, s = 1 / (1 + e^-a(gate)), that keeps both inputs, and its gradient, which takes
// their places: gate <- dout o up o s (1 + gate (1 - s) a'(gate)), up <- dout o gate s. a(g) = g is SiLU,
// a(g) = 2 sqrt(2/pi) (g + 0.044715 g^3) the tanh form of GELU. ENTRIES entries a workgroup, numbered along the rows.
// words: gate gate_stride up up_stride out out_stride rows cols gelu (out is dout backward)

// As on the host: e^x stays finite.
constexpr float HIGHEST = 88.3f;

template <bool BACKWARD>
__device__ __forceinline__ void gated(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 cols = item[7], from = group * ENTRIES, rest = item[6] * cols - from;
    float linear = item[8] ? 1.595769f : 1.0f, cubic = item[8] ? 0.044715f : 0.0f;
#pragma unroll 4
    for (u32 step = 0; step < ENTRIES / THREADS; ++step) {
        u32 offset = step * THREADS + threadIdx.x;
        if (offset >= rest) return;
        u32 i = (from + offset) / cols, j = (from + offset) % cols;
        float* gate = arena + item[0] + (size_t)i * item[1] + j;
        float* up = arena + item[2] + (size_t)i * item[3] + j;
        float* out = arena + item[4] + (size_t)i * item[5] + j;
        float g = *gate, u = *up, z = linear * (g + cubic * g * g * g), s = 1.0f / (1.0f + expf(fminf(-z, HIGHEST)));
        if (BACKWARD) {
            float d = *out;
            *gate = d * u * s * (1.0f + g * (1.0f - s) * linear * (1.0f + 3.0f * cubic * g * g));
            *up = d * g * s;
        } else {
            *out = g * s * u;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gated_kept(float* arena, const u32* table) {
    gated<false>(arena, table);
}

extern "C" __global__ void __launch_bounds__(THREADS) gated_backward(float* arena, const u32* table) {
    gated<true>(arena, table);
}
