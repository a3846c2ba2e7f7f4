// Signs and scales of `width` columns (rows of s, ks, b here), one after another, with the error fed on. One workgroup
// an item; of its warps as few work as hold a column in registers, since what costs time is their agreement.
// words: s s_stride ks ks_stride b b_stride k k_stride rt rt_stride e e_stride n r start width g flips tolerance
//        scale_tolerance
//
// A flip is a chain: the change of every entry, the lowest over lanes (two `redux`) and over warps (shared memory, one
// barrier), a row of K from L1 or L2, the new K s. Row k of K is asked for as soon as k is known.

constexpr u32 MOST = 4096;

// The lowest change over some entries, as the bits of a negative float (the larger, the lower), and twice its entry,
// plus one where its sign is negative.
struct Best {
    u32 bits, place;
};

struct Shared {
    // K_kk of every entry.
    float diagonal[MOST];
    uint2 best[2][8];
    float parts[2][8];
};

// One column, spread over WARPS warps: lane l of warp w owns the entries 32 (e WARPS + w) + l.
template <u32 OWN, u32 WARPS>
struct Search {
    Shared& shared;
    const float* k;
    size_t k_stride;
    u32 r;
    // gd: g K_kk
    float s[OWN], ks[OWN], b[OWN], gd[OWN];
    u32 turn = 0;

    __device__ Search(Shared& shared, const float* k, size_t k_stride, u32 r)
        : shared(shared), k(k), k_stride(k_stride), r(r) {
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) shared.diagonal[entry(e)] = entry(e) < r ? k[entry(e) * (k_stride + 1)] : 1.0f;
        barrier();
    }

    static __device__ __forceinline__ u32 entry(u32 e) {
        return 32 * (e * WARPS + threadIdx.x / 32) + threadIdx.x % 32;
    }

    static __device__ __forceinline__ void barrier() {
        if (WARPS == 1) __syncwarp();
        else asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");
    }

    __device__ __forceinline__ float sum(float value) {
        value = warp_sum(value);
        if (WARPS == 1) return value;
        turn ^= 1;
        if (threadIdx.x % 32 == 0) shared.parts[turn][threadIdx.x / 32] = value;
        barrier();
        value = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WARPS; ++w) value += shared.parts[turn][w];
        return value;
    }

    // g = b.s / s'Ks, made positive by negating s; what depends on g for each entry.
    __device__ float fit_scale() {
        float energy = 0.0f, product = 0.0f;
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) {
            energy += s[e] * ks[e];
            product += b[e] * s[e];
        }
        energy = sum(energy);
        product = sum(product);
        float g = energy > 0.0f ? product / energy : 0.0f;
        float sign = g < 0.0f ? -1.0f : 1.0f;
        g = fabsf(g);
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) {
            s[e] *= sign;
            ks[e] *= sign;
            gd[e] = g * shared.diagonal[entry(e)];
        }
        return g;
    }

    // The entry whose flip changes the error most, the lowest one on a tie; with change / 4g as its value.
    __device__ __forceinline__ Best best_flip(float g) {
        float change[OWN], lowest = 0.0f;
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) change[e] = s[e] * (b[e] - g * ks[e]) + gd[e];
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) lowest = fminf(lowest, change[e]);
        u32 bits = __reduce_max_sync(~0u, __float_as_uint(lowest));
        u32 mine = NONE;
        float sign = 1.0f;
#pragma unroll
        for (u32 e = OWN; e-- > 0;)
            if (__float_as_uint(change[e]) == bits) mine = 2 * entry(e), sign = s[e];
        u32 place = __reduce_min_sync(~0u, mine + (sign < 0.0f));
        if (WARPS == 1) return {bits, place};
        turn ^= 1;
        if (threadIdx.x % 32 == 0) shared.best[turn][threadIdx.x / 32] = make_uint2(bits, place);
        barrier();
        Best best = {0, NONE};
