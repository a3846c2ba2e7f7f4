use faer::{Mat, MatRef, Side};

use super::context::Context;

/// Singular values below this share of the largest count as this share.
const SINGULAR_FLOOR: f64 = 1e-15;

/// Length of `W L v`, relative to the largest, below which v counts as outside the row space of W L: far above the
/// rounding of the product (1e-15 per term), far below any direction that a fit could use.
const RANK_TOLERANCE: f64 = 1e-12;

/// The spectrum of `W L`: everything [`Spectrum::latents`] needs for any rank.
///
/// Taken from the smaller of the two Grams, `W H̃ Wᵀ` (m x m) or `Lᵀ WᵀW L` (n x n): O(min(m,n)³).
pub struct Spectrum {
    /// Left singular vectors of W L, m x min(m,n), descending.
    left: Mat<f64>,
    /// Singular values, descending, floored.
    sigma: Vec<f64>,
}

/// Real factors whose product is the best rank-r fit in the metric; their signs become the packed factors.
pub struct Latents {
    /// U' = U_r Σ^½, m x r
    pub u: Mat<f64>,
    /// V' = Wᵀ U_r Σ^−½, n x r
    pub v: Mat<f64>,
}

#[derive(Clone, Debug, thiserror::Error, PartialEq)]
#[error("the eigenvalue iteration for the latents of a {rows}x{cols} weight did not converge")]
pub struct SpectrumError {
    pub rows: usize,
    pub cols: usize,
}

impl Spectrum {
    /// `weight` is m x n; `weighted` is `W H̃` (m x n).
    pub fn of(
        weight: MatRef<'_, f64>,
        weighted: MatRef<'_, f64>,
        context: &Context,
    ) -> Result<Self, SpectrumError> {
        if weight.nrows() <= weight.ncols() {
            return Self::wide(weight, weighted);
        }
        Self::tall((weight * &context.cholesky).as_ref())
    }

    /// From `W H̃ Wᵀ`, for m ≤ n.
    pub fn wide(weight: MatRef<'_, f64>, weighted: MatRef<'_, f64>) -> Result<Self, SpectrumError> {
        let (m, cols) = weight.shape();
        let error = |_| SpectrumError { rows: m, cols };
        let eigen = (weighted * weight.transpose()).self_adjoint_eigen(Side::Lower).map_err(error)?;
        let sigma: Vec<f64> = (0..m).rev().map(|k| eigen.S()[k].max(0.0).sqrt()).collect();
        let left = Mat::from_fn(m, m, |i, k| eigen.U()[(i, m - 1 - k)]);
        Ok(Self { left, sigma: floored(sigma) })
    }

    /// From `(W F)ᵀ(W F)` for m > n, with any F for which `H̃ = F·Fᵀ`: `wf` is m x n.
    pub fn tall(wf: MatRef<'_, f64>) -> Result<Self, SpectrumError> {
        let (rows, n) = wf.shape();
        let error = |_| SpectrumError { rows, cols: n };
        let eigen = (wf.transpose() * wf).self_adjoint_eigen(Side::Lower).map_err(error)?;
        let right = Mat::from_fn(n, n, |j, k| eigen.U()[(j, n - 1 - k)]);
        let mut left = wf * right;
        // An eigenvalue is good to ε of the largest, its root only to √ε; the length of `W F v` is good to ε.
        let sigma: Vec<f64> = (0..n).map(|k| left.col(k).norm_l2()).collect();
        let least = RANK_TOLERANCE * sigma.iter().copied().fold(0.0, f64::max);
        for (k, s) in sigma.iter().enumerate() {
            // Beyond the rank of W the direction is rounding: it takes no part.
            let inverse = if *s > least { 1.0 / s } else { 0.0 };
            left.col_mut(k).iter_mut().for_each(|u| *u *= inverse);
        }
        Ok(Self { left, sigma: floored(sigma) })
    }

