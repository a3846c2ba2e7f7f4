//! Causal attention with its gradient, for tuning; see [`attention`](super::attention) for the formula.

use faer::linalg::matmul::matmul;
use faer::{Accum, Par};
use rayon::prelude::*;

use super::attention::{Heads, Mask};
use super::attention_tf32;
use super::exp::exp;
use super::gemm::{matrix, matrix_mut};
use super::matmul::{rows, rows_mut};
use crate::device::arena::{Arena, Memory, Precision, Program, Table, View, float_word};

/// The widest head that the kernels take; the host takes any.
pub const WIDEST_HEAD: usize = 256;

/// Rows of a tile of queries, and of one of keys, in f32.
pub const TILE: usize = 64;

/// Largest difference of a gradient from the exact one, relative to numbers of order one: scores of up to sqrt(128) in
/// an exponential, sums of up to 2,048 products.
pub const ATTENTION_GRADIENT_TOLERANCE: f64 = 1e-4;

/// The same at [`Precision::Tf32`], of outputs too, for q, k, v and dout in [−1, 1) and up to four query heads a key.
///
/// A number rounded to 11 bits is off by 0.42·2^-11 of itself at one standard deviation, a product of two by
/// δ = 0.6·2^-11. A score, d products of mean square 1/9 over sqrt(d), is then off by δ/3, and so is `dout·v/sqrt(d)`. A
/// weighted value of mean square 1/3 is off by its score's error and two roundings, `sqrt(1 + 1/9) δ/sqrt(3) = 0.61δ` of
/// its weight. An output's weights have squares that sum to at most 1. Those of a key, near 1/t for query t, sum to at
/// most π²/6 in each head: four heads make it 1.6δ, 4.6e-4. Five of these; sums of 2,048 f32 products add 1e-5.
pub const ATTENTION_TF32_TOLERANCE: f64 = 2.3e-3;

/// A kernel for heads of some width.
pub(super) struct Kernel {
    pub program: Program,
    /// Rows of its result that a workgroup owns.
    pub rows: usize,
}

macro_rules! widths {
    ($name:ident, $entry:literal) => {
        /// For heads of at most 64, 128 and 256 numbers.
        pub(super) static $name: [Kernel; 3] = [widths!($entry, 1), widths!($entry, 2), widths!($entry, 4)];
    };
    ($entry:literal, $chunks:literal) => {
        Kernel {
            rows: TILE,
            program: cuda_program!(
                "attention_backward",
                $entry,
                256,
                [("TILE", TILE as u32), ("CHUNKS", $chunks)]
            ),
        }
    };
}

widths!(KEPT, "attention_kept");
widths!(QUERIES, "attention_queries");
widths!(KEYS, "attention_keys");

/// One window: T rows of each.
#[derive(Clone, Copy, Debug)]
pub struct KeptAttention {
    /// T x heads·d
    pub q: View,
    /// T x kv_heads·d
    pub k: View,
    pub v: View,
    /// T x heads·d; overlaps nothing else.
    pub out: View,
    /// The logarithm of each row's sum of exponentials: T x heads numbers, from which the backward pass finds the
    /// weights again.
    pub log_sums: usize,
}

/// The gradient of one window, from that of its output.
#[derive(Clone, Copy, Debug)]
pub struct AttentionGradient {
    /// As [`attention_kept`] left it.
    pub forward: KeptAttention,
    pub dout: View,
    /// As q, k and v; none of them overlaps anything else.
    pub dq: View,
    pub dk: View,
    pub dv: View,
    /// Room for T x heads numbers: the products `dout·out` of each head.
    pub inner: usize,
}

/// Attention of all windows, with what its gradient needs. At [`Precision::Tf32`] a card may round the operands of
/// products, weights among them, to 11 significant bits; sums and softmax are f32. The host computes in f32 at either
/// precision.
///
/// # Panics
/// When shapes contradict each other, or heads are wider than [`WIDEST_HEAD`] on a device.
pub fn attention_kept(
    arena: &mut Arena,
    (heads, mask): (Heads, Mask),
    items: &[KeptAttention],
    precision: Precision,
) {
    items.iter().for_each(|item| item.check(heads));
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| forward_on_host(memory, heads, mask, item));
    }
    let kernel = choose(&KEPT, &attention_tf32::KEPT, heads, precision);
    let mut table = Table::new(15);
    for item in items {
        table.push(item.q.rows.div_ceil(kernel.rows) * heads.heads, &item.words(heads, mask));
    }
    arena.queue(&kernel.program, table);
}

