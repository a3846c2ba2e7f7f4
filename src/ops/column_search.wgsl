// Signs and scales of the columns start to start + width (at most BLOCK) of one item, one after another; columns are rows
// here. Column j: b_j <- b_j - sum over start <= i < j of Rt[j,i] e_i; g = b.s / s.Ks, s and Ks negated where it is
// negative; the entry with the lowest change 4 g s_k (b_k - g ((Ks)_k - K_kk s_k)) flips (the lowest k of equal ones)
// until none is below -tolerance g^2 K_kk, 4 r times at most; g is fitted again, MAX_ROUNDS rounds at most, the last one
// without a flip or with g moved by at most scale_tolerance |g|. e_j = (b_j - g (Ks)_j) / Rt[j,j].
// One workgroup an item, 256 threads; thread t owns the entries t, t + 256, ... of s, Ks, b, e and the diagonal of K in
// private memory: r at most SLOTS * 256 = 4096. g and the flips of all columns are NaN where the loops were cut short. Rows of K come from the arena. 2.2 KB of workgroup memory, two barriers a
// flip: all threads leave 256 candidates, 16 threads look at 16 each, all threads at the 16 that remain.
// words: s_at s_stride ks_at ks_stride b_at b_stride k_at k_stride rt_at rt_stride e_at e_stride n r start width g_at
// flips_at tolerance scale_tolerance

const SLOTS = 16u;
// Above every change that a flip is taken for.
const NOTHING = vec2f(3.4e38, 0.0);

var<workgroup> lanes: array<vec2f, THREADS>;
var<workgroup> sixteen: array<vec2f, 16>;

var<private> s: array<f32, SLOTS>;
var<private> ks: array<f32, SLOTS>;
var<private> b: array<f32, SLOTS>;
var<private> diagonal: array<f32, SLOTS>;

// The lower change, or the lower k where they are equal. Candidates: change, and 2 k, plus one where s_k is negative.
fn better(a: vec2f, b: vec2f) -> vec2f {
    return select(a, b, b.x < a.x || (b.x == a.x && b.y < a.y));
}

fn best_of_all(thread: u32, mine: vec2f) -> vec2f {
    lanes[thread] = mine;
    workgroupBarrier();
    if thread < 16u {
        var best = lanes[thread];
        for (var i = 16u; i < THREADS; i += 16u) { best = better(best, lanes[thread + i]); }
        sixteen[thread] = best;
    }
    workgroupBarrier();
    var best = sixteen[0];
    for (var i = 1u; i < 16u; i++) { best = better(best, sixteen[i]); }
    return best;
}

fn sum_of_all(thread: u32, mine: vec2f) -> vec2f {
    lanes[thread] = mine;
    workgroupBarrier();
    if thread < 16u {
        var sum = lanes[thread];
        for (var i = 16u; i < THREADS; i += 16u) { sum += lanes[thread + i]; }
        sixteen[thread] = sum;
    }
    workgroupBarrier();
    var sum = sixteen[0];
    for (var i = 1u; i < 16u; i++) { sum += sixteen[i]; }
    return sum;
}

// g = b.s / s.Ks, made positive by negating s.
fn fit_scale(thread: u32, slots: u32) -> f32 {
    var mine = vec2f();
    for (var t = 0u; t < slots; t++) { mine += vec2f(s[t] * ks[t], b[t] * s[t]); }
    let sums = sum_of_all(thread, mine);
    var g = 0.0;
    if sums.x > 0.0 { g = sums.y / sums.x; }
    if g < 0.0 {
        for (var t = 0u; t < slots; t++) {
            s[t] = -s[t];
            ks[t] = -ks[t];
        }
    }
    return abs(g);
}

// Flips until none pays, and returns how many.
fn flip_round(item: u32, thread: u32, slots: u32, g: f32) -> u32 {
    let r = table[item + 13u];
    let threshold = -bitcast<f32>(table[item + 18u]) * (g * g);
    var flips = 0u;
    while flips < 4u * r {
        var mine = NOTHING;
        for (var t = 0u; t < slots; t++) {
            let k = thread + THREADS * t;
            let change = 4.0 * g * s[t] * (b[t] - g * (ks[t] - diagonal[t] * s[t]));
            if k < r && change < mine.x { mine = vec2f(change, f32(2u * k + u32(s[t] < 0.0))); }
        }
        let best = best_of_all(thread, mine);
        let flipped = u32(best.y) / 2u;
        let row = table[item + 6u] + flipped * table[item + 7u];
        if !(best.x < threshold * arena[row + flipped]) { break; }
        let step = select(-2.0, 2.0, u32(best.y) % 2u == 1u);
        for (var t = 0u; t < slots; t++) {
            let k = thread + THREADS * t;
            if k < r { ks[t] += step * arena[row + k]; }
            if k == flipped { s[t] = -s[t]; }
        }
        flips++;
    }
    return flips;
}

@compute @workgroup_size(THREADS)
fn column_search(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
                 @builtin(local_invocation_index) thread: u32) {
    let item = find_item(w, groups).item;
    if item == 0u { return; }
    let r = table[item + 13u];
    let start = table[item + 14u];
    let e_at = table[item + 10u];
    let e_stride = table[item + 11u];
    let scale_tolerance = bitcast<f32>(table[item + 19u]);
    let slots = (r + THREADS - 1u) / THREADS;
    for (var t = 0u; t < slots; t++) {
        let k = thread + THREADS * t;
        diagonal[t] = 0.0;
        if k < r { diagonal[t] = arena[table[item + 6u] + k * (table[item + 7u] + 1u)]; }
    }
    for (var j = start; j < start + table[item + 15u]; j++) {
        let s_row = table[item] + j * table[item + 1u];
        let ks_row = table[item + 2u] + j * table[item + 3u];
        let b_row = table[item + 4u] + j * table[item + 5u];
        let rt_row = table[item + 8u] + j * table[item + 9u];
        for (var t = 0u; t < slots; t++) {
            let k = thread + THREADS * t;
            s[t] = 0.0;
            ks[t] = 0.0;
            b[t] = 0.0;
            if k < r {
                s[t] = arena[s_row + k];
                ks[t] = arena[ks_row + k];
                var value = arena[b_row + k];
                for (var i = start; i < j; i++) {
                    value -= arena[rt_row + i] * arena[e_at + (i - start) * e_stride + k];
                }
                b[t] = value;
            }
        }
        var g = fit_scale(thread, slots);
        var flips = 0u;
        for (var round = 0u; round < MAX_ROUNDS; round++) {
            let taken = flip_round(item, thread, slots, g);
            flips += taken;
            let fitted = fit_scale(thread, slots);
            let settled = abs(fitted - g) <= scale_tolerance * abs(g);
            g = fitted;
            if taken == 0u || settled { break; }
        }
        let pivot = arena[rt_row + j];
        for (var t = 0u; t < slots; t++) {
            let k = thread + THREADS * t;
            if k < r {
                arena[s_row + k] = s[t];
                arena[ks_row + k] = ks[t];
                arena[e_at + (j - start) * e_stride + k] = (b[t] - g * ks[t]) / pivot;
            }
        }
        if thread == 0u {
            arena[table[item + 16u] + j] = g;
            arena[table[item + 17u] + j] = f32(flips);
        }
    }
    if !loops_turn() && thread < table[item + 15u] {
        arena[table[item + 16u] + start + thread] = nan();
        arena[table[item + 17u] + start + thread] = nan();
    }
}
