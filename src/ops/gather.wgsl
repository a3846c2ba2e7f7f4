// out[i,j] <- A[r(i), c(j)], r and c from vectors of indices or as they are. One entry of rows x cols at a time, ENTRIES
// a workgroup, counted along the rows. 256 threads, no barrier.
// words: a_at a_stride out_at out_stride rows cols rowindex_at colindex_at

const NONE = 0xffffffffu;

fn index(at: u32, k: u32) -> u32 {
    if at == NONE { return k; }
    return u32(arena[at + k]);
}

@compute @workgroup_size(THREADS)
fn gather(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
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
        let source = table[item] + index(table[item + 6u], i) * table[item + 1u] + index(table[item + 7u], j);
        arena[table[item + 2u] + i * table[item + 3u] + j] = arena[source];
    }
}
