// y <- x / sqrt(mean(x^2) + epsilon) ∘ weight, row by row. ROWS rows a workgroup, 32 threads each; a tree in workgroup
// memory (1 KB) adds their sums, one barrier a level.
// words: x_at x_stride y_at y_stride rows cols weight_at epsilon

var<workgroup> sums: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn rms_norm(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
            @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let lanes = THREADS / ROWS;
    let i = found.group * ROWS + thread / lanes;
    let lane = thread % lanes;
    let cols = table[item + 5u];
    let inside = i < table[item + 4u];
    let x = table[item] + i * table[item + 1u];
    let y = table[item + 2u] + i * table[item + 3u];
    var sum = 0.0;
    if inside {
        for (var k = lane; k < cols; k += lanes) { sum += arena[x + k] * arena[x + k]; }
    }
    sums[thread] = sum;
    for (var half = lanes / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half { sums[thread] += sums[thread + half]; }
    }
    workgroupBarrier();
    if inside {
        let mean = sums[thread - lane] / f32(cols);
        let scale = 1.0 / sqrt(mean + bitcast<f32>(table[item + 7u]));
        for (var k = lane; k < cols; k += lanes) { arena[y + k] = arena[x + k] * scale * arena[table[item + 6u] + k]; }
    }
}
