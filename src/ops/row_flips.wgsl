// Greedy sign flips of one row of S (one workgroup a row): k in ascending order flips where
// change = 4 h s_k (c_k - h ((Qs)_k - Q_kk s_k)) < -tolerance h^2 Q_kk, MAX_PASSES times at most. 256 entries are looked
// at together, the first that wants to flips, and those behind it look again: exactly the sequential result. Thread t
// owns the entries t, t + 256, ... of s, Qs and c in the arena; three barriers a look. NaN flips where the loops were cut
// short.
// words: s_at s_stride h_at q_at q_stride qs_at qs_stride c_at c_stride rows r tolerance flips_at

const NONE = 0xffffffffu;

var<workgroup> first: atomic<u32>;
var<workgroup> chosen: u32;
var<workgroup> chosen_step: f32;

// The lowest k that any thread has, NONE where nobody has one.
fn lowest(thread: u32, k: u32) -> u32 {
    if k != NONE { atomicMin(&first, k); }
    workgroupBarrier();
    if thread == 0u {
        chosen = atomicLoad(&first);
        atomicStore(&first, NONE);
    }
    return workgroupUniformLoad(&chosen);
}

@compute @workgroup_size(THREADS)
fn row_flips(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
             @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let row = found.group;
    let s = table[item] + row * table[item + 1u];
    let h = arena[table[item + 2u] + row];
    let q_at = table[item + 3u];
    let q_stride = table[item + 4u];
    let qs = table[item + 5u] + row * table[item + 6u];
    let c = table[item + 7u] + row * table[item + 8u];
    let r = table[item + 10u];
    let tolerance = bitcast<f32>(table[item + 11u]);
    if thread == 0u { atomicStore(&first, NONE); }
    workgroupBarrier();
    var flips = 0u;
    for (var pass_index = 0u; pass_index < MAX_PASSES; pass_index++) {
        let before = flips;
        for (var chunk = 0u; chunk < r; chunk += THREADS) {
            let k = chunk + thread;
            var next = chunk;
            loop {
                var wish = NONE;
                if k >= next && k < r {
                    let sign = arena[s + k];
                    let energy = arena[q_at + k * q_stride + k];
                    let change = 4.0 * h * sign * (arena[c + k] - h * (arena[qs + k] - energy * sign));
                    if change < -tolerance * h * h * energy { wish = k; }
                }
                let flip = lowest(thread, wish);
                if flip == NONE { break; }
                if flip == k {
                    arena[s + k] = -arena[s + k];
                    chosen_step = 2.0 * arena[s + k];
                }
                let step = workgroupUniformLoad(&chosen_step);
                for (var p = thread; p < r; p += THREADS) {
                    arena[qs + p] += step * arena[q_at + flip * q_stride + p];
                }
                flips++;
                next = flip + 1u;
            }
        }
        if flips == before { break; }
    }
    let complete = loops_turn();
    if thread == 0u { arena[table[item + 12u] + row] = select(nan(), f32(flips), complete); }
}
