// A symmetric system of order 1 or 2 for every row, ROWS rows a workgroup.
// words: rhs0 rhs1 g00 g01 g11 x0 x1 rows ridge; g01 is NONE where the order is 1
extern "C" __global__ void __launch_bounds__(THREADS) pair_solve(float* arena, const u32* table) {
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    float relative = float_of(item[8]);
    for (u32 i = group * ROWS + threadIdx.x; i < min(item[7], (group + 1) * ROWS); i += THREADS) {
        float p = arena[item[0] + i], a = arena[item[2] + i];
        if (item[3] == NONE) {
            float x = p / (a * (1.0f + relative));
            if (isfinite(x)) arena[item[5] + i] = x;
            continue;
        }
        float q = arena[item[1] + i], b = arena[item[3] + i], d = arena[item[4] + i];
        float ridge = relative * 0.5f * (a + d);
        a += ridge;
        d += ridge;
        float determinant = a * d - b * b;
        float x = (d * p - b * q) / determinant, y = (a * q - b * p) / determinant;
        if (determinant > 0.0f && isfinite(x) && isfinite(y)) {
            arena[item[5] + i] = x;
            arena[item[6] + i] = y;
        }
    }
}
