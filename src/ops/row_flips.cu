// Greedy sign flips of rows, entries in order, at most MAX_PASSES passes. words: s s_stride h q q_stride qs qs_stride c
// c_stride rows r tolerance flips
//
// A row is held in registers by as few warps as that takes, so a workgroup takes several rows and those left over do
// nothing. The next flip is the lowest entry behind the last one that wants to flip now: the order of a plain loop.

constexpr u32 OWN = 16, MOST_WARPS = THREADS / 32;

// Lane l of the row's warp w owns the entries 32 (e WARPS + w) + l.
template <u32 WARPS>
__device__ __forceinline__ void flip_row(float* arena, const u32* item, u32 group) {
    constexpr u32 ROWS = MOST_WARPS / WARPS;
    __shared__ u32 firsts[2][MOST_WARPS];
    u32 slot = threadIdx.x / (32 * WARPS), warp = threadIdx.x / 32 % WARPS, lane = threadIdx.x % 32;
    u32 i = group * ROWS + slot, r = item[10];
    if (i >= item[9]) return;
    float* s_row = arena + item[0] + (size_t)i * item[1];
    float* qs_row = arena + item[5] + (size_t)i * item[6];
    const float* c_row = arena + item[7] + (size_t)i * item[8];
    const float* q = arena + item[3];
    size_t q_stride = item[4];
    float h = arena[item[2] + i], tolerance = float_of(item[11]);
    float s[OWN], qs[OWN], c[OWN], d[OWN];
    auto entry = [&](u32 e) { return 32 * (e * WARPS + warp) + lane; };
#pragma unroll
    for (u32 e = 0; e < OWN; ++e) {
        u32 k = entry(e);
        bool there = k < r;
        s[e] = there ? s_row[k] : 1.0f;
        qs[e] = there ? qs_row[k] : 0.0f;
        c[e] = there ? c_row[k] : 0.0f;
        d[e] = there ? q[k * (q_stride + 1)] : 0.0f;
    }
    u32 flips = 0, turn = 0;
    for (u32 pass = 0; pass < MAX_PASSES; ++pass) {
        u32 before = flips, next = 0;
        while (true) {
            // Twice the lowest entry from `next` on that wants to flip, plus one where its sign is negative.
            u32 first = NONE;
#pragma unroll
            for (u32 e = OWN; e-- > 0;) {
                float change = 4.0f * h * s[e] * (c[e] - h * (qs[e] - d[e] * s[e]));
                bool wants = change < -tolerance * h * h * d[e] && entry(e) >= next;
                if (wants) first = 2 * entry(e) + (s[e] < 0.0f);
            }
            first = __reduce_min_sync(~0u, first);
            if (WARPS > 1) {
                turn ^= 1;
                if (lane == 0) firsts[turn][slot * WARPS + warp] = first;
                asm volatile("bar.sync %0, %1;" ::"r"(1 + slot), "n"(32 * WARPS) : "memory");
#pragma unroll
                for (u32 w = 0; w < WARPS; ++w) first = min(first, firsts[turn][slot * WARPS + w]);
            }
            if (first == NONE) break;
            u32 k = first / 2;
            float step = first % 2 ? 2.0f : -2.0f;
            const float* row = q + k * q_stride;
#pragma unroll
            for (u32 e = 0; e < OWN; ++e) {
                if (entry(e) < r) qs[e] += step * __ldg(row + entry(e));
                if (entry(e) == k) s[e] = -s[e];
            }
            next = k + 1;
            ++flips;
        }
        if (flips == before) break;
    }
#pragma unroll
    for (u32 e = 0; e < OWN; ++e) {
        u32 k = entry(e);
        if (k >= r) continue;
        s_row[k] = s[e];
        qs_row[k] = qs[e];
    }
    if (warp == 0 && lane == 0) arena[item[12] + i] = flips;
}

extern "C" __global__ void __launch_bounds__(THREADS) row_flips(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 r = item[10];
    if (r <= 32 * OWN) flip_row<1>(arena, item, group);
    else if (r <= 64 * OWN) flip_row<2>(arena, item, group);
    else if (r <= 128 * OWN) flip_row<4>(arena, item, group);
    else flip_row<8>(arena, item, group);
}
