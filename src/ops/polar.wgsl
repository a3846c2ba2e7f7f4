// Start and end of the Newton-Schulz iteration. One workgroup an item, 256 threads; reductions by a tree in workgroup
// memory (1 KB), one barrier a level. All matrices r x r, rows one after another.

var<workgroup> bits: array<u32, THREADS>;
var<workgroup> sums: array<f32, THREADS>;
var<workgroup> skip: u32;

// s = (max_i sum_j |G_ij|)^(1/4), G symmetric: a thread sums columns. X <- A / s; where s is not positive and finite,
// or the status was raised before, X <- 0 and the item is done.
// words: a_at g_at x_at r done_at status_at
@compute @workgroup_size(THREADS)
fn polar_scale(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
               @builtin(local_invocation_index) thread: u32) {
    let item = find_item(w, groups).item;
    if item == 0u { return; }
    let r = table[item + 3u];
    // Bits of numbers that are not negative are ordered as they are, with infinity and NaN above all.
    var most = 0u;
    for (var j = thread; j < r; j += THREADS) {
        var sum = 0.0;
        for (var i = 0u; i < r; i += 8u) {
            for (var step = 0u; step < 8u; step++) {
                if i + step < r { sum += abs(arena[table[item + 1u] + (i + step) * r + j]); }
            }
        }
        most = max(most, bitcast<u32>(sum) & 0x7fffffffu);
    }
    bits[thread] = most;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if thread < half { bits[thread] = max(bits[thread], bits[thread + half]); }
    }
    workgroupBarrier();
    most = bits[0];
    let status_at = table[item + 5u];
    if thread == 0u {
        if most == 0u || most >= 0x7f800000u { arena[status_at] = 1.0; }
        skip = u32(arena[status_at] != 0.0);
        arena[table[item + 4u]] = f32(skip);
    }
    let broken = workgroupUniformLoad(&skip) != 0u;
    let scale = sqrt(sqrt(bitcast<f32>(most)));
    for (var first = thread; first < r * r; first += 8u * THREADS) {
        for (var step = 0u; step < 8u; step++) {
            let entry = first + step * THREADS;
            if entry >= r * r { continue; }
            var value = 0.0;
            if !broken { value = arena[table[item] + entry] / scale; }
            arena[table[item + 2u] + entry] = value;
        }
    }
}

// done <- 1 where 2 |M - unit I| (Frobenius) is at most the tolerance, or the status was raised; in the last call an item
// that is not done raises the status.
// words: m_at r done_at status_at tolerance last unit
@compute @workgroup_size(THREADS)
fn polar_check(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
               @builtin(local_invocation_index) thread: u32) {
    let item = find_item(w, groups).item;
    if item == 0u { return; }
    let r = table[item + 1u];
    let done_at = table[item + 2u];
    let status_at = table[item + 3u];
    if thread == 0u { skip = u32(arena[done_at] != 0.0); }
    if workgroupUniformLoad(&skip) != 0u { return; }
    var sum = 0.0;
    for (var first = thread; first < r * r; first += 8u * THREADS) {
        for (var step = 0u; step < 8u; step++) {
            let entry = first + step * THREADS;
            if entry >= r * r { continue; }
            let d = arena[table[item] + entry] - select(0.0, bitcast<f32>(table[item + 6u]), entry / r == entry % r);
            sum += d * d;
        }
    }
    sums[thread] = sum;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if thread < half { sums[thread] += sums[thread + half]; }
    }
    if thread != 0u { return; }
    if 2.0 * sqrt(sums[0]) <= bitcast<f32>(table[item + 4u]) || arena[status_at] != 0.0 {
        arena[done_at] = 1.0;
    } else if table[item + 5u] == 1u {
        arena[status_at] = 1.0;
    }
}
