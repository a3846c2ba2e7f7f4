use pulp::{Simd, WithSimd};
use rayon::prelude::*;

/// Numbers of the matrix that one task reads: long enough (about 20 µs) that handing it out costs nothing.
const NUMBERS_PER_TASK: usize = 1 << 15;

/// Columns of one task of a transposed product: 4 KiB of the result, which stay in the first cache.
const COLUMNS_PER_TASK: usize = 512;

/// `y ← y + α·A·x` in f64.
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | A | `a`, row-major | m x n, m = `y.len()`, n = `x.len()` |
///
/// Every y_i is one sum in a fixed order: the result does not depend on the number of threads.
///
/// # Panics
/// When `a` is not m x n.
pub fn matvec(alpha: f64, a: &[f64], x: &[f64], y: &mut [f64]) {
    assert_eq!(a.len(), x.len() * y.len(), "the matrix is {} x {}", y.len(), x.len());
    let rows = (NUMBERS_PER_TASK / x.len().max(1)).max(1);
    let arch = pulp::Arch::new();
    if a.len() <= NUMBERS_PER_TASK {
        return arch.dispatch(Dots { alpha, a, x, y });
    }
    let tasks = y.par_chunks_mut(rows).zip(a.par_chunks(rows * x.len()));
    tasks.for_each(|(y, a)| arch.dispatch(Dots { alpha, a, x, y }));
}

/// `y ← y + α·Aᵀ·x` in f64.
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | A | `a`, row-major | m x n, m = `x.len()`, n = `y.len()` |
///
/// Every y_j is summed over the rows in their order: the result does not depend on the number of threads.
///
/// # Panics
/// When `a` is not m x n.
pub fn matvec_transposed(alpha: f64, a: &[f64], x: &[f64], y: &mut [f64]) {
    assert_eq!(a.len(), x.len() * y.len(), "the matrix is {} x {}", x.len(), y.len());
    let (cols, arch) = (y.len(), pulp::Arch::new());
    if a.len() <= NUMBERS_PER_TASK {
        return arch.dispatch(Combination { alpha, a, cols, at: 0, x, y });
    }
    y.par_chunks_mut(COLUMNS_PER_TASK).enumerate().for_each(|(task, y)| {
        arch.dispatch(Combination { alpha, a, cols, at: task * COLUMNS_PER_TASK, x, y });
    });
}

/// `a·b`, in an order that only the CPU's vector width decides.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sum = [0.0];
    pulp::Arch::new().dispatch(Dots { alpha: 1.0, a, x: b, y: &mut sum });
    sum[0]
}

/// Rows of one task; a struct and not a closure, so that the loop is surely compiled for the CPU's vectors.
struct Dots<'a> {
    alpha: f64,
    a: &'a [f64],
    x: &'a [f64],
    y: &'a mut [f64],
}

impl WithSimd for Dots<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for (row, y) in self.a.chunks_exact(self.x.len().max(1)).zip(self.y) {
            *y += self.alpha * dot_simd(simd, row, self.x);
        }
    }
}

#[inline(always)]
pub(crate) fn dot_simd<S: Simd>(simd: S, a: &[f64], b: &[f64]) -> f64 {
    let ((a, a_tail), (b, b_tail)) = (S::as_simd_f64s(a), S::as_simd_f64s(b));
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    let mut s = [simd.splat_f64s(0.0); 4];
    for (a, b) in a.iter().zip(b) {
        for k in 0..4 {
            s[k] = simd.mul_add_f64s(a[k], b[k], s[k]);
        }
    }
    for (a, b) in a_rest.iter().zip(b_rest) {
        s[0] = simd.mul_add_f64s(*a, *b, s[0]);
    }
    s[1] = simd.mul_add_f64s(simd.partial_load_f64s(a_tail), simd.partial_load_f64s(b_tail), s[1]);
    simd.reduce_sum_f64s(simd.add_f64s(simd.add_f64s(s[0], s[1]), simd.add_f64s(s[2], s[3])))
}

