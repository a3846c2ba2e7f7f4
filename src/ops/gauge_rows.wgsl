// z_i <- a_i / |a_i|, w_i <- a_i |a_i| d_i; a zero row stays zero. ROWS rows a workgroup, 32 lanes each; 256 threads, a
// tree of lanes in workgroup memory (1 KB), one barrier a level.
// words: a_at a_stride rows r d_at z_at z_stride w_at w_stride

const NONE = 0xffffffffu;

var<workgroup> sums: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn gauge_rows(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
              @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let r = table[item + 3u];
    let d_at = table[item + 4u];
    let lanes = THREADS / ROWS;
    let lane = thread % lanes;
    let i = found.group * ROWS + thread / lanes;
    let inside = i < table[item + 2u];
    let a = table[item] + i * table[item + 1u];
    var sum = 0.0;
    if inside {
        for (var k = lane; k < r; k += lanes) { sum += arena[a + k] * arena[a + k]; }
    }
    sums[thread] = sum;
    for (var half = lanes / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half { sums[thread] += sums[thread + half]; }
    }
    workgroupBarrier();
    if !inside { return; }
    let norm = sqrt(sums[thread - lane]);
    var inverse = 0.0;
    if norm > 0.0 { inverse = 1.0 / norm; }
    var factor = norm;
    if d_at != NONE { factor *= arena[d_at + i]; }
    let z = table[item + 5u] + i * table[item + 6u];
    let weighted = table[item + 7u] + i * table[item + 8u];
    for (var k = lane; k < r; k += lanes) {
        let value = arena[a + k];
        arena[z + k] = value * inverse;
        arena[weighted + k] = value * factor;
    }
}
