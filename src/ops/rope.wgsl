// Turns the pairs (x_i, x_{i + d/2}) of every head of a row by its position's angles; PAIRS pairs a workgroup, counted
// along the rows. Row p of turns holds d/2 pairs of cosine and sine. 256 threads, no barrier.
// words: x_at x_stride rows cols head_dim turns_at positions_at window; without positions, row i is at i % window

const NONE = 0xffffffffu;

@compute @workgroup_size(THREADS)
fn rope(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
        @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let across = table[item + 3u] / 2u;
    let dim = table[item + 4u];
    let half = dim / 2u;
    let positions = table[item + 6u];
    let first = found.group * PAIRS;
    let end = min(first + PAIRS, table[item + 2u] * across);
    for (var entry = first + thread; entry < end; entry += THREADS) {
        let row = entry / across;
        let pair = entry % across;
        var position = row % table[item + 7u];
        if positions != NONE { position = u32(arena[positions + row]); }
        let at = table[item] + row * table[item + 1u] + pair / half * dim + pair % half;
        let turn = table[item + 5u] + position * dim + 2u * (pair % half);
        let a = arena[at];
        let b = arena[at + half];
        let cosine = arena[turn];
        let sine = arena[turn + 1u];
        arena[at] = a * cosine - b * sine;
        arena[at + half] = b * cosine + a * sine;
    }
}