/// A part of the columns, combined over all rows.
struct Combination<'a> {
    alpha: f64,
    a: &'a [f64],
    cols: usize,
    at: usize,
    x: &'a [f64],
    y: &'a mut [f64],
}

impl WithSimd for Combination<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { alpha, a, cols, at, x, y } = self;
        let width = y.len();
        let row = |i: usize| &a[i * cols + at..i * cols + at + width];
        let (fours, rest) = x.as_chunks::<4>();
        for (k, x) in fours.iter().enumerate() {
            let rows = [row(4 * k), row(4 * k + 1), row(4 * k + 2), row(4 * k + 3)];
            add_four(simd, x.map(|x| alpha * x), rows, y);
        }
        for (k, x) in rest.iter().enumerate() {
            add_simd(simd, alpha * x, row(4 * fours.len() + k), y);
        }
    }
}

/// `y ← y + Σ x_k·row_k`, four rows at once.
#[inline(always)]
pub(crate) fn add_four<S: Simd>(simd: S, x: [f64; 4], rows: [&[f64]; 4], y: &mut [f64]) {
    let (y, y_tail) = S::as_mut_simd_f64s(y);
    let parts = rows.map(S::as_simd_f64s);
    let s = x.map(|x| simd.splat_f64s(x));
    let [(r0, _), (r1, _), (r2, _), (r3, _)] = parts;
    for ((((y, a), b), c), d) in y.iter_mut().zip(r0).zip(r1).zip(r2).zip(r3) {
        let sum = simd.mul_add_f64s(s[0], *a, *y);
        let sum = simd.mul_add_f64s(s[1], *b, sum);
        let sum = simd.mul_add_f64s(s[2], *c, sum);
        *y = simd.mul_add_f64s(s[3], *d, sum);
    }
    for (k, y) in y_tail.iter_mut().enumerate() {
        for (x, (_, tail)) in x.iter().zip(&parts) {
            *y = x.mul_add(tail[k], *y);
        }
    }
}

/// `y ← y + α·x`.
#[inline(always)]
pub(crate) fn add_simd<S: Simd>(simd: S, alpha: f64, x: &[f64], y: &mut [f64]) {
    let ((x, x_tail), (y, y_tail)) = (S::as_simd_f64s(x), S::as_mut_simd_f64s(y));
    let a = simd.splat_f64s(alpha);
    for (y, x) in y.iter_mut().zip(x) {
        *y = simd.mul_add_f64s(a, *x, *y);
    }
    for (y, x) in y_tail.iter_mut().zip(x_tail) {
        *y = alpha.mul_add(*x, *y);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_equal_the_plain_loops() {
        // Small integers: every sum is exact. The last two need several tasks.
        for (m, n) in [(1, 1), (3, 5), (7, 33), (9, 600), (70, 1030), (2000, 37)] {
            let a: Vec<f64> = (0..m * n).map(|k| ((k * 7 + k / n * 5) % 11) as f64 - 5.0).collect();
            let x: Vec<f64> = (0..n).map(|k| ((k * 3) % 7) as f64 - 3.0).collect();
            let z: Vec<f64> = (0..m).map(|k| ((k * 5) % 9) as f64 - 4.0).collect();
            let mut y = vec![1.0; m];
            matvec(2.0, &a, &x, &mut y);
            for i in 0..m {
                let sum: f64 = (0..n).map(|j| a[i * n + j] * x[j]).sum();
                assert_eq!(y[i], 1.0 + 2.0 * sum);
            }
            let mut y = vec![1.0; n];
            matvec_transposed(-1.0, &a, &z, &mut y);
            for j in 0..n {
                let sum: f64 = (0..m).map(|i| a[i * n + j] * z[i]).sum();
                assert_eq!(y[j], 1.0 - sum);
            }
        }
    }
}
