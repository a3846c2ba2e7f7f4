// Signs and scales of `width` columns (rows of s, ks, b here), one after another, with the error fed on. One workgroup
// an item. words: s s_stride ks ks_stride b b_stride k k_stride rt rt_stride e e_stride n r start width g flips
// tolerance scale_tolerance
//
// A column is searched by a few warps that hold it in registers; the others meanwhile take the errors known so far off
// the next column. A flip is a chain: a row of K from L1 or L2, the change of every entry, the lowest over lanes (two
// `redux`) and over warps (shared memory, one barrier). On an H200 it takes 0.3 to 0.5 us, most of which is latency:
// reading rows of the next candidates ahead gained nothing, four entries a lane instead of thirteen a quarter.

static_assert(THREADS == 256, "eight warps");

// Orders up to this leave warps free to prepare the next column.
constexpr u32 MOST_PREPARED = 2048, MOST = 4096;

struct Shared {
    float diagonal[MOST];
    // B's next column, less the errors known so far; the columns take turns.
    float prepared[2][MOST_PREPARED];
    uint2 best[2][8];
    float2 parts[2][8];
};

// One column, spread over WARPS warps: lane l of warp w owns the entries 32 (e WARPS + w) + l.
template <u32 OWN, u32 WARPS>
struct Search {
    Shared& shared;
    const float* k;
    size_t k_stride;
    u32 r, turn;
    // change: of the error by a flip, over 4g: s (b - g ks) + g K_kk. A flip negates that of its own entry, K_kk's part
    // included.
    float s[OWN], ks[OWN], b[OWN], change[OWN];

    static __device__ __forceinline__ u32 entry(u32 e) {
        return 32 * (e * WARPS + threadIdx.x / 32) + threadIdx.x % 32;
    }

    static __device__ __forceinline__ void barrier() {
        if (WARPS > 1) asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");
    }

    // g = b.s / s'Ks, made positive by negating s; all changes afresh.
    __device__ __forceinline__ float fit_scale() {
        float energy = 0.0f, product = 0.0f;
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) {
            energy += s[e] * ks[e];
            product += b[e] * s[e];
        }
#pragma unroll
        for (int width = 16; width > 0; width /= 2) {
            energy += __shfl_xor_sync(~0u, energy, width);
            product += __shfl_xor_sync(~0u, product, width);
        }
        if (WARPS > 1) {
            turn ^= 1;
            if (threadIdx.x % 32 == 0) shared.parts[turn][threadIdx.x / 32] = make_float2(energy, product);
            barrier();
            energy = product = 0.0f;
#pragma unroll
            for (u32 w = 0; w < WARPS; ++w) {
                energy += shared.parts[turn][w].x;
                product += shared.parts[turn][w].y;
            }
        }
        float g = energy > 0.0f ? product / energy : 0.0f, sign = g < 0.0f ? -1.0f : 1.0f;
        g = fabsf(g);
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) {
            s[e] *= sign;
            ks[e] *= sign;
            change[e] = s[e] * (b[e] - g * ks[e]) + g * shared.diagonal[entry(e)];
        }
        return g;
    }

    // The lowest change, as the bits of a negative float (the larger, the lower; 0 where none is negative), and twice
    // its entry, the lowest one on a tie, plus one where its sign is negative.
    __device__ __forceinline__ uint2 best_flip() {
        float lowest[OWN];
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) lowest[e] = change[e];
#pragma unroll
        for (u32 width = 1; width < OWN; width *= 2)
#pragma unroll
            for (u32 e = 0; e + width < OWN; e += 2 * width) lowest[e] = fminf(lowest[e], lowest[e + width]);
        u32 own = __float_as_uint(fminf(lowest[0], 0.0f)), bits = __reduce_max_sync(~0u, own);
        // Beside that reduction: which entry of this lane it would be.
        u32 place = 0;
        float sign = 1.0f;
#pragma unroll
        for (u32 e = OWN; e-- > 0;)
            if (change[e] == lowest[0]) place = 2 * entry(e), sign = s[e];
        place += __float_as_uint(sign) >> 31;
        place = __reduce_min_sync(~0u, own == bits ? place : NONE);
        if (WARPS == 1) return make_uint2(bits, place);
        turn ^= 1;
        if (threadIdx.x % 32 == 0) shared.best[turn][threadIdx.x / 32] = make_uint2(bits, place);
        barrier();
        uint2 best = make_uint2(0, NONE);
