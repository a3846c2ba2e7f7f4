// Causal grouped-query attention and its gradient; nothing as large as rows x rows is stored. The forward pass keeps
// the logarithm of each row's sum of exponentials, from which the backward passes find the weights again:
//     p_ij = exp(scale q_i k_j - log_sums_i),   d_ij = scale p_ij (dout_i v_j - inner_i),   inner_i = dout_i out_i
//     dv_j = sum over i of p_ij dout_i,   dk_j = sum over i of d_ij q_i,   dq_i = sum over j of d_ij k_j
// words: q q_stride k k_stride v v_stride out out_stride rows heads kv_heads head_dim reach scale log_sums
//        dout dout_stride dq dq_stride dk dk_stride dv dv_stride inner (those from dout on are used backward alone)
// log_sums and inner: row i, head h at i * heads + h. A query sees the `reach` keys up to its own.
//
// A workgroup owns TILE rows of one head of its result; tiles of the other side pass by in a fixed order, so nothing
// is added by two workgroups. A thread owns 4 x 4 entries of a tile of scores (rows y.., columns x..) and of every
// TILE columns of its result. Shared memory: one tile for operands, one for weights, 35 KB. Heads have at most
// CHUNKS * TILE numbers.

constexpr u32 PITCH = TILE + 4, DEPTH = TILE / 2, SIDE = TILE / 4;
constexpr u32 BLOCKS = CHUNKS == 1 ? 2 : 1;
constexpr float LOWEST = -3.0e38f;

struct Window {
    u32 rows, heads, kv_heads, dim, reach;
    float scale;

    __device__ Window(const u32* item)
        : rows(item[8]), heads(item[9]), kv_heads(item[10]), dim(item[11]), reach(item[12]), scale(float_of(item[13])) {}

    __device__ __forceinline__ bool sees(u32 query, u32 key) const { return key <= query && query - key < reach; }
};

// Columns of one head of a matrix.
struct Head {
    float* at;
    u32 stride;

    __device__ Head(float* arena, const u32* words, u32 column) : at(arena + words[0] + column), stride(words[1]) {}
};

// DEPTH columns from `column` on of TILE rows from `first` on: column c of row i goes to c * PITCH + i; 0 outside.
__device__ __forceinline__ void fetch_turned(float* tile, const Head& x, const Window& w, u32 first, u32 column) {
    u32 t = threadIdx.x;
#pragma unroll
    for (u32 p = 0; p < TILE * DEPTH / THREADS; ++p) {
        u32 c = t % 8 + p % (DEPTH / 8) * 8, i = t / 8 + p / (DEPTH / 8) * (THREADS / 8);
        bool inside = first + i < w.rows && column + c < w.dim;
        tile[c * PITCH + i] = inside ? x.at[(size_t)(first + i) * x.stride + column + c] : 0.0f;
    }
}

// TILE columns of TILE rows: column c of row i goes to i * PITCH + c; 0 outside.
__device__ __forceinline__ void fetch_rows(float* tile, const Head& x, const Window& w, u32 first, u32 column) {
    u32 t = threadIdx.x;
#pragma unroll
    for (u32 p = 0; p < TILE * TILE / THREADS; ++p) {
        u32 c = t % TILE, i = t / TILE + p * (THREADS / TILE);
        bool inside = first + i < w.rows && column + c < w.dim;
        tile[i * PITCH + c] = inside ? x.at[(size_t)(first + i) * x.stride + column + c] : 0.0f;
    }
}

