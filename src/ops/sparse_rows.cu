// out_i <- base_i + alpha * sum over active atoms of u D; a workgroup a row.
// words: support s_stride values u_stride n rows_an_atom decoder d_stride base b_stride out o_stride r alpha
extern "C" __global__ void __launch_bounds__(THREADS) sparse_rows(float* arena, const u32* table) {
    __shared__ float u[2 * MOST];
    __shared__ u32 rows[2 * MOST];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    const u32* support = (const u32*)arena + item[0] + (size_t)group * item[1];
    const float* values = arena + item[2] + (size_t)group * item[3];
    u32 n = item[4], m = item[5], r = item[12];
    float alpha = float_of(item[13]);
    for (u32 a = threadIdx.x; a < n; a += THREADS) {
        u[a] = alpha * values[a];
        rows[a] = support[a / m] * m + a % m;
    }
    __syncthreads();
    const float* decoder = arena + item[6];
    for (u32 c = threadIdx.x; c < r; c += THREADS) {
        float sum = item[8] == NONE ? 0.0f : arena[item[8] + (size_t)group * item[9] + c];
#pragma unroll 4
        for (u32 a = 0; a < n; ++a) sum += u[a] * decoder[(size_t)rows[a] * item[7] + c];
        arena[item[10] + (size_t)group * item[11] + c] = sum;
    }
}
