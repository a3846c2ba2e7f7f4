// From p, the gradient of diag(h) sign(A) diag(l) by its second and third factor undone, to those of A and h:
// out_i = sum over k of sign(A_ik) l_k p_ik, then p_ik <- h_i l_k p_ik; a warp a row, ROWS rows a workgroup.
// words: a a_stride p p_stride rows cols h l out
extern "C" __global__ void __launch_bounds__(THREADS) factor_gradient(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 lane = threadIdx.x % 32, rows = item[4], cols = item[5];
    const float* l = arena + item[7];
    for (u32 row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        u32 i = group * ROWS + row;
        if (i >= rows) return;
        const float* a = arena + item[0] + (size_t)i * item[1];
        float* p = arena + item[2] + (size_t)i * item[3];
        float h = arena[item[6] + i], sum = 0.0f;
#pragma unroll 4
        for (u32 k = lane; k < cols; k += 32) {
            float scaled = l[k] * p[k];
            sum += sign_of(a[k]) * scaled;
            p[k] = h * scaled;
        }
        sum = warp_sum(sum);
        if (lane == 0) arena[item[8] + i] = sum;
    }
}
