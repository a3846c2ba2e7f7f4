use faer::linalg::matmul::matmul as gemm;
use faer::{Accum, MatRef, Par};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::dense_matvec::dot;
use super::exp::exp;
use super::matmul::rows_mut;

/// Queries of one task. 64 rows of scores over 2,048 keys are 512 KiB: they stay in the second cache.
const QUERIES: usize = 64;

/// At most this many queries go one by one, without GEMM.
const FEW: usize = 4;

/// Heads and their width. Query head i reads key-value head `i / (heads / kv_heads)`.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl Heads {
    /// Width of a row of queries.
    pub fn width(self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of a row of keys, and of one of values.
    pub fn kv_width(self) -> usize {
        self.kv_heads * self.head_dim
    }

    fn kv_head(self, head: usize) -> usize {
        head / (self.heads / self.kv_heads)
    }

    /// The factor on scores, `1/sqrt(d)`.
    pub(super) fn scale(self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }
}

/// Which positions a query sees, none of them later than its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// All of them.
    Causal,
    /// The last `window`, its own included (Beltagy et al. 2020).
    Sliding { window: usize },
}

impl Mask {
    /// How many keys a query sees at most, of `keys`.
    pub(super) fn reach(self, keys: usize) -> usize {
        match self {
            Self::Causal => keys,
            Self::Sliding { window } => window.min(keys),
        }
    }

    /// The first key that a query sees which is the last of `seen`.
    fn first(self, seen: usize) -> usize {
        match self {
            Self::Causal => 0,
            Self::Sliding { window } => seen.saturating_sub(window),
        }
    }
}

/// Causal grouped-query attention: `o_t = Σ_s softmax_s(q_t·k_s / sqrt(d)) v_s` over the s <= t that `mask` shows, head
/// by head (Ainslie et al. 2023). The queries are the last T of the S positions.
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | q | `q` | T x heads·d |
/// | k, v | `k`, `v` | S x kv_heads·d |
/// | o | `out` | T x heads·d |
///
/// # Panics
/// When slices are not whole rows, or there are more queries than keys.
pub fn attention(heads: Heads, mask: Mask, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]) {
    let count = q.len() / heads.width();
    let keys = k.len() / heads.kv_width();
    assert_eq!((q.len(), out.len()), (count * heads.width(), q.len()), "whole rows of queries");
    assert_eq!((k.len(), v.len()), (keys * heads.kv_width(), k.len()), "whole rows of keys and values");
    assert!(count <= keys, "{count} queries over {keys} keys");
    if count <= FEW {
        for (t, (q, out)) in
            q.chunks_exact(heads.width()).zip(out.chunks_exact_mut(heads.width())).enumerate()
        {
            let seen = keys - count + t + 1;
            let rows = mask.first(seen) * heads.kv_width()..seen * heads.kv_width();
            one_query(heads, q, &k[rows.clone()], &v[rows], out);
        }
        return;
    }
    let rows = QUERIES * heads.width();
    let tasks = out.par_chunks_mut(rows).zip(q.par_chunks(rows)).enumerate().with_max_len(1);
    tasks.for_each_init(Vec::new, |scores, (task, (out, q))| {
        let seen = keys - count + task * QUERIES + 1;
        // Keys that no query of the tile sees are left out.
        let first = mask.first(seen);
        let (k, v) = (&k[first * heads.kv_width()..], &v[first * heads.kv_width()..]);
        for head in 0..heads.heads {
            query_tile(heads, head, Tile { q, k, v, out, seen: seen - first, mask }, scores);
        }
    });
}

struct Tile<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    out: &'a mut [f32],
    /// Keys up to the first query's position; each later query has one more.
    seen: usize,
    mask: Mask,
}

/// One head over a tile of queries: scores, softmax, values; two GEMMs.
fn query_tile(heads: Heads, head: usize, tile: Tile<'_>, scores: &mut Vec<f32>) {
    let count = tile.q.len() / heads.width();
    let keys = tile.seen + count - 1;
    let kv = heads.kv_head(head);
    let q = head_columns(tile.q, count, heads.width(), head, heads.head_dim);
    let k = head_columns(tile.k, keys, heads.kv_width(), kv, heads.head_dim);
    let v = head_columns(tile.v, keys, heads.kv_width(), kv, heads.head_dim);
    scores.resize(count * keys, 0.0);
    gemm(rows_mut(scores, count, keys), Accum::Replace, q, k.transpose(), heads.scale(), Par::Seq);
    pulp::Arch::new().dispatch(MaskedSoftmax { scores, keys, seen: tile.seen, mask: tile.mask });
    let scores = MatRef::from_row_major_slice(scores, count, keys);
    let mut out = rows_mut(tile.out, count, heads.width());
    let columns = out.as_mut().subcols_mut(head * heads.head_dim, heads.head_dim);
    gemm(columns, Accum::Replace, scores, v, 1.0, Par::Seq);
}

/// Columns of one head, as a strided view of `count` rows.
fn head_columns(x: &[f32], count: usize, width: usize, head: usize, head_dim: usize) -> MatRef<'_, f32> {
    MatRef::from_row_major_slice(&x[..count * width], count, width).subcols(head * head_dim, head_dim)
}

/// One query over all keys, heads in parallel.
fn one_query(heads: Heads, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]) {
    /// Products one task should at least have.
    const PRODUCTS_PER_TASK: usize = 1 << 15;
    let dim = heads.head_dim;
    let per_head = k.len() / heads.kv_heads;
    let tasks = q.par_chunks_exact(dim).zip(out.par_chunks_exact_mut(dim)).enumerate();
    tasks.with_min_len((PRODUCTS_PER_TASK / per_head).max(1)).for_each_init(
        Vec::new,
        |scores, (head, (q, out))| {
            let column = heads.kv_head(head) * dim;
            pulp::Arch::new().dispatch(OneHead { heads, column, q, k, v, scores, out });
        },
    );
}

