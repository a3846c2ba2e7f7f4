// Causal grouped-query attention and its gradient on tensor cores: formulas and words are those of
// attention_backward.cu. Operands are rounded to the 11 significant bits of TF32; sums and exponentials are f32.
//
// A workgroup owns ROWS rows of one head of its result; tiles of COLS rows of the other side pass by in a fixed order,
// one step ahead, by asynchronous copies, and nothing is added by two workgroups. A warp owns 16 rows and every column
// of its part of a tile: the tile's columns are shared out among as many parts as there are warps for the same rows,
// and the parts' sums are added in the end, in a fixed order.
//
// Products are those of multiply_tf32, which says what lane 4 g + t holds. So that weights go from C to A without leaving
// their lane, rows 2t and 2t + 1 of a tile stand for t and t + 4 there; so that results leave in fours, column 4 g + j
// of 32 stands for column g of product j. Rows of tiles are 4 numbers longer than a multiple of 32: both ways of reading
// them then touch every bank once.
//
// Shared memory: what is owned, then two stages of two tiles. Heads have at most DIM numbers; behind a row of dout
// there is its number of `inner`, in `attention_keys` behind one of q its number of log_sums.

constexpr u32 DIM = 64 * CHUNKS, PITCH = DIM + 4, DEPTH = DIM / 8, WARPS = THREADS / 32;
// What no query sees is far below LOWEST, also times a scale, and LOWEST far below any score: a row of which a tile holds
// nothing keeps LOWEST as its largest, and its weights there are 0.
constexpr float LOWEST = -1.0e28f, UNSEEN = -3.0e38f, LOG2_E = 1.44269504f, LN_2 = 0.69314718f;

extern __shared__ __align__(16) float shared[];

struct Window {
    u32 rows, heads, kv_heads, dim, reach;
    float scale;

    __device__ Window(const u32* item)
        : rows(item[8]), heads(item[9]), kv_heads(item[10]), dim(item[11]), reach(item[12]), scale(float_of(item[13])) {}

    // Below 0 wraps round to more than any reach.
    __device__ __forceinline__ bool sees(u32 query, u32 key) const { return query - key < reach; }

    // Whether any of these queries sees any of these keys, and whether all see all.
    __device__ __forceinline__ bool any(u32 query, u32 queries, u32 key, u32 keys) const {
        return key < query + queries && query < key + keys + reach - 1;
    }
    __device__ __forceinline__ bool all(u32 query, u32 queries, u32 key, u32 keys) const {
        return key + keys <= query + 1 && query + queries <= key + reach;
    }
};

// Columns of one head of a matrix.
struct Head {
    float* at;
    u32 stride;

    __device__ Head(float* arena, const u32* words, u32 column) : at(arena + words[0] + column), stride(words[1]) {}

    __device__ __forceinline__ bool aligned() const { return stride % 4 == 0 && (size_t)at % 16 == 0; }
};

// What a warp does in its workgroup, and a lane in its warp.
template <u32 ROWS, u32 COLS>
struct Lane {
    static constexpr u32 PARTS = WARPS * 16 / ROWS, N = COLS / PARTS / 8;
    static_assert(N >= 2 && N % 2 == 0 && 2 * COLS <= THREADS, "columns are read 16 at a time");
    u32 g, t, row, part;

    __device__ Lane() {
        u32 warp = threadIdx.x / 32;
        g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        row = warp % (ROWS / 16) * 16, part = warp / (ROWS / 16);
    }
};

// All copies of this thread have come; after the barrier, those of all threads.
__device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

// Queues the copy of `COUNT` rows from `first` on; 0 outside.
template <u32 COUNT>
__device__ __forceinline__ void fetch(float* tile, const Head& x, const Window& w, u32 first) {
    if (x.aligned()) {
        constexpr u32 FOURS = DIM / 4, STEP = THREADS / FOURS;
        u32 c = threadIdx.x % FOURS * 4, i = threadIdx.x / FOURS, numbers = c < w.dim ? min(4u, w.dim - c) : 0u;
        const float* from = x.at + (size_t)(first + i) * x.stride + c;
#pragma unroll
        for (u32 p = 0; p < COUNT; p += STEP, from += STEP * x.stride)
            copy_16(tile + (i + p) * PITCH + c, from, first + i + p < w.rows ? numbers : 0);
        return;
    }
    for (u32 p = threadIdx.x; p < COUNT * DIM; p += THREADS) {
        u32 c = p % DIM, i = p / DIM;
        bool there = first + i < w.rows && c < w.dim;
        copy_4(tile + i * PITCH + c, there ? x.at + (size_t)(first + i) * x.stride + c : x.at, there);
    }
}

