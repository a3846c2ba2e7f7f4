// out_i <- z_t - max z - log(sum over j of e^(z_j - max z)) for each row z of logits, t the row's target. A workgroup a row;
// trees in workgroup memory (1 KB), one barrier a level. 256 threads.
// words: logits_at stride rows cols targets_at out_at

var<workgroup> parts: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn log_probability(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
                   @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let cols = table[item + 3u];
    let z = table[item] + found.group * table[item + 1u];
    var top = -3.4028234e38;
    for (var i = thread; i < cols; i += THREADS) { top = max(top, arena[z + i]); }
    parts[thread] = top;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if thread < half { parts[thread] = max(parts[thread], parts[thread + half]); }
    }
    workgroupBarrier();
    top = parts[0];
    workgroupBarrier();
    var sum = 0.0;
    for (var i = thread; i < cols; i += THREADS) { sum += exp(arena[z + i] - top); }
    parts[thread] = sum;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if thread < half { parts[thread] += parts[thread + half]; }
    }
    workgroupBarrier();
    if thread == 0u {
        let likely = arena[z + u32(arena[table[item + 4u] + found.group])] - top;
        arena[table[item + 5u] + found.group] = likely - log(parts[0]);
    }
}
