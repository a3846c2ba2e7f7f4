// out[i,j] <- row[i] f(A[i,j]) col[j], added to out or multiplied with it where asked; f is the identity, the sign, the 11
// leading bits, or those of the rest. One entry of rows x cols at a time, ENTRIES a workgroup, counted along the rows; out
// may be A itself. 256 threads, no barrier.
// words: a_at a_stride out_at out_stride rows cols row_at col_at flags

const SIGN = 1u;
const ADD = 2u;
const TIMES = 4u;
const LEADING = 8u;
const REST = 16u;
const NONE = 0xffffffffu;

// Rounded to nearest, away from zero in the middle; what is not finite stays.
fn leading_of(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return select(bitcast<f32>((bits + 0x1000u) & 0xffffe000u), x, (bits & 0x7f800000u) == 0x7f800000u);
}

@compute @workgroup_size(THREADS)
fn scale(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
         @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let cols = table[item + 5u];
    let row_at = table[item + 6u];
    let col_at = table[item + 7u];
    let flags = table[item + 8u];
    let first = found.group * ENTRIES;
    let end = min(first + ENTRIES, table[item + 4u] * cols);
    for (var entry = first + thread; entry < end; entry += THREADS) {
        let i = entry / cols;
        let j = entry % cols;
        var value = arena[table[item] + i * table[item + 1u] + j];
        if (flags & SIGN) != 0u { value = select(1.0, -1.0, value < 0.0); }
        if (flags & LEADING) != 0u { value = leading_of(value); }
        if (flags & REST) != 0u { value = leading_of(value - leading_of(value)); }
        if row_at != NONE { value *= arena[row_at + i]; }
        if col_at != NONE { value *= arena[col_at + j]; }
        let out = table[item + 2u] + i * table[item + 3u] + j;
        if (flags & ADD) != 0u { value += arena[out]; }
        if (flags & TIMES) != 0u { value *= arena[out]; }
        arena[out] = value;
    }
}
