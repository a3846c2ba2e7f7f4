// The diagonal blocks of L^-1, known from the factor, into out, and zeros everywhere else. One entry of n x n at a time,
// ENTRIES a workgroup, counted along the rows. 256 threads, no barrier.
// words: inverse_at n out_at out_stride

@compute @workgroup_size(THREADS)
fn triangular_leaf(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
                   @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let n = table[item + 1u];
    let first = found.group * ENTRIES;
    let end = min(first + ENTRIES, n * n);
    for (var entry = first + thread; entry < end; entry += THREADS) {
        let i = entry / n;
        let j = entry % n;
        var value = 0.0;
        if i / PANEL == j / PANEL { value = arena[table[item] + i * PANEL + j % PANEL]; }
        arena[table[item + 2u] + i * table[item + 3u] + j] = value;
    }
}
