// Blocked Cholesky factor of D A D + ridge I, D = diag(A)^(-1/2), in panels of PANEL = 64 columns. Every entry has 256
// threads. words of all start with: a_at a_stride n

// Lower triangle of a block, row after row; entry (i, j) is number i (i + 1) / 2 + j. 8.3 KB.
var<workgroup> block: array<f32, PANEL * (PANEL + 1) / 2>;
var<workgroup> roots: array<f32, PANEL>;
var<workgroup> partial: array<f32, THREADS>;
var<workgroup> failed: atomic<u32>;
var<workgroup> skip: u32;

fn lower(i: u32, j: u32) -> u32 {
    return i * (i + 1u) / 2u + j;
}

fn finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

// d[i] <- 1/sqrt(A_ii); status <- 0, or one more than an index whose A_ii is not positive and finite, d[i] = 0 there.
// One workgroup. words: a_at a_stride n d_at status_at
@compute @workgroup_size(THREADS)
fn cholesky_scale(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
                  @builtin(local_invocation_index) thread: u32) {
    let item = find_item(w, groups).item;
    if item == 0u { return; }
    if thread == 0u { atomicStore(&failed, 0u); }
    workgroupBarrier();
    for (var i = thread; i < table[item + 2u]; i += THREADS) {
        let square = arena[table[item] + i * (table[item + 1u] + 1u)];
        var d = 1.0 / sqrt(square);
        if !(square > 0.0 && finite(square) && finite(d)) {
            d = 0.0;
            atomicMax(&failed, i + 1u);
        }
        arena[table[item + 3u] + i] = d;
    }
    workgroupBarrier();
    if thread == 0u { arena[table[item + 4u]] = f32(atomicLoad(&failed)); }
}

// A_ij <- d_i A_ij d_j below the diagonal, 1 + ridge on it. ENTRIES of n x n a workgroup, no barrier.
// words: a_at a_stride n d_at ridge
@compute @workgroup_size(THREADS)
fn cholesky_equilibrate(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
                        @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let n = table[item + 2u];
    let d = table[item + 3u];
    let first = found.group * ENTRIES;
    let end = min(first + ENTRIES, n * n);
    for (var entry = first + thread; entry < end; entry += THREADS) {
        let i = entry / n;
        let j = entry % n;
        let at = table[item] + i * table[item + 1u] + j;
        if i > j { arena[at] *= arena[d + i] * arena[d + j]; }
        if i == j { arena[at] = 1.0 + bitcast<f32>(table[item + 4u]); }
    }
}

// Factors the block of `width` columns in workgroup memory, four threads a row, one barrier a column. Entries stay
// unscaled until the last step: A_ij - A_ik A_jk / A_kk. Returns one more than the first column without a pivot, or 0.
fn factor(thread: u32, width: u32) -> u32 {
    let i = thread / 4u;
    var first_failed = 0u;
    for (var k = 0u; k < width; k++) {
        let pivot = block[lower(k, k)];
        let good = pivot > 0.0 && finite(pivot);
        if !good && first_failed == 0u { first_failed = k + 1u; }
        if i > k && i < width && good {
            let factor = block[lower(i, k)] / pivot;
            for (var j = k + 1u + thread % 4u; j <= i; j += 4u) {
                block[lower(i, j)] -= factor * block[lower(j, k)];
            }
        }
        workgroupBarrier();
    }
    if thread < width { roots[thread] = sqrt(block[lower(thread, thread)]); }
    workgroupBarrier();
    if i < width {
        for (var j = thread % 4u; j <= i; j += 4u) { block[lower(i, j)] /= roots[j]; }
    }
    workgroupBarrier();
    return first_failed;
}

