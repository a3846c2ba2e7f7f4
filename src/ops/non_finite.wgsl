// out_i <- the first column of row i that holds NaN or an infinity, else cols. ROWS rows a workgroup, 32 threads each;
// workgroup memory of 32 bytes.
// words: a_at a_stride rows cols out_at

var<workgroup> firsts: array<atomic<u32>, ROWS>;

@compute @workgroup_size(THREADS)
fn non_finite(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
              @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let lanes = THREADS / ROWS;
    let row = thread / lanes;
    let lane = thread % lanes;
    let i = found.group * ROWS + row;
    let cols = table[item + 3u];
    let inside = i < table[item + 2u];
    if lane == 0u { atomicStore(&firsts[row], cols); }
    workgroupBarrier();
    if inside {
        for (var k = lane; k < cols; k += lanes) {
            let bits = bitcast<u32>(arena[table[item] + i * table[item + 1u] + k]);
            if (bits & 0x7f800000u) == 0x7f800000u { atomicMin(&firsts[row], k); }
        }
    }
    workgroupBarrier();
    if inside && lane == 0u { arena[table[item + 4u] + i] = f32(atomicLoad(&firsts[row])); }
}
