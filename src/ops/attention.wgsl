// Causal grouped-query attention, o_t = sum over s of softmax_s(q_t k_s / sqrt(d)) v_s, with a running softmax: what was
// summed so far is scaled down when a larger score comes. Rows of q, k, v and o lie one after another. A query sees the
// `reach` keys up to its own. 256 threads, at most 14 KB of workgroup memory.

const PITCH = TILE + 1u;
const CHUNKS = WIDEST_HEAD / TILE;
const LANES = THREADS / TILE;
const LOWEST = -3.0e38;

var<workgroup> left: array<f32, TILE * PITCH>;
var<workgroup> right: array<f32, TILE * PITCH>;
var<workgroup> weights: array<f32, TILE * PITCH>;
var<workgroup> parts: array<f32, THREADS>;
var<workgroup> factors: array<f32, TILE>;
var<workgroup> seen_keys: u32;

// Entry (i, j) of one head's rows `first` on, columns `column` on; zero outside.
fn entry(at: u32, width: u32, i: u32, limit: u32, j: u32, dim: u32) -> f32 {
    if i >= limit || j >= dim { return 0.0; }
    return arena[at + i * width + j];
}

// The largest, or the sum, over the lanes of each row of threads (of `lanes`, a power of two), in every lane.
fn lanes_max(thread: u32, lanes: u32, value: f32) -> f32 {
    workgroupBarrier();
    parts[thread] = value;
    for (var half = lanes / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if thread % lanes < half { parts[thread] = max(parts[thread], parts[thread + half]); }
    }
    workgroupBarrier();
    return parts[thread - thread % lanes];
}

fn lanes_sum(thread: u32, lanes: u32, value: f32) -> f32 {
    workgroupBarrier();
    parts[thread] = value;
    for (var half = lanes / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if thread % lanes < half { parts[thread] += parts[thread + half]; }
    }
    workgroupBarrier();
    return parts[thread - thread % lanes];
}

// A workgroup takes TILE queries of one head; the queries are the last of the keys' positions. Scores and outputs of a
// thread: queries y and y + 16, keys or columns x and x + 16 of each tile; softmax: eight lanes a query.
// words: q_at k_at v_at o_at queries keys heads kv_heads head_dim scale reach
@compute @workgroup_size(THREADS)
fn attention(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
             @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let queries = table[item + 4u];
    let keys = table[item + 5u];
    let heads = table[item + 6u];
    let kv_heads = table[item + 7u];
    let dim = table[item + 8u];
    let scale = bitcast<f32>(table[item + 9u]);
    let head = found.group % heads;
    let first = found.group / heads * TILE;
    let kv_head = head / (heads / kv_heads);
    let width = heads * dim;
    let kv_width = kv_heads * dim;
    let q = table[item] + head * dim;
    let k = table[item + 1u] + kv_head * dim;
    let v = table[item + 2u] + kv_head * dim;
    let x = thread % 16u;
    let y = thread / 16u;
    let row = thread / LANES;
    let lane = thread % LANES;
    let load_row = thread / TILE;
    let load_column = thread % TILE;
    // Positions before the first query of the tile, keys up to its last, and the first that any of them sees.
    let before = keys - queries + first;
    let seen = keys - queries + min(first + TILE, queries);
    let reach = table[item + 10u];
    let oldest = before + 1u - min(before + 1u, reach);
    let own = before + row;
    var largest = LOWEST;
    var total = 0.0;
    var sum: array<vec4f, CHUNKS>;
    for (var start = oldest / TILE * TILE; start < seen; start += TILE) {
        var score = vec4f();
        for (var column = 0u; column < dim; column += TILE) {
            workgroupBarrier();
            for (var i = load_row; i < TILE; i += LANES) {
                left[i * PITCH + load_column] = entry(q, width, first + i, queries, column + load_column, dim);
                right[i * PITCH + load_column] = entry(k, kv_width, start + i, seen, column + load_column, dim);
            }
            workgroupBarrier();
            for (var i = 0u; i < TILE; i++) {
                let a = vec2f(left[y * PITCH + i], left[(y + 16u) * PITCH + i]);
                let b = vec2f(right[x * PITCH + i], right[(x + 16u) * PITCH + i]);
                score = fma(a.xxyy, b.xyxy, score);
            }
        }
        weights[y * PITCH + x] = scale * score.x;
        weights[y * PITCH + x + 16u] = scale * score.y;
        weights[(y + 16u) * PITCH + x] = scale * score.z;
        weights[(y + 16u) * PITCH + x + 16u] = scale * score.w;
        workgroupBarrier();
        var top = largest;
        for (var j = lane; j < TILE; j += LANES) {
            if start + j <= own && own - (start + j) < reach { top = max(top, weights[row * PITCH + j]); }
        }
        top = lanes_max(thread, LANES, top);
        var part = 0.0;
        for (var j = lane; j < TILE; j += LANES) {
            var weight = 0.0;
            if start + j <= own && own - (start + j) < reach { weight = exp(weights[row * PITCH + j] - top); }
            weights[row * PITCH + j] = weight;
            part += weight;
        }
        part = lanes_sum(thread, LANES, part);
        let keep = exp(largest - top);
        total = total * keep + part;
        largest = top;
        if lane == 0u { factors[row] = keep; }
        for (var chunk = 0u; chunk < CHUNKS; chunk++) {
            if chunk * TILE >= dim { break; }
            workgroupBarrier();
            for (var i = load_row; i < TILE; i += LANES) {
                right[i * PITCH + load_column] = entry(v, kv_width, start + i, seen, chunk * TILE + load_column, dim);
            }
            workgroupBarrier();
            var mixed = sum[chunk] * vec2f(factors[y], factors[y + 16u]).xxyy;
            for (var s = 0u; s < TILE; s++) {
                let a = vec2f(weights[y * PITCH + s], weights[(y + 16u) * PITCH + s]);
                let b = vec2f(right[s * PITCH + x], right[s * PITCH + x + 16u]);
                mixed = fma(a.xxyy, b.xyxy, mixed);
            }
            sum[chunk] = mixed;
        }
    }
    workgroupBarrier();
    if lane == 0u { factors[row] = select(nan(), 1.0 / total, loops_turn()); }
    workgroupBarrier();
    let o = table[item + 3u] + head * dim;
    for (var chunk = 0u; chunk < CHUNKS; chunk++) {
        for (var e = 0u; e < 4u; e++) {
            let i = y + e / 2u * 16u;
            let j = chunk * TILE + x + e % 2u * 16u;
            if first + i < queries && j < dim { arena[o + (first + i) * width + j] = sum[chunk][e] * factors[i]; }
        }
    }
}

