// out[i,j] <- row[i] f(A[i,j]) col[j], added to out where asked; f is the identity or the sign. One entry of rows x cols
// at a time, ENTRIES a workgroup, counted along the rows; out may be A itself. 256 threads, no barrier.
// words: a_at a_stride out_at out_stride rows cols row_at col_at flags

const SIGN = 1u;
const ADD = 2u;
const NONE = 0xffffffffu;

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
        if row_at != NONE { value *= arena[row_at + i]; }
        if col_at != NONE { value *= arena[col_at + j]; }
        let out = table[item + 2u] + i * table[item + 3u] + j;
        if (flags & ADD) != 0u { value += arena[out]; }
        arena[out] = value;
    }
}
