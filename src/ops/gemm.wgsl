// C <- f(alpha op(A) op(B) ∘ H + beta C + diagonal I), op(A) m x k, op(B) k x n. Workgroup g of an item owns the tile
// of 64 x 64 entries in tile row g / ceil(n/64), tile column g % ceil(n/64); a thread owns 4 x 4 of them, 16 apart in
// both directions. 256 threads, 8.4 KB of workgroup memory, two barriers for every 16 of k, summed in ascending order.
// words: a_at a_stride b_at b_stride c_at c_stride m n k flags alpha beta diagonal h_at h_stride skip_at

const A_TRANSPOSED = 1u;
const B_TRANSPOSED = 2u;
const LOWER = 4u;
const SIGN = 8u;
const HADAMARD = 16u;
const NONE = 0xffffffffu;

// 16 of k as four vectors, for each the 64 rows of op(A), or columns of op(B); 66 apart, so that neither the writes
// nor the reads meet in one bank.
const PITCH = 66u;
var<workgroup> a_tile: array<vec4f, 4 * PITCH>;
var<workgroup> b_tile: array<vec4f, 4 * PITCH>;
var<workgroup> skip: u32;

// An operand as rows of k: row i, entries k to k+3, zero outside.
struct Operand { at: u32, stride: u32, rows: u32, k: u32, across: bool }

fn fetch(operand: Operand, i: u32, k: u32) -> vec4f {
    var values = vec4f();
    if i >= operand.rows || k >= operand.k { return values; }
    let step = select(1u, operand.stride, operand.across);
    let at = operand.at + select(i * operand.stride, i, operand.across) + k * step;
    values.x = arena[at];
    if k + 1u < operand.k { values.y = arena[at + step]; }
    if k + 2u < operand.k { values.z = arena[at + 2u * step]; }
    if k + 3u < operand.k { values.w = arena[at + 3u * step]; }
    return values;
}

// Row (x) and quarter of the 16 k (y) that a thread fetches: neighbours read neighbouring numbers.
fn share(operand: Operand, thread: u32) -> vec2u {
    return select(vec2u(thread / 4u, thread % 4u), vec2u(thread % 64u, thread / 64u), operand.across);
}

// c + a b, b's columns as columns.
fn add_products(c: vec4f, a: vec4f, b: mat4x4f) -> vec4f {
    return fma(vec4f(a.w), b[3], fma(vec4f(a.z), b[2], fma(vec4f(a.y), b[1], fma(vec4f(a.x), b[0], c))));
}

fn finish(item: u32, row: u32, first_column: u32, sums: vec4f) {
    let n = table[item + 7u];
    let flags = table[item + 9u];
    let alpha = bitcast<f32>(table[item + 10u]);
    let beta = bitcast<f32>(table[item + 11u]);
    if row >= table[item + 6u] { return; }
    for (var j = 0u; j < 4u; j++) {
        let column = first_column + 16u * j;
        if column >= n { return; }
        let at = table[item + 4u] + row * table[item + 5u] + column;
        var value = alpha * sums[j];
        if (flags & HADAMARD) != 0u { value *= arena[table[item + 13u] + row * table[item + 14u] + column]; }
        if beta != 0.0 { value += beta * arena[at]; }
        if row == column { value += bitcast<f32>(table[item + 12u]); }
        if (flags & SIGN) != 0u { value = select(1.0, -1.0, value < 0.0); }
        arena[at] = value;
    }
}

@compute @workgroup_size(THREADS)
fn gemm(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) groups: vec3u,
        @builtin(local_invocation_index) thread: u32) {
    let found = find_item(w, groups);
    let item = found.item;
    if item == 0u { return; }
    let m = table[item + 6u];
    let n = table[item + 7u];
    let k = table[item + 8u];
    let flags = table[item + 9u];
    let tiles = (n + TILE - 1u) / TILE;
    let first = TILE * vec2u(found.group / tiles, found.group % tiles);
    if (flags & LOWER) != 0u && first.x < first.y { return; }
    let skip_at = table[item + 15u];
    if skip_at != NONE {
        if thread == 0u { skip = u32(arena[skip_at] != 0.0); }
        if workgroupUniformLoad(&skip) != 0u { return; }
    }
    let a = Operand(table[item], table[item + 1u], m, k, (flags & A_TRANSPOSED) != 0u);
    let b = Operand(table[item + 2u], table[item + 3u], n, k, (flags & B_TRANSPOSED) == 0u);
    let a_share = share(a, thread);
    let b_share = share(b, thread);
    let row = thread / 16u;
    let column = thread % 16u;
    var a_next = fetch(a, first.x + a_share.x, 4u * a_share.y);
    var b_next = fetch(b, first.y + b_share.x, 4u * b_share.y);
    var c0 = vec4f();
    var c1 = vec4f();
    var c2 = vec4f();
    var c3 = vec4f();
    for (var start = 0u; start < k; start += 16u) {
        a_tile[PITCH * a_share.y + a_share.x] = a_next;
        b_tile[PITCH * b_share.y + b_share.x] = b_next;
        workgroupBarrier();
        a_next = fetch(a, first.x + a_share.x, start + 16u + 4u * a_share.y);
        b_next = fetch(b, first.y + b_share.x, start + 16u + 4u * b_share.y);
        for (var quarter = 0u; quarter < 4u; quarter++) {
            let a_at = PITCH * quarter + row;
            let b_at = PITCH * quarter + column;
            let block = transpose(mat4x4f(b_tile[b_at], b_tile[b_at + 16u], b_tile[b_at + 32u], b_tile[b_at + 48u]));
            c0 = add_products(c0, a_tile[a_at], block);
            c1 = add_products(c1, a_tile[a_at + 16u], block);
            c2 = add_products(c2, a_tile[a_at + 32u], block);
            c3 = add_products(c3, a_tile[a_at + 48u], block);
        }
        workgroupBarrier();
    }
    finish(item, first.x + row, first.y + column, c0);
    finish(item, first.x + row + 16u, first.y + column, c1);
    finish(item, first.x + row + 32u, first.y + column, c2);
    finish(item, first.x + row + 48u, first.y + column, c3);
}
