// gate <- gate / (1 + e^-gate) ∘ up; ENTRIES entries a workgroup, counted along the rows. 256 threads, no barrier.
// words: gate_at gate_stride up_at up_stride rows cols

// As on the host: e^x stays finite.
const HIGHEST = 88.3;

@compute @workgroup_size(THREADS)
fn swiglu(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
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
        let at = table[item] + i * table[item + 1u] + j;
        let gate = arena[at];
        arena[at] = gate / (1.0 + exp(min(-gate, HIGHEST))) * arena[table[item + 2u] + i * table[item + 3u] + j];
    }
}
