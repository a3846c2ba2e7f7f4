// x <- D L^-T L^-1 D b with the factor of spd_factor: blocks of PANEL = 64 unknowns, diagonal blocks through their stored
// inverses, the others from A. One workgroup an item, 256 threads, four lanes an unknown; y lives in work. x is written
// where the status is 0 and all of x finite; else it stays, and the status becomes 1 if it was 0. 2.3 KB of workgroup
// memory, four barriers a block and direction.
// words: a_at a_stride n inverse_at d_at b_at x_at work_at status_at

var<workgroup> partial: array<f32, THREADS>;
var<workgroup> right: array<f32, PANEL>;
var<workgroup> broken: atomic<u32>;
var<workgroup> skip: u32;

fn finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

// The block from `first` on: right <- y - (lanes' sums), y <- inverse right, or its transpose. `distance`: threads from
// one lane of an unknown to the next.
fn solve_block(item: u32, thread: u32, first: u32, sum: f32, transposed: bool) {
    let y = table[item + 7u];
    let width = min(PANEL, table[item + 2u] - first);
    let unknown = select(thread / 4u, thread % PANEL, transposed);
    let lane = select(thread % 4u, thread / PANEL, transposed);
    let distance = select(1u, PANEL, transposed);
    partial[thread] = sum;
    workgroupBarrier();
    if lane == 0u {
        right[unknown] = 0.0;
        if unknown < width {
            right[unknown] = arena[y + first + unknown] - ((partial[thread] + partial[thread + distance])
                + (partial[thread + 2u * distance] + partial[thread + 3u * distance]));
        }
    }
    workgroupBarrier();
    let inverse = table[item + 3u] + first * PANEL;
    var product = 0.0;
    for (var k = lane; k < PANEL; k += 4u) {
        product += arena[inverse + select(unknown * PANEL + k, k * PANEL + unknown, transposed)] * right[k];
    }
    partial[thread] = product;
    workgroupBarrier();
    if lane == 0u && unknown < width {
        arena[y + first + unknown] = (partial[thread] + partial[thread + distance])
            + (partial[thread + 2u * distance] + partial[thread + 3u * distance]);
    }
    workgroupBarrier();
    storageBarrier();
}

@compute @workgroup_size(THREADS)
fn spd_solve(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
             @builtin(local_invocation_index) thread: u32) {
    let item = find_item(w, groups).item;
    if item == 0u { return; }
    let a = table[item];
    let stride = table[item + 1u];
    let n = table[item + 2u];
    let d = table[item + 4u];
    let y = table[item + 7u];
    let status_at = table[item + 8u];
    if thread == 0u {
        skip = u32(arena[status_at] != 0.0);
        atomicStore(&broken, 0u);
    }
    if workgroupUniformLoad(&skip) != 0u { return; }
    for (var i = thread; i < n; i += THREADS) { arena[y + i] = arena[d + i] * arena[table[item + 5u] + i]; }
    storageBarrier();
    for (var first = 0u; first < n; first += PANEL) {
        let i = first + thread / 4u;
        var sum = 0.0;
        if i < n {
            // `first` is a multiple of PANEL: sixteen steps of four lanes fit.
            for (var p = thread % 4u; p < first; p += PANEL) {
                for (var step = 0u; step < PANEL; step += 4u) {
                    sum += arena[a + i * stride + p + step] * arena[y + p + step];
                }
            }
        }
        solve_block(item, thread, first, sum, false);
    }
    for (var blocks = (n + PANEL - 1u) / PANEL; blocks > 0u; blocks--) {
        let first = (blocks - 1u) * PANEL;
        let j = first + thread % PANEL;
        var sum = 0.0;
        if j < n {
            for (var i = first + PANEL + thread / PANEL; i < n; i += 16u) {
                for (var step = 0u; step < 16u; step += 4u) {
                    if i + step < n { sum += arena[a + (i + step) * stride + j] * arena[y + i + step]; }
                }
            }
        }
        solve_block(item, thread, first, sum, true);
    }
    for (var i = thread; i < n; i += THREADS) {
        if !finite(arena[d + i] * arena[y + i]) { atomicMax(&broken, 1u); }
    }
    workgroupBarrier();
    let complete = loops_turn();
    if thread == 0u {
        skip = select(1u, atomicLoad(&broken), complete);
        if skip != 0u { arena[status_at] = 1.0; }
    }
    if workgroupUniformLoad(&skip) != 0u { return; }
    for (var i = thread; i < n; i += THREADS) { arena[table[item + 6u] + i] = arena[d + i] * arena[y + i]; }
}
