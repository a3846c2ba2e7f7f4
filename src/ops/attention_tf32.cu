// Causal grouped-query attention and its gradient on tensor cores: formulas and words are those of
// attention_backward.cu. Operands are rounded to the 11 significant bits of TF32; sums and exponentials are f32.
//
// A workgroup owns ROWS rows of one head of its result; tiles of COLS rows of the other side pass by in a fixed order,
// one step ahead, by asynchronous copies, and nothing is added by two workgroups. attention_tiles.cuh, which stands before
// this file, says what a warp does with them.
//
// Shared memory: what is owned, then two stages of two tiles. Behind a row of dout there is its number of `inner`, in
// `attention_keys` behind one of q its number of log_sums.

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
    Left<true> q(shared + lane.row * PITCH + lane.column);
    slices_meet();
    float sum[DEPTH][4] = {}, largest[2] = {LOWEST, LOWEST}, total[2] = {}, scale = w.scale * LOG2_E;
    u32 rows = first + lane.row;
    for (u32 step = 0; start < end; ++step, start += COLS) {
        if (step) await_copies();
        const float* tile = stage + step % 2 * STAGE + lane.column;
        if (start + COLS < end) {
            float* next = stage + (step + 1) % 2 * STAGE;
            fetch<COLS>(next, k, w, start + COLS);
            fetch<COLS>(next + COLS * PITCH, v, w, start + COLS);
        }
        if (!w.any(rows, 16, start, COLS)) continue;
        float score[N][4];
        rows_times_rows(score, q, tile);
        add_slices(score);
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
        if (lane.t == 0 && lane.column == 0 && i < w.rows) arena[item[14] + i * w.heads + head] = largest[e] * LN_2 + logf(total[e]);
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
    const float* owned = shared + lane.row * PITCH + lane.column;
    Left<HELD> q(owned), dout(owned + ROWS * PITCH);
    float sum[DEPTH][4] = {}, log_sum[2], inner[2], scale = w.scale * LOG2_E;
    u32 rows = first + lane.row;
#pragma unroll
    for (u32 e = 0; e < 2; ++e) {
        u32 query = rows + e * 8 + lane.g;
        inner[e] = shared[(ROWS + lane.row + e * 8 + lane.g) * PITCH + DIM];
        log_sum[e] = query < w.rows ? LOG2_E * arena[item[14] + query * w.heads + head] : 0.0f;
    }
    slices_meet();
    for (u32 step = 0; start < end; ++step, start += COLS) {
        if (step) await_copies();
        if (start + COLS < end) {
            float* next = stage + (step + 1) % 2 * STAGE;
            fetch<COLS>(next, k, w, start + COLS);
            fetch<COLS>(next + COLS * PITCH, v, w, start + COLS);
        }
        u32 keys = start + lane.part * (8 * N);
        if (!w.any(rows, 16, keys, 8 * N)) continue;
        const float* tile = stage + step % 2 * STAGE + lane.part * (8 * N * PITCH) + lane.column;
        float score[N][4], gradient[N][4];
        rows_times_rows(score, q, tile);
        rows_times_rows(gradient, dout, tile + COLS * PITCH);
        add_slices(score, gradient);
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
    const float* owned = shared + lane.row * PITCH + lane.column;
    Left<HELD> k(owned), v(owned + ROWS * PITCH);
    slices_meet();
    float dk[DEPTH][4] = {}, dv[DEPTH][4] = {}, scale = w.scale * LOG2_E;
    u32 rows = first + lane.row;
    for (u32 step = 0; step < share * tiles; ++step) {
        if (step) await_copies();
        if (step + 1 < share * tiles) fetch_step(step + 1);
        u32 column = lane.part * (8 * N), queries = first + step % tiles * COLS + column;
        if (!w.any(queries, 8 * N, rows, 16)) continue;
        const float* stage = stages + step % 2 * STAGE + column * PITCH;
        const float *tile = stage + lane.column, *behind = stage + 2 * lane.t * PITCH + DIM;
        float score[N][4], gradient[N][4];
        rows_times_rows(score, k, tile);
        rows_times_rows(gradient, v, tile + COLS * PITCH);
        add_slices(score, gradient);
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
