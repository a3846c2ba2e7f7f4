// Causal grouped-query attention, o_t = sum over s of softmax_s(q_t k_s / sqrt(d)) v_s, with a running softmax: what was
// summed so far is scaled down when a larger score comes. Rows of q, k, v and o lie one after another. A query sees the
// `reach` keys up to its own.

constexpr u32 PITCH = TILE + 1, CHUNKS = WIDEST_HEAD / TILE, LANES = THREADS / TILE;
constexpr float LOWEST = -3.0e38f;

// One head of rows `first` on, `limit` of them in all: columns `column` to column + TILE, zero outside.
__device__ __forceinline__ void load(float (*tile)[PITCH], const float* x, u32 width, u32 first, u32 limit, u32 column,
                                     u32 dim) {
    u32 j = threadIdx.x % TILE;
#pragma unroll
    for (u32 i = threadIdx.x / TILE; i < TILE; i += THREADS / TILE) {
        bool inside = first + i < limit && column + j < dim;
        tile[i][j] = inside ? x[(size_t)(first + i) * width + column + j] : 0.0f;
    }
}

// A workgroup takes TILE queries of one head; the queries are the last of the keys' positions. Scores and outputs of a
// thread: queries y and y + 16, keys or columns x and x + 16 of each tile; softmax: eight lanes a query.
// words: q k v o queries keys heads kv_heads head_dim scale reach
extern "C" __global__ void __launch_bounds__(THREADS) attention(float* arena, const u32* table) {
    __shared__ float left[TILE][PITCH], right[TILE][PITCH], weights[TILE][PITCH], factors[TILE];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 queries = item[4], keys = item[5], heads = item[6], kv_heads = item[7], dim = item[8];
    u32 head = group % heads, first = group / heads * TILE, kv_head = head / (heads / kv_heads);
    u32 width = heads * dim, kv_width = kv_heads * dim;
    const float* q = arena + item[0] + head * dim;
    const float* k = arena + item[1] + kv_head * dim;
    const float* v = arena + item[2] + kv_head * dim;
    float scale = float_of(item[9]), largest = LOWEST, total = 0.0f, sum[CHUNKS][4] = {};
    u32 x = threadIdx.x % 16, y = threadIdx.x / 16, row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    // Positions before the first query of the tile, keys up to its last, and the first that any of them sees.
    u32 before = keys - queries + first, seen = keys - queries + min(first + TILE, queries), reach = item[10];
    u32 oldest = before + 1 > reach ? before + 1 - reach : 0;
    u32 own = before + row;
    for (u32 start = oldest / TILE * TILE; start < seen; start += TILE) {
        float score[4] = {};
        for (u32 column = 0; column < dim; column += TILE) {
            __syncthreads();
            load(left, q, width, first, queries, column, dim);
            load(right, k, kv_width, start, seen, column, dim);
            __syncthreads();
#pragma unroll 8
            for (u32 i = 0; i < TILE; ++i) {
                float a = left[y][i], b = left[y + 16][i], c = right[x][i], d = right[x + 16][i];
                score[0] += a * c;
                score[1] += a * d;
                score[2] += b * c;
                score[3] += b * d;
            }
        }
        weights[y][x] = scale * score[0];
        weights[y][x + 16] = scale * score[1];
        weights[y + 16][x] = scale * score[2];
        weights[y + 16][x + 16] = scale * score[3];
        __syncthreads();
        float top = largest, part = 0.0f;
#pragma unroll
        for (u32 j = lane; j < TILE; j += LANES)
            if (start + j <= own && own - (start + j) < reach) top = fmaxf(top, weights[row][j]);
#pragma unroll
        for (u32 step = LANES / 2; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
#pragma unroll
        for (u32 j = lane; j < TILE; j += LANES) {
            bool sees = start + j <= own && own - (start + j) < reach;
            float weight = sees ? expf(weights[row][j] - top) : 0.0f;
            weights[row][j] = weight;
            part += weight;
        }
#pragma unroll
        for (u32 step = LANES / 2; step > 0; step /= 2) part += __shfl_xor_sync(~0u, part, step);
        float keep = expf(largest - top);
        total = total * keep + part;
        largest = top;
        if (lane == 0) factors[row] = keep;
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; ++chunk) {
            if (chunk * TILE >= dim) break;
            __syncthreads();
            load(right, v, kv_width, start, seen, chunk * TILE, dim);
            __syncthreads();
            sum[chunk][0] *= factors[y];
            sum[chunk][1] *= factors[y];
            sum[chunk][2] *= factors[y + 16];
            sum[chunk][3] *= factors[y + 16];
#pragma unroll 8
            for (u32 s = 0; s < TILE; ++s) {
                float a = weights[y][s], b = weights[y + 16][s], c = right[s][x], d = right[s][x + 16];
                sum[chunk][0] += a * c;
                sum[chunk][1] += a * d;
                sum[chunk][2] += b * c;
                sum[chunk][3] += b * d;
            }
        }
    }
    __syncthreads();
    if (lane == 0) factors[row] = 1.0f / total;
    __syncthreads();
    float* o = arena + item[3] + head * dim;
#pragma unroll
    for (u32 chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
            u32 i = y + e / 2 * 16, j = chunk * TILE + x + e % 2 * 16;
            if (first + i < queries && j < dim) o[(size_t)(first + i) * width + j] = sum[chunk][e] * factors[i];
        }
}

