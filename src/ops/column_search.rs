use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};

use super::real::Real;
use super::row_flips::{FLIP_TOLERANCE, column, column_mut, column_of};

/// Columns between two products that carry the error to all later columns.
pub const BLOCK: usize = 128;

/// Rounds of flips and scale fits for one column at most.
pub(super) const MAX_ROUNDS: usize = 3;

/// Relative change of a column's scale at which its rounds end.
const SCALE_TOLERANCE: f64 = 1e-9;

/// What [`column_search`] reads.
#[derive(Clone, Copy)]
pub struct ColumnSearch<'a> {
    /// K = ΛᵀΛ, r x r.
    pub k: MatRef<'a, f64>,
    /// Rᵀ, n x n lower triangular, in the order of the columns: column j of this matrix is row j of R.
    pub r_transposed: MatRef<'a, f64>,
}

/// Signs and scale of the input-side factor, column by column, each column's error fed on to the later ones
/// (OBS feedback as in GPTQ, Frantar et al. 2023, carried out in the r-dimensional latent space).
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | B | `b` | r x n, b_j = Λᵀ w_j, columns in processing order; overwritten |
/// | S | `signs` | r x n, ±1, start and result |
/// | g | returned | n |
///
/// For column j: `g = b·s/(sᵀKs)`, s negated where g < 0; the single best entry is flipped,
/// `Δ_k = −4g² s_k((Ks)_k − K_kk s_k) + 4g s_k b_k`, while the lowest Δ is below `−tol·g² K_kk` (lowest k on a tie,
/// at most 4r flips); g is fitted again; at most three rounds. Then `e = (b − gKs)/R_jj` and `b_j' −= R_jj' e` for
/// every later j'. Cost: n²r for the feedback, 2nr² for K·S, 4r for a flip.
pub fn column_search(
    problem: ColumnSearch<'_>,
    mut b: MatMut<'_, f64>,
    signs: &mut Mat<f64>,
    par: Par,
) -> (Vec<f64>, usize) {
    let (r, n) = b.shape();
    let diagonal: Vec<f64> = (0..r).map(|k| problem.k[(k, k)]).collect();
    let mut ks = Mat::zeros(r, n);
    matmul(&mut ks, Accum::Replace, problem.k, &*signs, 1.0, par);
    let mut scales = vec![0.0; n];
    let mut flips = 0;
    let mut errors = Mat::zeros(r, BLOCK.min(n));
    let mut delta = vec![0.0; r];
    let arch = pulp::Arch::new();
    let mut at = 0;
    while at < n {
        let width = BLOCK.min(n - at);
        for j in at..at + width {
            let mut column_state = ColumnState {
                s: column_mut(signs, j),
                ks: column_mut(&mut ks, j),
                b: b.as_ref().col(j).try_as_col_major().expect("columns of B are contiguous").as_slice(),
                k: |k| column_of(problem.k, k),
                diagonal: &diagonal,
                delta: &mut delta,
                tolerance: FLIP_TOLERANCE,
                scale_tolerance: SCALE_TOLERANCE,
            };
            let (g, flipped) = arch.dispatch(|| column_state.search());
            scales[j] = g;
            flips += flipped;
            let error = column_mut(&mut errors, j - at);
            let feedback = column_of(problem.r_transposed, j);
            let block = b.as_mut().subcols_mut(j, at + width - j);
            feed_on(block, error, g, column(&ks, j), &feedback[j..]);
        }
        let rest = at + width;
        if rest < n {
            let feedback = problem.r_transposed.submatrix(rest, at, n - rest, width);
            let trailing = b.as_mut().subcols_mut(rest, n - rest);
            matmul(trailing, Accum::Add, errors.subcols(0, width), feedback.transpose(), -1.0, par);
        }
        at = rest;
    }
    (scales, flips)
}

/// `e = (b − g·Ks)/R_jj` of the first column of `b`, and `b_j' −= R_jj' e` for its others.
fn feed_on(mut b: MatMut<'_, f64>, error: &mut [f64], g: f64, ks: &[f64], feedback: &[f64]) {
    for (e, (b, ks)) in error.iter_mut().zip(b.as_ref().col(0).iter().zip(ks)) {
        *e = (b - g * ks) / feedback[0];
    }
    for (later, weight) in b.as_mut().col_iter_mut().zip(feedback).skip(1) {
        later.iter_mut().zip(&*error).for_each(|(b, e)| *b -= weight * e);
    }
}

