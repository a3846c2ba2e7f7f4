// Tiles of rows of one head in shared memory, and what a warp multiplies them to; for attention on tensor cores.
//
// Heads have at most DIM numbers. A warp owns 16 rows, every column of its part of a tile that passes by, and its slice
// of the head. The tile's columns are shared out among PARTS, whose sums are added in the end. The head is shared out
// among SLICES, the warps of a workgroup of 16 rows, where those are more than registers hold: products over the head are
// then sums over slices, which travel through what was owned, since left operands of slices stay in registers. All sums
// are in a fixed order.
//
// Products are those of multiply_tf32, which says what lane 4 g + t holds. So that weights go from C to A without leaving
// their lane, rows 2t and 2t + 1 of a tile stand for t and t + 4 there; so that results leave in fours, column 4 g + j
// of 32 stands for column g of product j. Rows of tiles are 4 numbers longer than a multiple of 32: both ways of reading
// them then touch every bank once.

constexpr u32 WIDTH = DIM / SLICES, PITCH = DIM + 4, DEPTH = WIDTH / 8, WARPS = THREADS / 32;
// Whether left operands of two matrices fit into registers.
constexpr bool HELD = WIDTH == 64;
static_assert(SLICES == 1 || HELD && SLICES == WARPS, "slices meet where the operands of a workgroup were");
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

// The first number of this warp's slice of the head.
__device__ __forceinline__ u32 first_of_slice() { return threadIdx.x / 32 % SLICES * WIDTH; }

// What a warp does in its workgroup, and a lane in its warp.
template <u32 ROWS, u32 COLS>
struct Lane {
    static constexpr u32 PARTS = WARPS / SLICES * 16 / ROWS, N = COLS / PARTS / 8;
    static_assert(N >= 2 && N % 2 == 0 && 2 * COLS <= THREADS, "columns are read 16 at a time");
    u32 g, t, row, part;
    // The first number of its slice.
    u32 column;

    __device__ Lane() {
        u32 group = threadIdx.x / 32 / SLICES;
        g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        row = group % (ROWS / 16) * 16, part = group / (ROWS / 16);
        column = first_of_slice();
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

// All slices are at the same place.
__device__ __forceinline__ void slices_meet() {
    if constexpr (SLICES > 1) __syncthreads();
}

// Where this lane's part of all slices' sums lies of one of two products, in the 16 rows that were owned.
template <u32 N>
__device__ __forceinline__ float4* slices_room(u32 product) {
    static_assert(2 * SLICES * N * 32 * 4 <= 16 * PITCH, "slices meet where 16 rows were");
    return (float4*)shared + product * SLICES * N * 32 + threadIdx.x % 32;
}

template <u32 N>
__device__ __forceinline__ void leave_slice(const float (&sum)[N][4], u32 product) {
    float4* room = slices_room<N>(product) + threadIdx.x / 32 * N * 32;
#pragma unroll
    for (u32 n = 0; n < N; ++n) room[n * 32] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
}

template <u32 N>
__device__ __forceinline__ void take_slices(float (&sum)[N][4], u32 product) {
    const float4* room = slices_room<N>(product);
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        float4 x = room[n * 32];
#pragma unroll
        for (u32 slice = 1; slice < SLICES; ++slice) {
            float4 y = room[(slice * N + n) * 32];
            x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
        }
        sum[n][0] = x.x, sum[n][1] = x.y, sum[n][2] = x.z, sum[n][3] = x.w;
    }
}

// The sums over all slices, from those over each; once between two barriers.
template <u32 N>
__device__ __forceinline__ void add_slices(float (&sum)[N][4]) {
    if constexpr (SLICES > 1) {
        leave_slice(sum, 0);
        slices_meet();
        take_slices(sum, 0);
    }
}

template <u32 N>
__device__ __forceinline__ void add_slices(float (&first)[N][4], float (&second)[N][4]) {
    if constexpr (SLICES > 1) {
        leave_slice(first, 0);
        leave_slice(second, 1);
        slices_meet();
        take_slices(first, 0);
        take_slices(second, 1);
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

// The rows of a warp from `first` on, its columns, row e * 8 + g times factor e.
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
                u32 column = first_of_slice() + c * 8 + t * 8 + half * 4, at = e * 2 + half;
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