// The nearest of TF32, as cvt.rna.tf32.f32 finds it: half of its last bit is added, and products leave out what is
// behind that bit. One instruction instead of three on Hopper; the larger of both keeps the NaN that arithmetic gives,
// all ones behind a sign of 0, which the sum would turn into a zero.
__device__ __forceinline__ u32 rounded(float x) {
    int bits = __float_as_int(x), sum = (int)((u32)bits + 0x1000u);
    return (u32)max(sum, bits);
}

// Four pieces of 8 rows x 4 columns: lanes 8 i to 8 i + 7 give the rows of piece i; lane 4 g + t gets (g, t) of each.
__device__ __forceinline__ void read_pieces(u32 (&value)[4], const float* row) {
    u32 address = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
                 : "r"(address)
                 : "memory");
#pragma unroll
    for (u32 i = 0; i < 4; ++i) value[i] = rounded(__uint_as_float(value[i]));
}

// 16 rows of a tile as left operands: in registers where there is room.
template <bool HELD>
struct Left {
    u32 held[HELD ? DEPTH : 1][4];
    const float* from;

    __device__ __forceinline__ Left(const float* rows) {
        u32 lane = threadIdx.x % 32;
        from = rows + lane % 16 * PITCH + lane / 16 * 4;
        if constexpr (HELD) {
#pragma unroll
            for (u32 k = 0; k < DEPTH; ++k) read_pieces(held[k], from + k * 8);
        }
    }

    __device__ __forceinline__ void read(u32 (&value)[4], u32 k) const {
        if constexpr (HELD) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) value[i] = held[k][i];
        } else {
            read_pieces(value, from + k * 8);
        }
    }
};

// sum_ij = a_i b_j, for 8 N rows b of a tile.
template <u32 N, bool HELD>
__device__ __forceinline__ void rows_times_rows(float (&sum)[N][4], const Left<HELD>& a, const float* tile) {
    u32 lane = threadIdx.x % 32;
    const float* from = tile + (lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 4;
#pragma unroll
    for (u32 n = 0; n < N; ++n)
#pragma unroll
        for (u32 i = 0; i < 4; ++i) sum[n][i] = 0.0f;
#pragma unroll
    for (u32 k = 0; k < DEPTH; ++k) {
        u32 left[4], right[4];
        a.read(left, k);
#pragma unroll
        for (u32 n = 0; n < N; n += 2) {
            read_pieces(right, from + n * 8 * PITCH + k * 8);
            multiply_tf32(sum[n], left, right[0], right[1]);
            multiply_tf32(sum[n + 1], left, right[2], right[3]);
        }
    }
}

// sum_i += sum over j of weights_ij b_j, for 8 N rows b of a tile.
template <u32 N>
__device__ __forceinline__ void weighted_rows(float (&sum)[DEPTH][4], const float (&weights)[N][4], const float* tile) {
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float* from = tile + 2 * t * PITCH + 4 * g;
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        u32 left[4] = {rounded(weights[n][0]), rounded(weights[n][2]), rounded(weights[n][1]), rounded(weights[n][3])};
#pragma unroll
        for (u32 c = 0; c < DEPTH; c += 4) {
            float4 x = *(const float4*)(from + n * 8 * PITCH + c * 8);
            float4 y = *(const float4*)(from + (n * 8 + 1) * PITCH + c * 8);
            multiply_tf32(sum[c], left, rounded(x.x), rounded(y.x));
            multiply_tf32(sum[c + 1], left, rounded(x.y), rounded(y.y));
            multiply_tf32(sum[c + 2], left, rounded(x.z), rounded(y.z));
            multiply_tf32(sum[c + 3], left, rounded(x.w), rounded(y.w));
        }
    }
}

// Hides the scores of a query and a key that it does not see; rows are queries, or keys where it is turned.
template <bool TURNED, u32 N>
__device__ __forceinline__ void hide(float (&score)[N][4], const Window& w, u32 rows, u32 columns) {
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (u32 n = 0; n < N; ++n)
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            u32 row = rows + i / 2 * 8 + g, column = columns + n * 8 + t * 2 + i % 2;
            if (!(TURNED ? w.sees(column, row) : w.sees(row, column))) score[n][i] = UNSEEN;
        }
}

// 2^x, with an error of two of its last bits.
__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The largest, and the sum, over the four lanes that share rows.
__device__ __forceinline__ float lanes_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
    return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}

