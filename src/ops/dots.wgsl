// Inner products of the rows, the columns or the whole of two matrices of one shape. 256 threads; a lane sums its share
// in ascending order, a tree in workgroup memory (1 KB) adds the lanes, one barrier a level.
// words: a_at a_stride b_at b_stride rows cols out_at

var<workgroup> sums: array<f32, THREADS>;

fn product(item: u32, i: u32, k: u32) -> f32 {
    return arena[table[item] + i * table[item + 1u] + k] * arena[table[item + 2u] + i * table[item + 3u] + k];
}

// Adds the sums of the lanes that are `step`, 2 step, ... threads apart, `lanes` of them (a power of two), into lane 0.
fn tree(thread: u32, lane: u32, lanes: u32, step: u32, sum: f32) {
    sums[thread] = sum;
    for (var half = lanes / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half { sums[thread] += sums[thread + half * step]; }
    }
}

// out[i] = sum_k A[i,k] B[i,k]. ROWS rows a workgroup, 32 lanes each.
@compute @workgroup_size(THREADS)
fn row_dots(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
            @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let lanes = THREADS / ROWS;
    let i = found.group * ROWS + thread / lanes;
    let lane = thread % lanes;
    let inside = i < table[item + 4u];
    var sum = 0.0;
    if inside {
        for (var k = lane; k < table[item + 5u]; k += lanes) { sum += product(item, i, k); }
    }
    tree(thread, lane, lanes, 1u, sum);
    if inside && lane == 0u { arena[table[item + 6u] + i] = sums[thread]; }
}

// out[k] = sum_i A[i,k] B[i,k]. COLS columns a workgroup, 8 lanes each.
@compute @workgroup_size(THREADS)
fn col_dots(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
            @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let lanes = THREADS / COLS;
    let k = found.group * COLS + thread % COLS;
    let lane = thread / COLS;
    let inside = k < table[item + 5u];
    var sum = 0.0;
    if inside {
        for (var i = lane; i < table[item + 4u]; i += lanes) { sum += product(item, i, k); }
    }
    tree(thread, lane, lanes, COLS, sum);
    if inside && lane == 0u { arena[table[item + 6u] + k] = sums[thread]; }
}

// out[g] = part g of PARTS of sum_ij A_ij B_ij, each over ceil(rows cols / PARTS) entries along the rows.
@compute @workgroup_size(THREADS)
fn inner(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
         @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let cols = table[item + 5u];
    let entries = table[item + 4u] * cols;
    let part = (entries + PARTS - 1u) / PARTS;
    let end = min((found.group + 1u) * part, entries);
    var sum = 0.0;
    for (var entry = found.group * part + thread; entry < end; entry += THREADS) {
        sum += product(item, entry / cols, entry % cols);
    }
    tree(thread, thread, THREADS, 1u, sum);
    if thread == 0u { arena[table[item + 6u] + found.group] = sums[0]; }
}