// Inverts the factor in workgroup memory, row by row, four threads a column, two barriers a row:
// M_ij = -(sum over j <= p < i of L_ip M_pj) / L_ii, M_ii = 1 / L_ii.
fn invert(thread: u32, width: u32) {
    let j = thread / 4u;
    for (var i = 0u; i < width; i++) {
        var sum = 0.0;
        for (var p = j + thread % 4u; p < i; p += 4u) { sum += block[lower(i, p)] * block[lower(p, j)]; }
        partial[thread] = sum;
        workgroupBarrier();
        if thread % 4u == 0u && j <= i {
            sum = (partial[thread] + partial[thread + 1u]) + (partial[thread + 2u] + partial[thread + 3u]);
            block[lower(i, j)] = select(-sum, 1.0, j == i) / roots[i];
        }
        workgroupBarrier();
    }
}

// The block in workgroup memory to a PANEL x PANEL matrix, zeros above its diagonal and behind `width`.
fn store(thread: u32, at: u32, width: u32) {
    for (var entry = thread; entry < PANEL * PANEL; entry += THREADS) {
        let i = entry / PANEL;
        let j = entry % PANEL;
        var value = 0.0;
        if j <= i && i < width { value = block[lower(i, j)]; }
        arena[at + entry] = value;
    }
}

// Columns start to start + width of the factor, width = min(PANEL, n - start). Every workgroup factors and inverts the
// diagonal block for itself; workgroup 0 stores the factor at diag and its inverse, the others own 64 rows below, where
// X <- X L^-T, four threads a row. A pivot that is not positive and finite: status <- one more than its index. Nothing
// happens where the status is raised. ceil((n - start) / PANEL) workgroups, some 200 barriers.
// words: a_at a_stride n start diag_at inverse_at status_at
@compute @workgroup_size(THREADS)
fn cholesky_panel(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
                  @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let stride = table[item + 1u];
    let n = table[item + 2u];
    let start = table[item + 3u];
    let status_at = table[item + 6u];
    if thread == 0u { skip = u32(arena[status_at] != 0.0); }
    if workgroupUniformLoad(&skip) != 0u { return; }
    let width = min(PANEL, n - start);
    for (var entry = thread; entry < PANEL * PANEL; entry += THREADS) {
        let i = entry / PANEL;
        let j = entry % PANEL;
        if j <= i && i < width { block[lower(i, j)] = arena[table[item] + (start + i) * stride + start + j]; }
    }
    workgroupBarrier();
    let first_failed = factor(thread, width);
    if found.group == 0u {
        store(thread, table[item + 4u], width);
        if thread == 0u && first_failed != 0u { arena[status_at] = f32(start + first_failed); }
        workgroupBarrier();
    }
    invert(thread, width);
    if found.group == 0u {
        store(thread, table[item + 5u], width);
        return;
    }
    let row = start + PANEL * found.group + thread / 4u;
    let at = table[item] + row * stride + start;
    let lane = thread % 4u;
    var sums: array<f32, PANEL / 4u>;
    for (var c = 0u; c < PANEL / 4u; c++) { sums[c] = 0.0; }
    for (var p = 0u; row < n && p < width; p++) {
        let x = arena[at + p];
        for (var c = 0u; c < PANEL / 4u; c++) {
            let column = lane + 4u * c;
            if p <= column && column < width { sums[c] += x * block[lower(column, p)]; }
        }
    }
    storageBarrier();
    for (var c = 0u; c < PANEL / 4u; c++) {
        let column = lane + 4u * c;
        if row < n && column < width { arena[at + column] = sums[c]; }
    }
}

// A becomes L: its diagonal blocks from diag (one after another), zeros above the diagonal. ENTRIES of n x n a
// workgroup, no barrier. words: a_at a_stride n diag_at
@compute @workgroup_size(THREADS)
fn cholesky_gather(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
                   @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let n = table[item + 2u];
    let first = found.group * ENTRIES;
    let end = min(first + ENTRIES, n * n);
    for (var entry = first + thread; entry < end; entry += THREADS) {
        let i = entry / n;
        let j = entry % n;
        let at = table[item] + i * table[item + 1u] + j;
        if j > i {
            arena[at] = 0.0;
        } else if i / PANEL == j / PANEL {
            arena[at] = arena[table[item + 3u] + i * PANEL + j % PANEL];
        }
    }
}
