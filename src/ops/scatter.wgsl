// Row i of A becomes row places_i of out; ENTRIES entries a workgroup, counted along the rows of A. 256 threads, no
// barrier.
// words: a_at a_stride out_at out_stride rows cols places_at

@compute @workgroup_size(THREADS)
fn scatter(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
           @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let cols = table[item + 5u];
    let first = found.group * ENTRIES;
    let end = min(first + ENTRIES, table[item + 4u] * cols);
    for (var entry = first + thread; entry < end; entry += THREADS) {
        let i = entry / cols;
        let j = entry % cols;
        let place = u32(arena[table[item + 6u] + i]);
        arena[table[item + 2u] + place * table[item + 3u] + j] = arena[table[item] + i * table[item + 1u] + j];
    }
}