#pragma unroll
        for (u32 w = 0; w < WARPS; ++w) {
            uint2 other = shared.best[turn][w];
            if (other.x > best.bits || (other.x == best.bits && other.y < best.place)) best = {other.x, other.y};
        }
        return best;
    }

    // Flips the best entry; false where no flip is worth it.
    __device__ __forceinline__ bool improve(float g, float tolerance) {
        Best best = best_flip(g);
        u32 flipped = best.place / 2;
        if (flipped >= r) return false;
        const float* row = k + flipped * k_stride;
        float step[OWN];
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) step[e] = entry(e) < r ? __ldg(row + entry(e)) : 0.0f;
        float energy = shared.diagonal[flipped];
        if (!(4.0f * g * __uint_as_float(best.bits) < -tolerance * g * g * energy)) return false;
        float twice = best.place % 2 ? 2.0f : -2.0f;
#pragma unroll
        for (u32 e = 0; e < OWN; ++e)
            if (entry(e) == flipped) s[e] = -s[e];
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) ks[e] += twice * step[e];
        return true;
    }

    __device__ float search(float tolerance, float scale_tolerance, u32& flips) {
        float g = fit_scale();
        flips = 0;
        for (u32 round = 0; round < MAX_ROUNDS; ++round) {
            u32 before = flips;
            while (flips - before < 4 * r && improve(g, tolerance)) ++flips;
            float fitted = fit_scale();
            bool settled = fabsf(fitted - g) <= scale_tolerance * fabsf(g);
            g = fitted;
            if (flips == before || settled) break;
        }
        return g;
    }
};

template <u32 OWN, u32 WARPS>
__device__ __forceinline__ void columns(float* arena, const u32* item, Shared& shared) {
    if (threadIdx.x >= 32 * WARPS) return;
    u32 r = item[13], start = item[14], end = start + item[15];
    float* e_rows = arena + item[10];
    size_t e_stride = item[11];
    Search<OWN, WARPS> search(shared, arena + item[6], item[7], r);
    for (u32 j = start; j < end; ++j) {
        float* s_row = arena + item[0] + (size_t)j * item[1];
        float* ks_row = arena + item[2] + (size_t)j * item[3];
        const float* b_row = arena + item[4] + (size_t)j * item[5];
        const float* feedback = arena + item[8] + (size_t)j * item[9];
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) {
            u32 k = search.entry(e);
            search.s[e] = k < r ? s_row[k] : 1.0f;
            search.ks[e] = k < r ? ks_row[k] : 0.0f;
            search.b[e] = k < r ? b_row[k] : 0.0f;
        }
        // A thread reads only errors that it wrote itself.
#pragma unroll 4
        for (u32 i = start; i < j; ++i) {
            float weight = feedback[i];
            const float* error = e_rows + (i - start) * e_stride;
#pragma unroll
            for (u32 e = 0; e < OWN; ++e)
                if (search.entry(e) < r) search.b[e] -= weight * error[search.entry(e)];
        }
        u32 flips;
        float g = search.search(float_of(item[18]), float_of(item[19]), flips), last = feedback[j];
        float* error = e_rows + (j - start) * e_stride;
#pragma unroll
        for (u32 e = 0; e < OWN; ++e) {
            u32 k = search.entry(e);
            if (k >= r) continue;
            s_row[k] = search.s[e];
            ks_row[k] = search.ks[e];
            error[k] = (search.b[e] - g * search.ks[e]) / last;
        }
        if (threadIdx.x == 0) {
            arena[item[16] + j] = g;
            arena[item[17] + j] = flips;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) column_search(float* arena, const u32* table) {
    __shared__ Shared shared;
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 r = item[13];
    if (r <= 256) columns<8, 1>(arena, item, shared);
    else if (r <= 416) columns<13, 1>(arena, item, shared);
    else if (r <= 512) columns<16, 1>(arena, item, shared);
    else if (r <= 1024) columns<16, 2>(arena, item, shared);
    else if (r <= 2048) columns<16, 4>(arena, item, shared);
    else columns<16, 8>(arena, item, shared);
}