pub(super) struct ColumnState<'a, T, K> {
    pub s: &'a mut [T],
    pub ks: &'a mut [T],
    pub b: &'a [T],
    /// Row k of K.
    pub k: K,
    pub diagonal: &'a [T],
    pub delta: &'a mut [T],
    pub tolerance: T,
    pub scale_tolerance: T,
}

impl<'a, T: Real + 'a, K: Fn(usize) -> &'a [T]> ColumnState<'_, T, K> {
    #[inline(always)]
    pub fn search(&mut self) -> (T, usize) {
        let mut flips = 0;
        let mut g = self.fit_scale();
        for _ in 0..MAX_ROUNDS {
            let before = flips;
            while flips - before < 4 * self.s.len() {
                let Some(k) = self.best_flip(g) else { break };
                self.flip(k);
                flips += 1;
            }
            let fitted = self.fit_scale();
            let settled = (fitted - g).abs() <= self.scale_tolerance * g.abs();
            g = fitted;
            if flips == before || settled {
                break;
            }
        }
        (g, flips)
    }

    /// `g = b·s/(sᵀKs)`; a negative g is made positive by negating s. A column that Λ does not see gets g = 0.
    #[inline(always)]
    fn fit_scale(&mut self) -> T {
        let energy = dot(self.s, self.ks);
        let g = if energy > T::ZERO { dot(self.b, self.s) / energy } else { T::ZERO };
        if g < T::ZERO {
            self.s.iter_mut().for_each(|s| *s = -*s);
            self.ks.iter_mut().for_each(|ks| *ks = -*ks);
        }
        g.abs()
    }

    #[inline(always)]
    fn best_flip(&mut self, g: T) -> Option<usize> {
        let (four_g, g2) = (T::of(4.0) * g, g * g);
        let (s, ks, b, diagonal) = (&*self.s, &*self.ks, self.b, self.diagonal);
        for (k, delta) in self.delta.iter_mut().enumerate() {
            *delta = four_g * s[k] * (b[k] - g * (ks[k] - diagonal[k] * s[k]));
        }
        let mut best = 0;
        for (k, delta) in self.delta.iter().enumerate() {
            if *delta < self.delta[best] {
                best = k;
            }
        }
        (self.delta[best] < -self.tolerance * g2 * diagonal[best]).then_some(best)
    }

    #[inline(always)]
    fn flip(&mut self, k: usize) {
        self.s[k] = -self.s[k];
        let step = self.s[k] + self.s[k];
        let row = (self.k)(k);
        self.ks.iter_mut().zip(row).for_each(|(ks, k)| *ks += step * *k);
    }
}

/// Sum in eight fixed lanes: the same result whatever the vector width.
#[inline(always)]
fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    let mut lanes = [T::ZERO; 8];
    for (a, b) in a8.iter().zip(b8) {
        for k in 0..8 {
            lanes[k] += a[k] * b[k];
        }
    }
    lanes.iter().copied().sum::<T>() + a_rest.iter().zip(b_rest).map(|(a, b)| *a * *b).sum::<T>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With one column nothing is fed on: the result is a local minimum of ‖w − g Λ s‖² over single flips.
    #[test]
    fn a_single_column_ends_in_a_local_minimum() {
        let (m, r) = (12, 8);
        let lambda = Mat::from_fn(m, r, |i, j| ((i * 7 + j * 5) % 11) as f64 - 5.0);
        let w = Mat::from_fn(m, 1, |i, _| ((i * 3) % 7) as f64 - 2.5);
        let k = lambda.transpose() * &lambda;
        let one = Mat::<f64>::identity(1, 1);
        let mut b = lambda.transpose() * &w;
        let mut signs = Mat::from_fn(r, 1, |i, _| if i % 2 == 0 { 1.0 } else { -1.0 });
        let problem = ColumnSearch { k: k.as_ref(), r_transposed: one.as_ref() };
        let (g, _) = column_search(problem, b.as_mut(), &mut signs, Par::Seq);
        let error = |signs: &Mat<f64>| (&w - &lambda * (signs * faer::Scale(g[0]))).squared_norm_l2();
        let reached = error(&signs);
        for k in 0..r {
            let mut other = signs.clone();
            other[(k, 0)] = -other[(k, 0)];
            assert!(error(&other) >= reached - 1e-9);
        }
    }
}