/// Softmax of every row over the keys it sees, 0 elsewhere; the first row is at the last of `seen` keys.
/// A struct and not a closure, as [`OneHead`], so that the loops are surely compiled for the CPU's vectors.
struct MaskedSoftmax<'a> {
    scores: &'a mut [f32],
    keys: usize,
    seen: usize,
    mask: Mask,
}

impl WithSimd for MaskedSoftmax<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (t, row) in self.scores.chunks_exact_mut(self.keys).enumerate() {
            let (row, future) = row.split_at_mut(self.seen + t);
            let (past, row) = row.split_at_mut(self.mask.first(self.seen + t));
            past.fill(0.0);
            softmax(row);
            future.fill(0.0);
        }
    }
}

/// One query of one head; its keys and values start at `column` of their rows.
struct OneHead<'a> {
    heads: Heads,
    column: usize,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    scores: &'a mut Vec<f32>,
    out: &'a mut [f32],
}

impl WithSimd for OneHead<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { heads, q, scores, out, .. } = self;
        let width = heads.kv_width();
        let columns = self.column..self.column + heads.head_dim;
        scores.resize(self.k.len() / width, 0.0);
        for (score, k) in scores.iter_mut().zip(self.k.chunks_exact(width)) {
            *score = dot(simd, q, &k[columns.clone()]) * heads.scale();
        }
        softmax(scores);
        out.fill(0.0);
        for (p, v) in scores.iter().zip(self.v.chunks_exact(width)) {
            for (o, v) in out.iter_mut().zip(&v[columns.clone()]) {
                *o = p.mul_add(*v, *o);
            }
        }
    }
}

/// `z_i ← e^{z_i} / Σ_j e^{z_j}`, in place.
#[inline(always)]
fn softmax(z: &mut [f32]) {
    const LANES: usize = 16;
    let mut largest = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = z.as_chunks::<LANES>();
    for chunk in chunks {
        for k in 0..LANES {
            largest[k] = if chunk[k] > largest[k] { chunk[k] } else { largest[k] };
        }
    }
    let largest = largest.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; LANES];
    let (chunks, rest) = z.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for k in 0..LANES {
            chunk[k] = exp(chunk[k] - largest);
            sums[k] += chunk[k];
        }
    }
    for (z, sum) in rest.iter_mut().zip(&mut sums) {
        *z = exp(*z - largest);
        *sum += *z;
    }
    let scale = 1.0 / sums.iter().sum::<f32>();
    for z in z {
        *z *= scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest error of an output: scores are sums of 16 products, weights sums of at most 150 terms.
    const TOLERANCE: f64 = 2e-6;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|k| (((k + seed) * 7919) % 1013) as f32 / 506.0 - 1.0).collect()
    }

    fn exact(heads: Heads, mask: Mask, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f64> {
        let (dim, width, kv_width) = (heads.head_dim, heads.width(), heads.kv_width());
        let (count, keys) = (q.len() / width, k.len() / kv_width);
        let mut out = Vec::new();
        for t in 0..count {
            for head in 0..heads.heads {
                let kv = head / (heads.heads / heads.kv_heads) * dim;
                let product = |a: &[f32], b: &[f32]| -> f64 {
                    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
                };
                let q = &q[t * width + head * dim..][..dim];
                let at = keys - count + t;
                let shown = |s: usize| match mask {
                    Mask::Causal => true,
                    Mask::Sliding { window } => at - s < window,
                };
                let weights: Vec<f64> = (0..=at)
                    .map(|s| {
                        if !shown(s) {
                            0.0
                        } else {
                            (product(q, &k[s * kv_width + kv..][..dim]) / (dim as f64).sqrt()).exp()
                        }
                    })
                    .collect();
                let total: f64 = weights.iter().sum();
                out.extend((0..dim).map(|j| {
                    let term = |(s, w): (usize, &f64)| w * f64::from(v[s * kv_width + kv + j]);
                    weights.iter().enumerate().map(term).sum::<f64>() / total
                }));
            }
        }
        out
    }

    #[test]
    fn attention_equals_its_formula() {
        let cases = [(1, 1, 4, 2), (1, 150, 4, 2), (3, 9, 3, 1), (130, 130, 4, 2), (70, 150, 2, 2)];
        let masks = [1, 5, 64, 100, 1000].map(|window| Mask::Sliding { window });
        let cases = cases
            .into_iter()
            .flat_map(|case| std::iter::once(Mask::Causal).chain(masks).map(move |mask| (case, mask)));
        for ((count, keys, heads, kv_heads), mask) in cases {
            let heads = Heads { heads, kv_heads, head_dim: 16 };
            let q = numbers(count * heads.width(), 1);
            let (k, v) = (numbers(keys * heads.kv_width(), 2), numbers(keys * heads.kv_width(), 3));
            let mut out = vec![f32::NAN; q.len()];
            attention(heads, mask, &q, &k, &v, &mut out);
            for (o, exact) in out.iter().zip(exact(heads, mask, &q, &k, &v)) {
                assert!(
                    (f64::from(*o) - exact).abs() <= TOLERANCE,
                    "{count} of {keys}, {heads:?}, {mask:?}: {o}, {exact}"
                );
            }
        }
    }
}