// A workgroup takes one head of the one query of a sequence: scores a thread a key, THREADS keys at a time, then values:
// 32 threads a share of the keys. `left` holds the query, `right` the weights.
// words: q_at keys_at values_at o_at positions_at room heads kv_heads head_dim scale reach
@compute @workgroup_size(THREADS)
fn attention_cached(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
                    @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let heads = table[item + 6u];
    let kv_heads = table[item + 7u];
    let dim = table[item + 8u];
    let sequence = found.group / heads;
    let head = found.group % heads;
    let kv_width = kv_heads * dim;
    let cache = sequence * table[item + 5u] * kv_width + head / (heads / kv_heads) * dim;
    let k = table[item + 1u] + cache;
    let v = table[item + 2u] + cache;
    let out = (sequence * heads + head) * dim;
    let lane = thread % 32u;
    let share = thread / 32u;
    if thread == 0u { seen_keys = u32(arena[table[item + 4u] + sequence]) + 1u; }
    if thread < dim { left[thread] = arena[table[item] + out + thread] * bitcast<f32>(table[item + 9u]); }
    let seen = workgroupUniformLoad(&seen_keys);
    var largest = LOWEST;
    var total = 0.0;
    var sum: array<f32, WIDEST_HEAD / 32u>;
    for (var start = seen - min(seen, table[item + 10u]); start < seen; start += THREADS) {
        let key = start + thread;
        var score = LOWEST;
        if key < seen {
            score = 0.0;
            for (var i = 0u; i < dim; i++) { score = fma(left[i], arena[k + key * kv_width + i], score); }
        }
        let top = max(largest, lanes_max(thread, THREADS, score));
        let keep = exp(largest - top);
        var weight = 0.0;
        if key < seen { weight = exp(score - top); }
        right[thread] = weight;
        total = total * keep + lanes_sum(thread, THREADS, weight);
        largest = top;
        let count = min(THREADS, seen - start);
        for (var c = 0u; c < WIDEST_HEAD / 32u; c++) {
            let column = lane + 32u * c;
            var mixed = sum[c] * keep;
            if column < dim {
                for (var s = share; s < count; s += THREADS / 32u) {
                    mixed = fma(right[s], arena[v + (start + s) * kv_width + column], mixed);
                }
            }
            sum[c] = mixed;
        }
    }
    for (var c = 0u; c < WIDEST_HEAD / 32u; c++) {
        workgroupBarrier();
        parts[thread] = sum[c];
        workgroupBarrier();
        let column = lane + 32u * c;
        if share == 0u && column < dim {
            var value = 0.0;
            for (var s = 0u; s < THREADS / 32u; s++) { value += parts[s * 32u + lane]; }
            arena[table[item + 3u] + out + column] = value / total;
        }
    }
}
