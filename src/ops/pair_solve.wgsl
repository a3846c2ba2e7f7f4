// One symmetric system of order 1 or 2 for each row, with a ridge; an unknown is written where the solution is finite
// (and the determinant positive). One thread a row, ROWS rows a workgroup, no barrier.
// words: rhs0_at rhs1_at g00_at g01_at g11_at h0_at h1_at m ridge

const NONE = 0xffffffffu;

fn finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

@compute @workgroup_size(THREADS)
fn pair_solve(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
              @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    let i = found.group * ROWS + thread;
    if item == 0u || i >= table[item + 7u] { return; }
    let ridge = bitcast<f32>(table[item + 8u]);
    let p = arena[table[item] + i];
    let g00 = arena[table[item + 2u] + i];
    if table[item + 3u] == NONE {
        let x = p / (g00 * (1.0 + ridge));
        if g00 != 0.0 && finite(x) { arena[table[item + 5u] + i] = x; }
        return;
    }
    let q = arena[table[item + 1u] + i];
    let b = arena[table[item + 3u] + i];
    let g11 = arena[table[item + 4u] + i];
    let shift = ridge * 0.5 * (g00 + g11);
    let a = g00 + shift;
    let d = g11 + shift;
    let determinant = a * d - b * b;
    let x = (d * p - b * q) / determinant;
    let y = (a * q - b * p) / determinant;
    if determinant > 0.0 && finite(x) && finite(y) {
        arena[table[item + 5u] + i] = x;
        arena[table[item + 6u] + i] = y;
    }
}