// sum_ef += sum over k of left_k(y + e) right_k(x + f)
template <u32 COUNT>
__device__ __forceinline__ void multiply(float (&sum)[4][4], const float* left, const float* right) {
    left += threadIdx.x / SIDE * 4;
    right += threadIdx.x % SIDE * 4;
#pragma unroll 8
    for (u32 k = 0; k < COUNT; ++k) {
        float4 a = *(const float4*)(left + k * PITCH), b = *(const float4*)(right + k * PITCH);
        float row[4] = {a.x, a.y, a.z, a.w}, col[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (u32 e = 0; e < 4; ++e)
#pragma unroll
            for (u32 f = 0; f < 4; ++f) sum[e][f] += row[e] * col[f];
    }
}

// sum_ef += a_(y + e) b_(x + f), products of rows of a head.
__device__ __forceinline__ void rows_times_rows(float (&sum)[4][4], float* tile, const Window& w, const Head& a,
                                                u32 a_first, const Head& b, u32 b_first) {
    for (u32 column = 0; column < w.dim; column += DEPTH) {
        __syncthreads();
        fetch_turned(tile, a, w, a_first, column);
        fetch_turned(tile + DEPTH * PITCH, b, w, b_first, column);
        __syncthreads();
        multiply<DEPTH>(sum, tile, tile + DEPTH * PITCH);
    }
}

// Entry (y + e, x + f) goes to (x + f) * PITCH + y + e.
__device__ __forceinline__ void store_turned(float* tile, const float (&value)[4][4]) {
    tile += threadIdx.x % SIDE * 4 * PITCH + threadIdx.x / SIDE * 4;
#pragma unroll
    for (u32 f = 0; f < 4; ++f)
        *(float4*)(tile + f * PITCH) = make_float4(value[0][f], value[1][f], value[2][f], value[3][f]);
}

// sum_(y + e)(c) += sum over k of weights_k(y + e) b_k(c), for all columns c of a head.
__device__ __forceinline__ void weighted_rows(float (&sum)[CHUNKS][4][4], const float* weights, float* tile,
                                              const Window& w, const Head& b, u32 b_first) {
#pragma unroll
    for (u32 chunk = 0; chunk < CHUNKS; ++chunk) {
        if (chunk * TILE >= w.dim) break;
        __syncthreads();
        fetch_rows(tile, b, w, b_first, chunk * TILE);
        __syncthreads();
        multiply<TILE>(sum[chunk], weights, tile);
    }
}

__device__ __forceinline__ void store(const Head& out, const float (&sum)[CHUNKS][4][4], const Window& w, u32 first,
                                      const float (&factor)[4]) {
    u32 y = threadIdx.x / SIDE * 4, x = threadIdx.x % SIDE * 4;
#pragma unroll
    for (u32 chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
        for (u32 e = 0; e < 4; ++e)
#pragma unroll
            for (u32 f = 0; f < 4; ++f) {
                u32 i = first + y + e, c = chunk * TILE + x + f;
                if (i < w.rows && c < w.dim) out.at[(size_t)i * out.stride + c] = sum[chunk][e][f] * factor[e];
            }
}

// The largest, and the sum, over the SIDE lanes that share rows.
__device__ __forceinline__ float lanes_max(float value) {
#pragma unroll
    for (u32 step = SIDE / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
    return value;
}

__device__ __forceinline__ float lanes_sum(float value) {
#pragma unroll
    for (u32 step = SIDE / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
}

// The first tile of keys that a tile of queries sees.
__device__ __forceinline__ u32 first_key(const Window& w, u32 first) {
    return first + 1 > w.reach ? (first + 1 - w.reach) / TILE * TILE : 0;
}

// out and log_sums; the longest rows go first.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention_kept(float* arena, const u32* table) {
    __shared__ __align__(16) float tile[TILE * PITCH], weights[TILE * PITCH];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    Window w(item);
    u32 head = group % w.heads, first = ((w.rows + TILE - 1) / TILE - 1 - group / w.heads) * TILE;
    u32 kv_head = head / (w.heads / w.kv_heads), y = threadIdx.x / SIDE * 4, x = threadIdx.x % SIDE * 4;
    Head q(arena, item, head * w.dim), k(arena, item + 2, kv_head * w.dim), v(arena, item + 4, kv_head * w.dim);
    float sum[CHUNKS][4][4] = {}, largest[4] = {LOWEST, LOWEST, LOWEST, LOWEST}, total[4] = {};
    for (u32 start = first_key(w, first); start < min(first + TILE, w.rows); start += TILE) {
        float score[4][4] = {};
        rows_times_rows(score, tile, w, q, first, k, start);
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
            float top = largest[e], part = 0.0f;
#pragma unroll
            for (u32 f = 0; f < 4; ++f)
                if (w.sees(first + y + e, start + x + f)) top = fmaxf(top, w.scale * score[e][f]);
            top = lanes_max(top);
#pragma unroll
            for (u32 f = 0; f < 4; ++f) {
                bool seen = w.sees(first + y + e, start + x + f);
                score[e][f] = seen ? expf(w.scale * score[e][f] - top) : 0.0f;
                part += score[e][f];
            }
            float keep = expf(largest[e] - top);
            total[e] = total[e] * keep + lanes_sum(part);
            largest[e] = top;
#pragma unroll
            for (u32 chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
                for (u32 f = 0; f < 4; ++f) sum[chunk][e][f] *= keep;
        }
        store_turned(weights, score);
        weighted_rows(sum, weights, tile, w, v, start);
    }
    float factor[4];
#pragma unroll
    for (u32 e = 0; e < 4; ++e) {
        factor[e] = 1.0f / total[e];
        u32 i = first + y + e;
        if (x == 0 && i < w.rows) arena[item[14] + i * w.heads + head] = largest[e] + logf(total[e]);
    }
    store(Head(arena, item + 6, head * w.dim), sum, w, first, factor);
}

// inner and dq.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention_queries(float* arena, const u32* table) {
    __shared__ __align__(16) float tile[TILE * PITCH], weights[TILE * PITCH], inner[TILE];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    Window w(item);
    u32 head = group % w.heads, first = ((w.rows + TILE - 1) / TILE - 1 - group / w.heads) * TILE;
    u32 kv_head = head / (w.heads / w.kv_heads), y = threadIdx.x / SIDE * 4, x = threadIdx.x % SIDE * 4;
    Head q(arena, item, head * w.dim), k(arena, item + 2, kv_head * w.dim), v(arena, item + 4, kv_head * w.dim);
    Head out(arena, item + 6, head * w.dim), dout(arena, item + 15, head * w.dim);
    constexpr u32 SHARE = THREADS / TILE;
    u32 row = threadIdx.x / SHARE, i = first + row;
    float part = 0.0f;
    if (i < w.rows)
        for (u32 c = threadIdx.x % SHARE; c < w.dim; c += SHARE)
            part += out.at[(size_t)i * out.stride + c] * dout.at[(size_t)i * dout.stride + c];
#pragma unroll
    for (u32 step = SHARE / 2; step > 0; step /= 2) part += __shfl_xor_sync(~0u, part, step);
    if (threadIdx.x % SHARE == 0) {
        inner[row] = part;
        if (i < w.rows) arena[item[23] + i * w.heads + head] = part;
    }
    float sum[CHUNKS][4][4] = {}, log_sum[4];
#pragma unroll
    for (u32 e = 0; e < 4; ++e) {
        u32 query = first + y + e;
        log_sum[e] = query < w.rows ? arena[item[14] + query * w.heads + head] : 0.0f;
    }
    for (u32 start = first_key(w, first); start < min(first + TILE, w.rows); start += TILE) {
        float score[4][4] = {}, gradient[4][4] = {};
        rows_times_rows(score, tile, w, q, first, k, start);
        rows_times_rows(gradient, tile, w, dout, first, v, start);
#pragma unroll
        for (u32 e = 0; e < 4; ++e)
#pragma unroll
            for (u32 f = 0; f < 4; ++f) {
                u32 query = first + y + e;
                bool seen = query < w.rows && w.sees(query, start + x + f);
                float weight = seen ? expf(w.scale * score[e][f] - log_sum[e]) : 0.0f;
                score[e][f] = w.scale * weight * (gradient[e][f] - inner[y + e]);
            }
        store_turned(weights, score);
        weighted_rows(sum, weights, tile, w, k, start);
    }
    float one[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    store(Head(arena, item + 17, head * w.dim), sum, w, first, one);
}

// dk and dv, over all query heads that read this one; needs inner.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention_keys(float* arena, const u32* table) {
    __shared__ __align__(16) float tile[TILE * PITCH], weights[TILE * PITCH];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    Window w(item);
    u32 kv_head = group % w.kv_heads, first = group / w.kv_heads * TILE, share = w.heads / w.kv_heads;
    u32 y = threadIdx.x / SIDE * 4, x = threadIdx.x % SIDE * 4, end = min(w.rows, first + TILE + w.reach - 1);
    Head k(arena, item + 2, kv_head * w.dim), v(arena, item + 4, kv_head * w.dim);
    float dk[CHUNKS][4][4] = {}, dv[CHUNKS][4][4] = {};
    for (u32 head = kv_head * share; head < (kv_head + 1) * share; ++head) {
        Head q(arena, item, head * w.dim), dout(arena, item + 15, head * w.dim);
        for (u32 start = first; start < end; start += TILE) {
            float score[4][4] = {}, gradient[4][4] = {};
            rows_times_rows(score, tile, w, k, first, q, start);
            rows_times_rows(gradient, tile, w, v, first, dout, start);
#pragma unroll
            for (u32 f = 0; f < 4; ++f) {
                u32 query = start + x + f;
                float log_sum = query < w.rows ? arena[item[14] + query * w.heads + head] : 0.0f;
                float inner = query < w.rows ? arena[item[23] + query * w.heads + head] : 0.0f;
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    bool seen = query < w.rows && w.sees(query, first + y + e);
                    float weight = seen ? expf(w.scale * score[e][f] - log_sum) : 0.0f;
                    score[e][f] = weight;
                    gradient[e][f] = w.scale * weight * (gradient[e][f] - inner);
                }
            }
            store_turned(weights, score);
            weighted_rows(dv, weights, tile, w, dout, start);
            __syncthreads();
            store_turned(weights, gradient);
            weighted_rows(dk, weights, tile, w, q, start);
        }
    }
    float one[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    store(Head(arena, item + 19, kv_head * w.dim), dk, w, first, one);
    store(Head(arena, item + 21, kv_head * w.dim), dv, w, first, one);
}