__device__ __forceinline__ float lanes_sum(float value) {
    value += __shfl_xor_sync(~0u, value, 1);
    return value + __shfl_xor_sync(~0u, value, 2);
}

// The sum of all parts, in the first.
template <u32 ROWS, u32 COLS>
__device__ __forceinline__ void add_parts(float (&sum)[DEPTH][4], const Lane<ROWS, COLS>& lane) {
    float* room = shared + lane.row / 16 * (DEPTH * 4 * 32) + threadIdx.x % 32;
#pragma unroll
    for (u32 part = 1; part < Lane<ROWS, COLS>::PARTS; ++part) {
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < DEPTH * 4; ++k)
            if (lane.part == part) room[k * 32] = sum[k / 4][k % 4];
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < DEPTH * 4; ++k)
            if (lane.part == 0) sum[k / 4][k % 4] += room[k * 32];
    }
}

// The rows of a warp from `first` on, row e * 8 + g times factor e.
__device__ __forceinline__ void store(const Head& out, const float (&sum)[DEPTH][4], const Window& w, u32 first,
                                      float factor_0, float factor_1) {
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    bool aligned = out.aligned();
#pragma unroll
    for (u32 e = 0; e < 2; ++e) {
        u32 i = first + e * 8 + g;
        float factor = e ? factor_1 : factor_0;
        if (i >= w.rows) continue;
#pragma unroll
        for (u32 c = 0; c < DEPTH; c += 4)
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                u32 column = c * 8 + t * 8 + half * 4, at = e * 2 + half;
                float* to = out.at + (size_t)i * out.stride + column;
                float value[4] = {sum[c][at] * factor, sum[c + 1][at] * factor, sum[c + 2][at] * factor,
                                  sum[c + 3][at] * factor};
                if (aligned && column + 4 <= w.dim) {
                    *(float4*)to = make_float4(value[0], value[1], value[2], value[3]);
                } else {
#pragma unroll
                    for (u32 f = 0; f < 4; ++f)
                        if (column + f < w.dim) to[f] = value[f];
                }
            }
    }
}

// The first key that a tile of queries sees.
__device__ __forceinline__ u32 first_key(const Window& w, u32 first) {
    return first + 1 > w.reach ? first + 1 - w.reach : 0;
}

// out and log_sums; the longest rows go first.
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_kept(float* arena, const u32* table) {
    constexpr u32 ROWS = KEPT_ROWS, COLS = KEPT_COLS, N = Lane<ROWS, COLS>::N, STAGE = 2 * COLS * PITCH;
    static_assert(Lane<ROWS, COLS>::PARTS == 1, "a row's largest score is known to one warp");
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    Window w(item);
    Lane<ROWS, COLS> lane;
    u32 head = group % w.heads, first = ((w.rows + ROWS - 1) / ROWS - 1 - group / w.heads) * ROWS;
    u32 kv_head = head / (w.heads / w.kv_heads), start = first_key(w, first), end = min(first + ROWS, w.rows);
    Head k(arena, item + 2, kv_head * w.dim), v(arena, item + 4, kv_head * w.dim);
    float* stage = shared + ROWS * PITCH;
    fetch<ROWS>(shared, Head(arena, item, head * w.dim), w, first);
    fetch<COLS>(stage, k, w, start);
    fetch<COLS>(stage + COLS * PITCH, v, w, start);
    await_copies();
    Left<true> q(shared + lane.row * PITCH);
    float sum[DEPTH][4] = {}, largest[2] = {LOWEST, LOWEST}, total[2] = {}, scale = w.scale * LOG2_E;
    u32 rows = first + lane.row;
    for (u32 step = 0; start < end; ++step, start += COLS) {
        if (step) await_copies();
        const float* tile = stage + step % 2 * STAGE;
        if (start + COLS < end) {
            float* next = stage + (step + 1) % 2 * STAGE;
            fetch<COLS>(next, k, w, start + COLS);
            fetch<COLS>(next + COLS * PITCH, v, w, start + COLS);
        }
        if (!w.any(rows, 16, start, COLS)) continue;
        float score[N][4];
        rows_times_rows(score, q, tile);
        if (!w.all(rows, 16, start, COLS)) hide<false>(score, w, rows, start);
#pragma unroll
        for (u32 e = 0; e < 2; ++e) {
            float top = UNSEEN, part = 0.0f;
#pragma unroll
            for (u32 n = 0; n < N; ++n) top = fmaxf(top, fmaxf(score[n][e * 2], score[n][e * 2 + 1]));
            top = fmaxf(largest[e], scale * lanes_max(top));
#pragma unroll
            for (u32 n = 0; n < N; ++n)
#pragma unroll
                for (u32 i = e * 2; i < e * 2 + 2; ++i) part += score[n][i] = power(scale * score[n][i] - top);
            float keep = power(largest[e] - top);
            total[e] = total[e] * keep + part;
            largest[e] = top;
#pragma unroll
            for (u32 c = 0; c < DEPTH; ++c) sum[c][e * 2] *= keep, sum[c][e * 2 + 1] *= keep;
        }
        weighted_rows(sum, score, tile + COLS * PITCH);
    }
#pragma unroll
    for (u32 e = 0; e < 2; ++e) {
        total[e] = lanes_sum(total[e]);
        u32 i = rows + e * 8 + lane.g;
        if (lane.t == 0 && i < w.rows) arena[item[14] + i * w.heads + head] = largest[e] * LN_2 + logf(total[e]);
    }
    store(Head(arena, item + 6, head * w.dim), sum, w, rows, 1.0f / total[0], 1.0f / total[1]);
}

