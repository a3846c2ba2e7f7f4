// Stands before every kernel of an arena. A kernel sees the arena and the table of this launch, and is
//
//     @compute @workgroup_size(THREADS) fn NAME(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) n: vec3u,
//                                               @builtin(local_invocation_index) thread: u32)
//
// table: items, groups, stride, 0, then for each item `stride` words, the first of them its first workgroup.

@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
@group(0) @binding(1) var<storage, read> table: array<u32>;

struct Found {
    // Index in `table` of the item's words behind its first one; 0 past the end of the launch.
    item: u32,
    // The workgroup within the item.
    group: u32,
}

// The item that owns a workgroup.
fn find_item(w: vec3u, n: vec3u) -> Found {
    let group = w.y * n.x + w.x;
    if group >= table[1] { return Found(0u, 0u); }
    let stride = table[2];
    var low = 0u;
    var high = table[0];
    while high - low > 1u {
        let middle = (low + high) / 2u;
        if table[4u + middle * stride] <= group { low = middle; } else { high = middle; }
    }
    let first = 4u + low * stride;
    return Found(first + 1u, group - table[first]);
}

// Whether loops still turn: Mesa's software adapter ends every loop of a thread that took 65,535 turns in all its loops.
// Kernels with long loops ask before their result counts.
fn loops_turn() -> bool {
    var turns = 0u;
    while turns < table[2] { turns++; }
    return turns == table[2];
}

// NaN, the mark of a result that does not count; WGSL has no constant for it.
fn nan() -> f32 {
    return bitcast<f32>(table[2] | 0x7fc00000u);
}