#pragma unroll
        for (u32 w = 0; w < WARPS; ++w) {
            uint2 other = shared.best[turn][w];
            if (other.x > best.x || (other.x == best.x && other.y < best.y)) best = other;
        }
        return best;
    }

    // Flips while that is worth it, at most `most` times; returns how often.
    __device__ __forceinline__ u32 improve(float g, float tolerance, u32 most) {
        const float* own = k + entry(0);
        for (u32 flips = 0; flips < most; ++flips) {
            uint2 best = best_flip();
            u32 flipped = best.y / 2;
            if (best.x == 0 || flipped >= r) return flips;
            const float* row = own + flipped * k_stride;
            float column[OWN];
#pragma unroll
            for (u32 e = 0; e < OWN; ++e) column[e] = entry(e) < r ? __ldg(row + 32 * WARPS * e) : 0.0f;
            float energy = shared.diagonal[flipped];
            if (!(4.0f * g * __uint_as_float(best.x) < -tolerance * g * g * energy)) return flips;
            float twice = best.y % 2 ? 2.0f : -2.0f, pull = -g * twice;
            float weight[OWN];
#pragma unroll
            for (u32 e = 0; e < OWN; ++e) {
                weight[e] = s[e] * pull;
                if (entry(e) == flipped) {
                    s[e] = -s[e];
                    weight[e] = 0.0f;
                    change[e] = -change[e];
                }
            }
#pragma unroll
            for (u32 e = 0; e < OWN; ++e) change[e] += weight[e] * column[e];
#pragma unroll
            for (u32 e = 0; e < OWN; ++e) ks[e] += twice * column[e];
        }
        return most;
    }

    __device__ __forceinline__ float search(float tolerance, float scale_tolerance, u32& flips) {
        float g = fit_scale();
        flips = 0;
#pragma unroll 1
        for (u32 round = 0; round < MAX_ROUNDS; ++round) {
            u32 taken = improve(g, tolerance, 4 * r);
            flips += taken;
            float fitted = fit_scale();
            bool settled = fabsf(fitted - g) <= scale_tolerance * fabsf(g);
            g = fitted;
            if (taken == 0 || settled) break;
        }
        return g;
    }
};

// b less the errors of the columns before `end` of this launch, for the entries k, k + step, ...
__device__ __forceinline__ void prepare(const float* b, const float* feedback, const float* errors, size_t e_stride,
                                        u32 known, u32 k, u32 step, u32 r, float* to) {
    for (; k < r; k += step) {
        float value = b[k];
#pragma unroll 16
        for (u32 i = 0; i < known; ++i) value -= feedback[i] * errors[i * e_stride + k];
        to[k] = value;
    }
}

template <u32 OWN, u32 WARPS>
__device__ __forceinline__ void columns(float* arena, const u32* item, Shared& shared) {
    constexpr u32 SEARCHERS = 32 * WARPS;
    constexpr bool PREPARED = SEARCHERS < THREADS;
    u32 r = item[13], start = item[14], width = item[15];
    const float* k = arena + item[6];
    const float* feedback = arena + item[8] + (size_t)start * item[9] + start;
    float* errors = arena + item[10];
    size_t k_stride = item[7], e_stride = item[11], b_stride = item[5], rt_stride = item[9];
    const float* b = arena + item[4] + start * b_stride;
    for (u32 i = threadIdx.x; i < OWN * SEARCHERS; i += THREADS) {
        shared.diagonal[i] = i < r ? k[i * (k_stride + 1)] : 1.0f;
        if (PREPARED && i < r) shared.prepared[0][i] = b[i];
    }
    __syncthreads();
    if (threadIdx.x >= SEARCHERS) {
        for (u32 j = 1; j < width; ++j) {
            prepare(b + j * b_stride, feedback + j * rt_stride, errors, e_stride, j - 1, threadIdx.x - SEARCHERS,
                    THREADS - SEARCHERS, r, shared.prepared[j % 2]);
            __syncthreads();
        }
        return;
    }
    Search<OWN, WARPS> search{shared, k, k_stride, r, 0};
    float last[OWN] = {};
    for (u32 j = 0; j < width; ++j) {
        float* s_row = arena + item[0] + (size_t)(start + j) * item[1];
        float* ks_row = arena + item[2] + (size_t)(start + j) * item[3];
        const float* weights = feedback + j * rt_stride;
        float weight = j > 0 ? weights[j - 1] : 0.0f;
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) {
            u32 i = search.entry(e);
            bool there = i < r;
            search.s[e] = there ? s_row[i] : 1.0f;
            search.ks[e] = there ? ks_row[i] : 0.0f;
            if (PREPARED) search.b[e] = there ? shared.prepared[j % 2][i] : 0.0f;
            else search.b[e] = there ? b[j * b_stride + i] : 0.0f;
        }
        if (!PREPARED)
#pragma unroll 2
            for (u32 i = 0; i + 1 < j; ++i)
#pragma unroll
                for (u32 e = 0; e < OWN; ++e)
                    if (search.entry(e) < r) search.b[e] -= weights[i] * errors[i * e_stride + search.entry(e)];
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) search.b[e] -= weight * last[e];
        u32 flips;
        float g = search.search(float_of(item[18]), float_of(item[19]), flips), own = weights[j];
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) {
            u32 i = search.entry(e);
            last[e] = (search.b[e] - g * search.ks[e]) / own;
            if (i >= r) continue;
            s_row[i] = search.s[e];
            ks_row[i] = search.ks[e];
            errors[j * e_stride + i] = last[e];
        }
        if (threadIdx.x == 0) {
            arena[item[16] + start + j] = g;
            arena[item[17] + start + j] = flips;
        }
        if (PREPARED && j + 1 < width) __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) column_search(float* arena, const u32* table) {
    __shared__ Shared shared;
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 r = item[13];
    if (r <= 192) columns<6, 1>(arena, item, shared);
    else if (r <= 512) columns<4, 4>(arena, item, shared);
    else if (r <= 1024) columns<8, 4>(arena, item, shared);
    else if (r <= 1536) columns<12, 4>(arena, item, shared);
    else if (r <= MOST_PREPARED) columns<16, 4>(arena, item, shared);
    else if (r <= 3072) columns<12, 8>(arena, item, shared);
    else columns<16, 8>(arena, item, shared);
}