/// `p = softmax(scores)`, `e_ts = p_ts·(dout_t·v_s − dout_t·out_t)/sqrt(d)`: `dq_t = Σ_s e_ts k_s`, `dk_s = Σ_t e_ts q_t`,
/// `dv_s = Σ_t p_ts dout_t`, keys and values summed over the query heads that read them (Dao et al. 2022, algorithm 4).
///
/// Precision and panics are those of [`attention_kept`]; the two passes need not have the same.
///
/// # Panics
/// As [`attention_kept`].
pub fn attention_backward(
    arena: &mut Arena,
    (heads, mask): (Heads, Mask),
    items: &[AttentionGradient],
    precision: Precision,
) {
    items.iter().for_each(|item| item.check(heads));
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| backward_on_host(memory, heads, mask, item));
    }
    let queries = choose(&QUERIES, &attention_tf32::QUERIES, heads, precision);
    let keys = choose(&KEYS, &attention_tf32::KEYS, heads, precision);
    for (kernel, heads_owned) in [(queries, heads.heads), (keys, heads.kv_heads)] {
        let mut table = Table::new(24);
        for item in items {
            table.push(item.dq.rows.div_ceil(kernel.rows) * heads_owned, &item.words(heads, mask));
        }
        arena.queue(&kernel.program, table);
    }
}

impl KeptAttention {
    fn check(&self, heads: Heads) {
        let Self { q, k, v, out, .. } = self;
        let widths = [q.cols, k.cols, v.cols, out.cols];
        assert_eq!(widths, [heads.width(), heads.kv_width(), heads.kv_width(), heads.width()], "{heads:?}");
        assert!([k, v, out].iter().all(|x| x.rows == q.rows), "as many rows of each");
    }

    fn words(&self, heads: Heads, mask: Mask) -> [usize; 15] {
        let Self { q, k, v, out, log_sums } = self;
        let (rows, scale) = (q.rows, float_word(heads.scale()));
        [
            q.at,
            q.stride,
            k.at,
            k.stride,
            v.at,
            v.stride,
            out.at,
            out.stride,
            rows,
            heads.heads,
            heads.kv_heads,
            heads.head_dim,
            mask.reach(rows),
            scale,
            *log_sums,
        ]
    }
}

impl AttentionGradient {
    fn check(&self, heads: Heads) {
        let Self { forward, dout, dq, dk, dv, .. } = self;
        forward.check(heads);
        let of = [(dout, forward.out), (dq, forward.q), (dk, forward.k), (dv, forward.v)];
        assert!(
            of.iter().all(|(d, x)| (d.rows, d.cols) == (x.rows, x.cols)),
            "gradients have the shapes of what they are of"
        );
    }

    fn words(&self, heads: Heads, mask: Mask) -> Vec<usize> {
        let Self { forward, dout, dq, dk, dv, inner } = self;
        let places = [dout, dq, dk, dv].into_iter().flat_map(|view| [view.at, view.stride]);
        forward.words(heads, mask).into_iter().chain(places).chain([*inner]).collect()
    }
}

/// The kernel for these heads, of those in f32 and those on tensor cores.
fn choose(
    plain: &'static [Kernel; 3],
    tensor: &'static [Kernel; 3],
    heads: Heads,
    precision: Precision,
) -> &'static Kernel {
    assert!(heads.head_dim <= WIDEST_HEAD, "a head of {} numbers, at most {WIDEST_HEAD}", heads.head_dim);
    let width = heads.head_dim.div_ceil(64).next_power_of_two().trailing_zeros() as usize;
    match precision {
        Precision::Tf32 => &tensor[width],
        Precision::F32 => &plain[width],
    }
}

/// Keys that a query sees at most, its own included.
/// A tile of queries of one head: which rows, and the keys that any of them sees.
#[derive(Clone, Copy)]
struct Tile {
    first: usize,
    count: usize,
    first_key: usize,
    reach: usize,
}

impl Tile {
    fn all(rows: usize, reach: usize) -> impl Iterator<Item = Self> {
        (0..rows).step_by(TILE).map(move |first| {
            let count = TILE.min(rows - first);
            Self { first, count, first_key: (first + 1).saturating_sub(reach), reach }
        })
    }

    fn keys(self) -> usize {
        self.first + self.count - self.first_key
    }

    /// The rows of the tile, and the columns of one head.
    fn queries(self, of: View, head: usize, dim: usize) -> View {
        of.part((self.first, head * dim), (self.count, dim))
    }

    fn seen(self, of: View, head: usize, dim: usize) -> View {
        of.part((self.first_key, head * dim), (self.keys(), dim))
    }

