// For each row z of logits at temperature t and a number u in [0, 1): w_i = e^((z_i - max z) / t), and token <- the first
// i with w_0 + ... + w_i > u (w_0 + ... + w_n); where t is 0, the first i with z_i = max z. A workgroup a row, a thread a
// segment of neighbours; a tree over segments, in workgroup memory (2 KB), is gone down from its root to the one that
// counts. 256 threads, a barrier a level.
// words: logits_at stride rows cols temperatures_at uniforms_at tokens_at

const LOWEST = -3.4028234e38;

// Node k has the children 2k and 2k + 1, the leaves are the last THREADS nodes.
var<workgroup> tree: array<f32, 2u * THREADS>;

fn grow_largest(thread: u32, leaf: f32) {
    workgroupBarrier();
    tree[THREADS + thread] = leaf;
    for (var width = THREADS / 2u; width > 0u; width /= 2u) {
        workgroupBarrier();
        let node = width + thread;
        if thread < width { tree[node] = max(tree[2u * node], tree[2u * node + 1u]); }
    }
    workgroupBarrier();
}

fn grow_sum(thread: u32, leaf: f32) {
    workgroupBarrier();
    tree[THREADS + thread] = leaf;
    for (var width = THREADS / 2u; width > 0u; width /= 2u) {
        workgroupBarrier();
        let node = width + thread;
        if thread < width { tree[node] = tree[2u * node] + tree[2u * node + 1u]; }
    }
    workgroupBarrier();
}

@compute @workgroup_size(THREADS)
fn draw(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
        @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let row = found.group;
    let cols = table[item + 3u];
    let length = (cols + THREADS - 1u) / THREADS;
    let start = min(thread * length, cols);
    let end = min(start + length, cols);
    let z = table[item] + row * table[item + 1u];
    let temperature = arena[table[item + 4u] + row];
    var top = LOWEST;
    for (var i = start; i < end; i++) { top = max(top, arena[z + i]); }
    grow_largest(thread, top);
    let largest = tree[1];
    let greedy = temperature == 0.0;
    var node = 1u;
    if greedy {
        while node < THREADS { node = 2u * node + select(1u, 0u, tree[2u * node] == largest); }
    }
    var sum = 0.0;
    if !greedy {
        for (var i = start; i < end; i++) { sum += exp((arena[z + i] - largest) / temperature); }
    }
    grow_sum(thread, sum);
    var rest = 0.0;
    if !greedy {
        // What is left to be passed below a node is less than its sum, so no step goes to one without weight.
        rest = arena[table[item + 5u] + row] * tree[1];
        while node < THREADS {
            let left = tree[2u * node];
            let right = rest >= left && tree[2u * node + 1u] > 0.0;
            if right { rest -= left; }
            node = 2u * node + select(0u, 1u, right);
        }
    }
    if node != THREADS + thread { return; }
    var token = start;
    if greedy {
        while token + 1u < end && arena[z + token] != largest { token++; }
    } else {
        sum = 0.0;
        for (var i = start; i < end && sum <= rest; i++) {
            let weight = exp((arena[z + i] - largest) / temperature);
            if weight > 0.0 { token = i; }
            sum += weight;
        }
    }
    arena[table[item + 6u] + row] = f32(token);
}
