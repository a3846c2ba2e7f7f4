// gate <- gate / (1 + e^-a(gate)) ∘ up. a(g) = g is SiLU, a(g) = 2 sqrt(2/pi) (g + 0.044715 g^3) the tanh form of GELU.
// ENTRIES entries a workgroup, counted along the rows. 256 threads, no barrier.
// words: gate_at gate_stride up_at up_stride rows cols gelu

// As on the host: e^x stays finite.
const HIGHEST = 88.3;

@compute @workgroup_size(THREADS)
fn gated(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
         @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let cols = table[item + 5u];
    let gelu = table[item + 6u] != 0u;
    let linear = select(1.0, 1.595769, gelu);
    let cubic = select(0.0, 0.044715, gelu);
    let first = found.group * ENTRIES;
    let end = min(first + ENTRIES, table[item + 4u] * cols);
    for (var entry = first + thread; entry < end; entry += THREADS) {
        let i = entry / cols;
        let j = entry % cols;
        let at = table[item] + i * table[item + 1u] + j;
        let gate = arena[at];
        let z = linear * (gate + cubic * gate * gate * gate);
        arena[at] = gate / (1.0 + exp(min(-z, HIGHEST))) * arena[table[item + 2u] + i * table[item + 3u] + j];
    }
}
