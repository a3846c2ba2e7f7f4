// Numbers of SplitMix64 at places of a counter.

typedef unsigned long long u64;

__device__ __forceinline__ u64 bits_of(u64 seed, u64 at) {
    u64 z = seed + at * 0x9e3779b97f4a7c15ull + 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

__device__ __forceinline__ float uniform_of(u32 half) { return (float)(half >> 8) / 16777216.0f; }

// Normal numbers by Box and Muller; ENTRIES entries a workgroup.
// words: out stride rows cols seed_high seed_low first deviation
extern "C" __global__ void __launch_bounds__(THREADS) random_normal(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 cols = item[3], end = min(item[2] * cols, (group + 1) * ENTRIES);
    u64 seed = (u64)item[4] << 32 | item[5];
    float deviation = float_of(item[7]);
    for (u32 e = group * ENTRIES + threadIdx.x; e < end; e += THREADS) {
        u32 i = e / cols, j = e % cols;
        u64 drawn = bits_of(seed, ((u64)item[6] + i) * cols + j);
        float u = 1.0f - uniform_of((u32)(drawn >> 32)), v = uniform_of((u32)drawn);
        arena[item[0] + (size_t)i * item[1] + j] = deviation * sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
    }
}

// Different atoms at even phases; a thread a row.
// words: support s_stride rows k values u_stride atoms seed_high seed_low first
extern "C" __global__ void __launch_bounds__(THREADS) random_code(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 i = group * THREADS + threadIdx.x;
    if (i >= item[2]) return;
    u64 seed = (u64)item[7] << 32 | item[8], at = ((u64)item[9] + i) * 256;
    u32* support = (u32*)arena + item[0] + (size_t)i * item[1];
    float* values = arena + item[4] + (size_t)i * item[5];
    for (u32 j = 0; j < item[3];) {
        u64 drawn = bits_of(seed, at++);
        u32 atom = (u32)(((drawn >> 32) * item[6]) >> 32);
        bool known = false;
        for (u32 b = 0; b < j; ++b) known |= support[b] == atom;
        if (known) continue;
        float v = 2.0f * uniform_of((u32)drawn);
        support[j] = atom;
        values[2 * j] = cospif(v);
        values[2 * j + 1] = sinpif(v);
        ++j;
    }
}