    /// `A·Bᵀ`, for rows of queries and rows of keys.
    ///
    /// # Safety
    /// As [`matrix`].
    unsafe fn products(self, memory: Memory, a: View, b: View, scale: f32) -> Vec<f32> {
        let mut out = vec![0.0; self.count * self.keys()];
        let c = rows_mut(&mut out, self.count, self.keys());
        // SAFETY: the caller vouches.
        let (a, b) = unsafe { (matrix(memory, a), matrix(memory, b)) };
        matmul(c, Accum::Replace, a, b.transpose(), scale, Par::Seq);
        out
    }

    /// The keys that query `t` of the tile sees, as columns of the tile.
    fn columns(self, t: usize) -> std::ops::Range<usize> {
        let end = self.first + t + 1;
        end.saturating_sub(self.reach).max(self.first_key) - self.first_key..end - self.first_key
    }
}

fn forward_on_host(memory: Memory, heads: Heads, mask: Mask, item: &KeptAttention) {
    let (dim, share) = (heads.head_dim, heads.heads / heads.kv_heads);
    (0..heads.heads).into_par_iter().for_each(|head| {
        for tile in Tile::all(item.q.rows, mask.reach(item.q.rows)) {
            let (q, k) = (tile.queries(item.q, head, dim), tile.seen(item.k, head / share, dim));
            // SAFETY: q, k and v are read only; this head's columns of the output and its sums are written here alone.
            unsafe {
                let mut scores = tile.products(memory, q, k, heads.scale());
                for (t, row) in scores.chunks_exact_mut(tile.keys()).enumerate() {
                    let seen = tile.columns(t);
                    let largest = row[seen.clone()].iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    row.iter_mut().enumerate().for_each(|(s, z)| {
                        *z = if seen.contains(&s) { exp(*z - largest) } else { 0.0 };
                    });
                    let total: f32 = row.iter().sum();
                    row.iter_mut().for_each(|p| *p /= total);
                    let at = item.log_sums + (tile.first + t) * heads.heads + head;
                    *memory.pointer(View::vector(at, 1)) = largest + total.ln();
                }
                let v = matrix(memory, tile.seen(item.v, head / share, dim));
                let out = matrix_mut(memory, tile.queries(item.out, head, dim));
                matmul(out, Accum::Replace, rows(&scores, tile.count, tile.keys()), v, 1.0, Par::Seq);
            }
        }
    });
}

fn backward_on_host(memory: Memory, heads: Heads, mask: Mask, item: &AttentionGradient) {
    let (dim, share) = (heads.head_dim, heads.heads / heads.kv_heads);
    let AttentionGradient { forward, dout, dq, dk, dv, .. } = *item;
    (0..heads.kv_heads).into_par_iter().for_each(|kv_head| {
        let columns = |of: View| of.part((0, kv_head * dim), (of.rows, dim));
        // SAFETY: what the forward pass left is read only; this head's columns of dk and dv, and those of its query
        // heads of dq, are written here alone.
        unsafe {
            for of in [dk, dv] {
                matrix_mut(memory, columns(of)).fill(0.0);
            }
            for head in kv_head * share..(kv_head + 1) * share {
                for tile in Tile::all(forward.q.rows, mask.reach(forward.q.rows)) {
                    let [q, out, dout, dq] =
                        [forward.q, forward.out, dout, dq].map(|of| tile.queries(of, head, dim));
                    let [k, v, dk, dv] = [forward.k, forward.v, dk, dv].map(|of| tile.seen(of, kv_head, dim));
                    let mut weights = tile.products(memory, q, k, heads.scale());
                    let mut slopes = tile.products(memory, dout, v, 1.0);
                    let keys = tile.keys();
                    for t in 0..tile.count {
                        let at = forward.log_sums + (tile.first + t) * heads.heads + head;
                        let log_sum = *memory.pointer(View::vector(at, 1));
                        let inner = super::dots::dot(memory.row(dout, t), memory.row(out, t));
                        let seen = tile.columns(t);
                        for s in 0..keys {
                            let (weight, slope) = (&mut weights[t * keys + s], &mut slopes[t * keys + s]);
                            *weight = if seen.contains(&s) { exp(*weight - log_sum) } else { 0.0 };
                            *slope = heads.scale() * *weight * (*slope - inner);
                        }
                    }
                    let [weights, slopes] = [&weights, &slopes].map(|x| rows(x, tile.count, keys));
                    let [q, k, dout] = [q, k, dout].map(|of| matrix(memory, of));
                    matmul(matrix_mut(memory, dq), Accum::Replace, slopes, k, 1.0, Par::Seq);
                    matmul(matrix_mut(memory, dk), Accum::Add, slopes.transpose(), q, 1.0, Par::Seq);
                    matmul(matrix_mut(memory, dv), Accum::Add, weights.transpose(), dout, 1.0, Par::Seq);
                }
            }
        }
    });
}