    /// Left singular vectors, m x min(m, n), descending.
    pub fn left(&self) -> MatRef<'_, f64> {
        self.left.as_ref()
    }

    /// σ^½ and σ^−½ (0 where σ is) of the largest `rank` singular values.
    pub fn roots(&self, rank: usize) -> Vec<(f64, f64)> {
        self.sigma[..rank].iter().map(|s| roots(*s)).collect()
    }

    /// The same of singular values that were found elsewhere, descending; floored as here.
    pub fn roots_of(sigma: &[f64]) -> Vec<(f64, f64)> {
        floored(sigma.to_vec()).into_iter().map(roots).collect()
    }

    /// The latents of rank `rank` ≤ min(m, n) of the same weight.
    pub fn latents(&self, weight: MatRef<'_, f64>, rank: usize) -> Latents {
        let left = self.left.subcols(0, rank);
        let mut u = left.to_owned();
        let mut v = weight.transpose() * left;
        for (k, (root, inverse)) in self.roots(rank).into_iter().enumerate() {
            u.col_mut(k).iter_mut().for_each(|x| *x *= root);
            v.col_mut(k).iter_mut().for_each(|x| *x *= inverse);
        }
        Latents { u, v }
    }
}

fn roots(sigma: f64) -> (f64, f64) {
    (sigma.sqrt(), if sigma > 0.0 { 1.0 / sigma.sqrt() } else { 0.0 })
}

fn floored(mut sigma: Vec<f64>) -> Vec<f64> {
    let floor = SINGULAR_FLOOR * sigma.first().copied().unwrap_or(0.0);
    sigma.iter_mut().for_each(|s| *s = s.max(floor));
    sigma
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tall_and_wide_weights_give_the_best_fit_in_the_metric() {
        for (m, n) in [(10, 16), (16, 10)] {
            let w = Mat::from_fn(m, n, |i, j| ((i * 13 + j * 7) % 19) as f64 - 9.0);
            let x = Mat::from_fn(n, 3 * n, |i, j| ((i * 5 + j * 11) % 23) as f64 - 11.0);
            let context = Context::build(&(&x * x.transpose()), 0.03).unwrap();
            let weighted = &w * &context.damped;
            let latents =
                Spectrum::of(w.as_ref(), weighted.as_ref(), &context).unwrap().latents(w.as_ref(), 4);
            let residual = (&w - latents.u * latents.v.transpose()) * &context.cholesky;
            let sigma = (&w * &context.cholesky).svd().unwrap();
            let tail: f64 = (4..m.min(n)).map(|k| sigma.S()[k] * sigma.S()[k]).sum();
            assert!((residual.squared_norm_l2() - tail).abs() < 1e-8 * tail);
        }
    }

    #[test]
    fn ranks_above_that_of_the_weight_add_nothing() {
        for (m, n) in [(96, 64), (64, 96)] {
            let factor = |rows: usize, seed: usize| {
                Mat::from_fn(rows, 40, move |i, j| {
                    (((i * 31 + j * 17 + seed) * 2_654_435_761) % 1009) as f64 / 504.5 - 1.0
                })
            };
            let w = factor(m, 1) * factor(n, 2).transpose();
            let x = Mat::from_fn(n, 3 * n, |i, j| (((i * 13 + j * 7) * 40_503) % 257) as f64 - 128.0);
            let context = Context::build(&(&x * x.transpose()), 0.03).unwrap();
            let weighted = &w * &context.damped;
            let latents =
                Spectrum::of(w.as_ref(), weighted.as_ref(), &context).unwrap().latents(w.as_ref(), 56);
            let error = (&w - &latents.u * latents.v.transpose()).norm_l2() / w.norm_l2();
            assert!(error < 1e-9, "{m}x{n}: {error:e}");
            assert!(latents.v.norm_max() < 1e3 * w.norm_max());
        }
    }
}