// A workgroup takes one head of the one query of a sequence: scores a thread a key, THREADS keys at a time, then values a
// warp a share of the keys.
// words: q keys values o positions room heads kv_heads head_dim scale reach
extern "C" __global__ void __launch_bounds__(THREADS) attention_cached(float* arena, const u32* table) {
    constexpr u32 WARPS = THREADS / 32;
    __shared__ float query[WIDEST_HEAD], weights[THREADS], sums[WARPS][WIDEST_HEAD], parts[32];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 room = item[5], heads = item[6], kv_heads = item[7], dim = item[8];
    u32 sequence = group / heads, head = group % heads, kv_width = kv_heads * dim;
    size_t cache = (size_t)sequence * room * kv_width + head / (heads / kv_heads) * dim;
    const float* k = arena + item[1] + cache;
    const float* v = arena + item[2] + cache;
    u32 out = (sequence * heads + head) * dim, seen = (u32)arena[item[4] + sequence] + 1, reach = item[10];
    u32 thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    if (thread < dim) query[thread] = arena[item[0] + out + thread] * float_of(item[9]);
    __syncthreads();
    float largest = LOWEST, total = 0.0f, sum[WIDEST_HEAD / 32] = {};
    for (u32 start = seen > reach ? seen - reach : 0; start < seen; start += THREADS) {
        u32 key = start + thread;
        float score = LOWEST;
        if (key < seen) {
            score = 0.0f;
#pragma unroll 8
            for (u32 i = 0; i < dim; ++i) score += query[i] * k[(size_t)key * kv_width + i];
        }
        float top = fmaxf(largest, group_max(score, parts)), keep = expf(largest - top);
        float weight = key < seen ? expf(score - top) : 0.0f;
        weights[thread] = weight;
        total = total * keep + group_sum(weight, parts);
        largest = top;
#pragma unroll
        for (u32 c = 0; c < WIDEST_HEAD / 32; ++c) sum[c] *= keep;
        u32 count = min((u32)THREADS, seen - start);
        for (u32 s = warp; s < count; s += WARPS)
#pragma unroll
            for (u32 c = 0; c < WIDEST_HEAD / 32; ++c)
                if (lane + 32 * c < dim) sum[c] += weights[s] * v[(size_t)(start + s) * kv_width + lane + 32 * c];
        __syncthreads();
    }
#pragma unroll
    for (u32 c = 0; c < WIDEST_HEAD / 32; ++c) sums[warp][lane + 32 * c] = sum[c];
    __syncthreads();
    if (thread < dim) {
        float value = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WARPS; ++w) value += sums[w][thread];
        arena[item[3] + out + thread] = value / total;
    }
}