// The products dout out of a workgroup's rows, behind the rows of a tile and to the arena.
template <u32 ROWS>
__device__ __forceinline__ void find_inner(float* tile, float* arena, const u32* item, const Window& w, u32 head,
                                           u32 first) {
    Head out(arena, item + 6, head * w.dim), dout(arena, item + 15, head * w.dim);
    constexpr u32 SHARE = 8;
#pragma unroll
    for (u32 p = 0; p < ROWS * SHARE / THREADS; ++p) {
        u32 row = threadIdx.x / SHARE + p * (THREADS / SHARE), i = first + row;
        float part = 0.0f;
        if (i < w.rows)
            for (u32 c = threadIdx.x % SHARE; c < w.dim; c += SHARE)
                part += out.at[(size_t)i * out.stride + c] * dout.at[(size_t)i * dout.stride + c];
#pragma unroll
        for (u32 step = SHARE / 2; step > 0; step /= 2) part += __shfl_xor_sync(~0u, part, step);
        if (threadIdx.x % SHARE == 0) {
            tile[row * PITCH + DIM] = part;
            if (i < w.rows) arena[item[23] + i * w.heads + head] = part;
        }
    }
}

// inner and dq.
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_queries(float* arena, const u32* table) {
    constexpr u32 ROWS = QUERY_ROWS, COLS = QUERY_COLS, N = Lane<ROWS, COLS>::N, STAGE = 2 * COLS * PITCH;
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    Window w(item);
    Lane<ROWS, COLS> lane;
    u32 head = group % w.heads, first = ((w.rows + ROWS - 1) / ROWS - 1 - group / w.heads) * ROWS;
    u32 kv_head = head / (w.heads / w.kv_heads), start = first_key(w, first), end = min(first + ROWS, w.rows);
    Head k(arena, item + 2, kv_head * w.dim), v(arena, item + 4, kv_head * w.dim);
    float* stage = shared + 2 * ROWS * PITCH;
    fetch<ROWS>(shared, Head(arena, item, head * w.dim), w, first);
    fetch<ROWS>(shared + ROWS * PITCH, Head(arena, item + 15, head * w.dim), w, first);
    fetch<COLS>(stage, k, w, start);
    fetch<COLS>(stage + COLS * PITCH, v, w, start);
    find_inner<ROWS>(shared + ROWS * PITCH, arena, item, w, head, first);
    await_copies();
    Left<CHUNKS == 1> q(shared + lane.row * PITCH), dout(shared + (ROWS + lane.row) * PITCH);
    float sum[DEPTH][4] = {}, log_sum[2], inner[2], scale = w.scale * LOG2_E;
    u32 rows = first + lane.row;
#pragma unroll
    for (u32 e = 0; e < 2; ++e) {
        u32 query = rows + e * 8 + lane.g;
        inner[e] = shared[(ROWS + lane.row + e * 8 + lane.g) * PITCH + DIM];
        log_sum[e] = query < w.rows ? LOG2_E * arena[item[14] + query * w.heads + head] : 0.0f;
    }
    for (u32 step = 0; start < end; ++step, start += COLS) {
        if (step) await_copies();
        if (start + COLS < end) {
            float* next = stage + (step + 1) % 2 * STAGE;
            fetch<COLS>(next, k, w, start + COLS);
            fetch<COLS>(next + COLS * PITCH, v, w, start + COLS);
        }
        u32 keys = start + lane.part * (8 * N);
        if (!w.any(rows, 16, keys, 8 * N)) continue;
        const float* tile = stage + step % 2 * STAGE + lane.part * (8 * N * PITCH);
        float score[N][4], gradient[N][4];
        rows_times_rows(score, q, tile);
        rows_times_rows(gradient, dout, tile + COLS * PITCH);
        if (!w.all(rows, 16, keys, 8 * N)) hide<false>(score, w, rows, keys);
#pragma unroll
        for (u32 n = 0; n < N; ++n)
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                float weight = power(scale * score[n][i] - log_sum[i / 2]);
                score[n][i] = weight * (gradient[n][i] - inner[i / 2]);
            }
        weighted_rows(sum, score, tile);
    }
    add_parts(sum, lane);
    if (lane.part == 0) store(Head(arena, item + 17, head * w.dim), sum, w, rows, w.scale, w.scale);
}

