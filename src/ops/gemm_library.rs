//! Products of a [`gemm`](super::gemm) that fill a card alone, on its library.

use super::gemm::{A_SIGNS, A_TRANSPOSED, B_SIGNS, B_TRANSPOSED, Gemm, HADAMARD, LOWER, SIGN};
use super::scale::{Scale, scale};
use crate::device::arena::{Arena, Layout, Operand, Precision, Product, View};

/// Multiply-add pairs from which a product is left to the library: it fills the device alone then.
pub(crate) const LEAST: usize = 1 << 31;

/// The same for products that may be rounded to TF32: tensor cores are that much faster than the kernel.
const LEAST_TF32: usize = 1 << 28;

/// Rows of a lower product from which it is done in bands, each as wide as its last row.
const BANDED: usize = 2048;

/// Bands of a lower product: with four, 5/8 of all entries are computed.
const BANDS: usize = 4;

/// Largest difference of a product in parts over an inner length of `k` from one in f32, relative to its norm, where terms
/// have random signs. Tensor cores add eight terms a step, after which what does not fit 24 bits is cut off, 2⁻²⁴ of the
/// sum so far in the mean and always towards zero: k/8 steps over sums that grow to the whole lose 2/3 of `k/8·2⁻²⁴`.
/// What both leave to rounding is 1e-6.
pub fn parts_tolerance(k: usize) -> f64 {
    k as f64 / 8.0 * 2f64.powi(-24) + 1e-6
}

/// Queues the products that the library takes, and returns the others. Which those are depends on each alone.
pub(super) fn split_off<'a>(arena: &mut Arena, items: &'a [Gemm]) -> Vec<&'a Gemm> {
    if !arena.has_tensor_cores() {
        return items.iter().collect();
    }
    let (large, small): (Vec<&Gemm>, Vec<&Gemm>) =
        items.iter().partition(|item| is_large(item, Halves::fit(item)));
    large.iter().for_each(|item| multiply(arena, item));
    let entries = |item: &&Gemm| {
        let times = item.hadamard.map(|h| Scale::new(h, item.c).times());
        times.or(item.has(SIGN).then(|| Scale::new(item.c, item.c).sign()))
    };
    scale(arena, &large.iter().filter_map(entries).collect::<Vec<_>>());
    small
}

fn is_large(item: &Gemm, whole: bool) -> bool {
    let (m, n, k) = item.shape();
    let least = match item.precision {
        Precision::F32 => LEAST,
        Precision::Tf32 => LEAST_TF32,
    };
    // Of these the kernel does half, or what saves a pass; tensor cores more than make up for it.
    let extras = item.has(LOWER | SIGN | HADAMARD) && !whole;
    let both = item.has(SIGN) && item.hadamard.is_some();
    m * n * k >= least && !extras && !both && item.diagonal == 0.0 && item.skip.is_none()
}

fn multiply(arena: &mut Arena, item: &Gemm) {
    let (terms, precision) = match item.precision {
        Precision::F32 if Halves::fit(item) => (in_parts(arena, item), Precision::Tf32),
        precision => (vec![(item.a, item.b)], precision),
    };
    let (m, n, k) = item.shape();
    let bands = if item.has(LOWER) && m >= BANDED && m == n { BANDS } else { 1 };
    let height = m.div_ceil(bands).next_multiple_of(64);
    for top in (0..m).step_by(height) {
        let rows = height.min(m - top);
        let cols = if bands > 1 { top + rows } else { n };
        for (at, (a, b)) in terms.iter().enumerate() {
            let a = match item.has(A_TRANSPOSED) {
                true => Operand::Transposed(a.part((0, top), (k, rows))),
                false => Operand::Plain(a.part((top, 0), (rows, k))),
            };
            let b = match item.has(B_TRANSPOSED) {
                true => Operand::Transposed(b.part((0, 0), (cols, k))),
                false => Operand::Plain(b.part((0, 0), (k, cols))),
            };
            let (c, alpha) = (item.c.part((top, 0), (rows, cols)), item.alpha);
            let beta = if at == 0 { item.beta } else { 1.0 };
            arena.product(&Product { a, b, c, alpha, beta, precision });
        }
    }
}

/// The sum that a product becomes, the smallest terms first.
fn in_parts(arena: &mut Arena, item: &Gemm) -> Vec<(View, View)> {
    let mut layout = Layout::behind(item.parts.at);
    let a = Halves::of(arena, &mut layout, item.a, item.has(A_SIGNS));
    let b = match item.b == item.a {
        true => a,
        false => Halves::of(arena, &mut layout, item.b, item.has(B_SIGNS)),
    };
    let small = [a.rest.map(|rest| (rest, b.leading)), b.rest.map(|rest| (a.leading, rest))];
    small.into_iter().flatten().chain([(a.leading, b.leading)]).collect()
}

/// A matrix as the sum of two whose entries have 11 bits.
#[derive(Clone, Copy)]
struct Halves {
    leading: View,
    /// Nothing where the first is the whole.
    rest: Option<View>,
}

impl Halves {
    fn of(arena: &mut Arena, layout: &mut Layout, matrix: View, signs: bool) -> Self {
        if signs {
            return Self { leading: matrix, rest: None };
        }
        let (rows, cols) = (matrix.rows, matrix.cols);
        let both = layout.matrix(2 * rows, cols);
        let [leading, rest] = [0, rows].map(|top| both.part((top, 0), (rows, cols)));
        scale(arena, &[Scale::new(matrix, leading).leading(), Scale::new(matrix, rest).rest()]);
        Self { leading, rest: Some(rest) }
    }

    /// Whether the halves of both operands have room.
    fn fit(item: &Gemm) -> bool {
        let mut layout = Layout::behind(item.parts.at);
        let other = (item.b != item.a).then_some((item.b, B_SIGNS));
        for (matrix, flag) in [(item.a, A_SIGNS)].into_iter().chain(other) {
            if !item.has(flag) {
                layout.matrix(2 * matrix.rows, matrix.cols);
            }
        }
        layout.most() <= item.parts.at + item.parts.len()
    }
}
