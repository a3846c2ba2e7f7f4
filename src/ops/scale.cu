// The 11 leading bits, rounded to nearest, away from zero in the middle; what is not finite stays.
__device__ __forceinline__ float leading_of(float x) {
    return isfinite(x) ? __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u) : x;
}

// out <- diag(row) f(A) diag(col), or added to out, or multiplied with it; ENTRIES entries a workgroup, numbered along
// the rows.
// words: a a_stride out out_stride rows cols row col flags
// flags: 1 f is the sign; 2 add; 4 multiply; 8 f is the leading bits; 16 f is the leading bits of the rest
extern "C" __global__ void __launch_bounds__(THREADS) scale(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    const float* a = arena + item[0];
    float* out = arena + item[2];
    u32 a_stride = item[1], out_stride = item[3], cols = item[5], flags = item[8];
    const float* row = item[6] == NONE ? nullptr : arena + item[6];
    const float* col = item[7] == NONE ? nullptr : arena + item[7];
    u32 from = group * ENTRIES, rest = item[4] * cols - from;
#pragma unroll 4
    for (u32 step = 0; step < ENTRIES / THREADS; ++step) {
        u32 offset = step * THREADS + threadIdx.x;
        if (offset >= rest) return;
        u32 i = (from + offset) / cols, j = (from + offset) % cols;
        float value = a[(size_t)i * a_stride + j];
        if (flags & 1) value = sign_of(value);
        if (flags & 8) value = leading_of(value);
        if (flags & 16) value = leading_of(value - leading_of(value));
        if (row) value *= row[i];
        if (col) value *= col[j];
        float* to = out + (size_t)i * out_stride + j;
        *to = flags & 2 ? *to + value : flags & 4 ? *to * value : value;
    }
}