// dk and dv, over all query heads that read this one; needs inner. The keys that most queries see go first.
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_keys(float* arena, const u32* table) {
    constexpr u32 ROWS = KEY_ROWS, COLS = KEY_COLS, N = Lane<ROWS, COLS>::N, STAGE = 2 * COLS * PITCH;
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    Window w(item);
    Lane<ROWS, COLS> lane;
    u32 kv_head = group % w.kv_heads, first = group / w.kv_heads * ROWS, share = w.heads / w.kv_heads;
    u32 end = min(w.rows, first + ROWS + w.reach - 1), tiles = (end - first + COLS - 1) / COLS;
    float* stages = shared + 2 * ROWS * PITCH;
    auto fetch_step = [&](u32 step) {
        float* stage = stages + step % 2 * STAGE;
        u32 head = kv_head * share + step / tiles, start = first + step % tiles * COLS;
        fetch<COLS>(stage, Head(arena, item, head * w.dim), w, start);
        fetch<COLS>(stage + COLS * PITCH, Head(arena, item + 15, head * w.dim), w, start);
        u32 t = threadIdx.x, query = start + t % COLS;
        bool there = query < w.rows;
        const float* from = arena + item[t < COLS ? 14 : 23];
        if (t < 2 * COLS) copy_4(stage + t * PITCH + DIM, there ? from + query * w.heads + head : from, there);
    };
    fetch<ROWS>(shared, Head(arena, item + 2, kv_head * w.dim), w, first);
    fetch<ROWS>(shared + ROWS * PITCH, Head(arena, item + 4, kv_head * w.dim), w, first);
    fetch_step(0);
    await_copies();
    Left<CHUNKS == 1> k(shared + lane.row * PITCH), v(shared + (ROWS + lane.row) * PITCH);
    float dk[DEPTH][4] = {}, dv[DEPTH][4] = {}, scale = w.scale * LOG2_E;
    u32 rows = first + lane.row;
    for (u32 step = 0; step < share * tiles; ++step) {
        if (step) await_copies();
        if (step + 1 < share * tiles) fetch_step(step + 1);
        u32 column = lane.part * (8 * N), queries = first + step % tiles * COLS + column;
        if (!w.any(queries, 8 * N, rows, 16)) continue;
        const float* stage = stages + step % 2 * STAGE;
        const float *tile = stage + column * PITCH, *behind = tile + 2 * lane.t * PITCH + DIM;
        float score[N][4], gradient[N][4];
        rows_times_rows(score, k, tile);
        rows_times_rows(gradient, v, tile + COLS * PITCH);
        if (!w.all(queries, 8 * N, rows, 16)) hide<true>(score, w, rows, queries);
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
#pragma unroll
            for (u32 f = 0; f < 2; ++f) {
                float log_sum = LOG2_E * behind[(n * 8 + f) * PITCH], inner = behind[(COLS + n * 8 + f) * PITCH];
#pragma unroll
                for (u32 i = f; i < 4; i += 2) {
                    score[n][i] = power(scale * score[n][i] - log_sum);
                    gradient[n][i] = score[n][i] * (gradient[n][i] - inner);
                }
            }
        }
        weighted_rows(dv, score, tile + COLS * PITCH);
        weighted_rows(dk, gradient, tile);
    }
    add_parts(dk, lane);
    add_parts(dv, lane);
    if (lane.part) return;
    store(Head(arena, item + 19, kv_head * w.dim), dk, w, rows, w.scale, w.scale);
    store(Head(arena, item + 21, kv_head * w.dim), dv, w, rows, 1.0f, 1.0f);
}
