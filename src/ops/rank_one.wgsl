// |A| ~ x lambda' by power iteration from lambda = 1/sqrt(r): x <- |A| lambda, next <- |A|' x, lambda <- next / |next|,
// until lambda moves by less than the tolerance, MAX_STEPS times at most; at last x <- |A| lambda. One workgroup an item,
// 256 threads, 1 KB of workgroup memory; vectors live in the arena, barriers stand between those who write one and those
// who read it. x is NaN where the loops were cut short.
// words: a_at a_stride m r x_at lambda_at next_at tolerance

var<workgroup> sums: array<f32, THREADS>;
var<workgroup> total: f32;

// The sum of every thread's number, for all.
fn reduce(thread: u32, value: f32) -> f32 {
    sums[thread] = value;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if thread < half { sums[thread] += sums[thread + half]; }
    }
    if thread == 0u { total = sums[0]; }
    return workgroupUniformLoad(&total);
}

// x <- |A| lambda: 64 rows at a time, 4 lanes each.
fn multiply(item: u32, thread: u32) {
    let m = table[item + 2u];
    let r = table[item + 3u];
    for (var first = 0u; first < m; first += 64u) {
        let i = first + thread / 4u;
        var sum = 0.0;
        if i < m {
            let row = table[item] + i * table[item + 1u];
            for (var k = thread % 4u; k < r; k += 32u) {
                for (var step = 0u; step < 32u; step += 4u) {
                    if k + step < r { sum += abs(arena[row + k + step]) * arena[table[item + 5u] + k + step]; }
                }
            }
        }
        sums[thread] = sum;
        workgroupBarrier();
        if i < m && thread % 4u == 0u {
            arena[table[item + 4u] + i] = (sums[thread] + sums[thread + 1u]) + (sums[thread + 2u] + sums[thread + 3u]);
        }
        workgroupBarrier();
    }
    storageBarrier();
}

// next <- |A|' x: 32 columns at a time, 8 lanes each.
fn multiply_transposed(item: u32, thread: u32) {
    let m = table[item + 2u];
    let r = table[item + 3u];
    for (var first = 0u; first < r; first += 32u) {
        let k = first + thread % 32u;
        var sum = 0.0;
        if k < r {
            for (var i = thread / 32u; i < m; i += 64u) {
                for (var step = 0u; step < 64u; step += 8u) {
                    if i + step >= m { continue; }
                    let a = arena[table[item] + (i + step) * table[item + 1u] + k];
                    sum += abs(a) * arena[table[item + 4u] + i + step];
                }
            }
        }
        sums[thread] = sum;
        for (var half = 128u; half >= 32u; half /= 2u) {
            workgroupBarrier();
            if thread < half { sums[thread] += sums[thread + half]; }
        }
        if k < r && thread < 32u { arena[table[item + 6u] + k] = sums[thread]; }
        workgroupBarrier();
    }
    storageBarrier();
}

@compute @workgroup_size(THREADS)
fn rank_one(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
            @builtin(local_invocation_index) thread: u32) {
    let item = find_item(w, groups).item;
    if item == 0u { return; }
    let r = table[item + 3u];
    let lambda_at = table[item + 5u];
    let next_at = table[item + 6u];
    let tolerance = bitcast<f32>(table[item + 7u]);
    for (var k = thread; k < r; k += THREADS) { arena[lambda_at + k] = 1.0 / sqrt(f32(r)); }
    storageBarrier();
    for (var step = 0u; step < MAX_STEPS; step++) {
        multiply(item, thread);
        multiply_transposed(item, thread);
        var square = 0.0;
        for (var k = thread; k < r; k += THREADS) { square += arena[next_at + k] * arena[next_at + k]; }
        let norm = sqrt(reduce(thread, square));
        if norm == 0.0 { break; }
        var change = 0.0;
        for (var k = thread; k < r; k += THREADS) {
            let value = arena[next_at + k] / norm;
            let d = value - arena[lambda_at + k];
            change += d * d;
            arena[lambda_at + k] = value;
        }
        storageBarrier();
        if sqrt(reduce(thread, change)) < tolerance { break; }
    }
    multiply(item, thread);
    if !loops_turn() {
        for (var i = thread; i < table[item + 2u]; i += THREADS) { arena[table[item + 4u] + i] = nan(); }
    }
}
