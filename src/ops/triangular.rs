use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::matvec::{add_four, add_simd, dot_simd};

/// Unknowns solved by plain loops before the others hear of them: their part of L, 32 KiB, stays in the first cache.
const BLOCK: usize = 64;

/// Others that one task serves.
const OTHERS_PER_TASK: usize = 1024;

/// `x ← L⁻¹x` for one right-hand side.
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | L | `l`, column-major; its strict upper triangle is not read | n x n, n = `x.len()` |
///
/// n²/2 numbers are read once. Every x_i is summed in a fixed order: the result does not depend on the threads.
///
/// # Panics
/// When `l` is not n x n.
pub fn forward(l: &[f64], x: &mut [f64]) {
    let n = x.len();
    assert_eq!(l.len(), n * n, "L is {n} x {n}");
    let arch = pulp::Arch::new();
    for at in (0..n).step_by(BLOCK) {
        let end = (at + BLOCK).min(n);
        for k in at..end {
            x[k] /= l[k * n + k];
            let (known, others) = x[..end].split_at_mut(k + 1);
            let column = &l[k * n + k + 1..k * n + end];
            others.iter_mut().zip(column).for_each(|(x, l)| *x -= l * known[k]);
        }
        let (known, others) = x.split_at_mut(end);
        let known = &known[at..];
        let task =
            |first: usize, others: &mut [f64]| arch.dispatch(Subtract { l, n, at, first, known, others });
        if others.len() <= OTHERS_PER_TASK {
            task(end, others);
        } else {
            let parts = others.par_chunks_mut(OTHERS_PER_TASK).enumerate();
            parts.for_each(|(part, others)| task(end + part * OTHERS_PER_TASK, others));
        }
    }
}

/// `x ← L⁻ᵀx` for one right-hand side; L as for [`forward`].
///
/// # Panics
/// When `l` is not n x n.
pub fn backward(l: &[f64], x: &mut [f64]) {
    let n = x.len();
    assert_eq!(l.len(), n * n, "L is {n} x {n}");
    let arch = pulp::Arch::new();
    for at in (0..n).step_by(BLOCK).rev() {
        let end = (at + BLOCK).min(n);
        let (rest, known) = x.split_at_mut(end);
        let unknown = &mut rest[at..];
        let task = |first: usize, unknown: &mut [f64]| arch.dispatch(Project { l, n, first, known, unknown });
        if known.len() <= OTHERS_PER_TASK {
            task(at, unknown);
        } else {
            const COLUMNS: usize = BLOCK / 4;
            let parts = unknown.par_chunks_mut(COLUMNS).enumerate();
            parts.for_each(|(part, unknown)| task(at + part * COLUMNS, unknown));
        }
        for k in (0..end - at).rev() {
            let column = &l[(at + k) * n + at..(at + k) * n + end];
            let sum: f64 = (k + 1..end - at).map(|i| column[i] * unknown[i]).sum();
            unknown[k] = (unknown[k] - sum) / column[k];
        }
    }
}

/// `others ← others − L[first.., at..]·known`; a struct and not a closure, so that the loop is surely compiled for
/// the CPU's vectors.
struct Subtract<'a> {
    l: &'a [f64],
    n: usize,
    at: usize,
    first: usize,
    known: &'a [f64],
    others: &'a mut [f64],
}

impl WithSimd for Subtract<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { l, n, at, first, known, others } = self;
        let count = others.len();
        let column = |k: usize| &l[(at + k) * n + first..][..count];
        let (fours, rest) = known.as_chunks::<4>();
        for (k, x) in fours.iter().enumerate() {
            let columns = [column(4 * k), column(4 * k + 1), column(4 * k + 2), column(4 * k + 3)];
            add_four(simd, x.map(|x| -x), columns, others);
        }
        for (k, x) in rest.iter().enumerate() {
            add_simd(simd, -x, column(4 * fours.len() + k), others);
        }
    }
}

/// `unknown ← unknown − L[n − known.len().., first..]ᵀ·known`.
struct Project<'a> {
    l: &'a [f64],
    n: usize,
    first: usize,
    known: &'a [f64],
    unknown: &'a mut [f64],
}

impl WithSimd for Project<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { l, n, first, known, unknown } = self;
        for (k, x) in unknown.iter_mut().enumerate() {
            let end = (first + k + 1) * n;
            *x -= dot_simd(simd, &l[end - known.len()..end], known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solutions_give_back_the_right_hand_side() {
        // Above 1024 + 64 unknowns the others are served by several tasks.
        for n in [1, 5, 64, 65, 200, 1500] {
            let mut l = vec![f64::NAN; n * n];
            for k in 0..n {
                (k..n).for_each(|i| l[k * n + i] = ((i * 7 + k * 3) % 5) as f64 * 0.01 / n as f64);
                l[k * n + k] = 1.0 + (k % 3) as f64;
            }
            let x: Vec<f64> = (0..n).map(|i| (i % 7) as f64 - 3.0).collect();
            let mut y: Vec<f64> = (0..n).map(|i| (0..=i).map(|k| l[k * n + i] * x[k]).sum()).collect();
            forward(&l, &mut y);
            assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() < 1e-13), "{n}");
            let mut y: Vec<f64> = (0..n).map(|k| (k..n).map(|i| l[k * n + i] * x[i]).sum()).collect();
            backward(&l, &mut y);
            assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() < 1e-13), "{n}");
        }
    }
}
