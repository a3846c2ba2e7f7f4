use faer::{Mat, MatRef, Side};

use super::context::Context;

/// Singular values below this share of the largest count as this share.
const SINGULAR_FLOOR: f64 = 1e-15;

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

#[derive(Debug, thiserror::Error, PartialEq)]
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
        let (m, n) = weight.shape();
        let error = |_| SpectrumError { rows: m, cols: n };
        if m <= n {
            let eigen = (weighted * weight.transpose()).self_adjoint_eigen(Side::Lower).map_err(error)?;
            let sigma: Vec<f64> = (0..m).rev().map(|k| eigen.S()[k].max(0.0).sqrt()).collect();
            let left = Mat::from_fn(m, m, |i, k| eigen.U()[(i, m - 1 - k)]);
            return Ok(Self { left, sigma: floored(sigma) });
        }
        let wl = weight * &context.cholesky;
        let eigen = (wl.transpose() * &wl).self_adjoint_eigen(Side::Lower).map_err(error)?;
        let sigma = floored((0..n).rev().map(|k| eigen.S()[k].max(0.0).sqrt()).collect());
        let right = Mat::from_fn(n, n, |j, k| eigen.U()[(j, n - 1 - k)]);
        let mut left = wl * right;
        for (k, s) in sigma.iter().enumerate() {
            let inverse = if *s > 0.0 { 1.0 / s } else { 0.0 };
            left.col_mut(k).iter_mut().for_each(|u| *u *= inverse);
        }
        Ok(Self { left, sigma })
    }

    /// The latents of rank `rank` ≤ min(m, n) of the same weight.
    pub fn latents(&self, weight: MatRef<'_, f64>, rank: usize) -> Latents {
        let left = self.left.subcols(0, rank);
        let mut u = left.to_owned();
        let mut v = weight.transpose() * left;
        for k in 0..rank {
            let root = self.sigma[k].sqrt();
            let inverse = if root > 0.0 { 1.0 / root } else { 0.0 };
            u.col_mut(k).iter_mut().for_each(|x| *x *= root);
            v.col_mut(k).iter_mut().for_each(|x| *x *= inverse);
        }
        Latents { u, v }
    }
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
            let context = Context::build(&x * x.transpose(), 0.03).unwrap();
            let weighted = &w * &context.damped;
            let latents =
                Spectrum::of(w.as_ref(), weighted.as_ref(), &context).unwrap().latents(w.as_ref(), 4);
            let residual = (&w - latents.u * latents.v.transpose()) * &context.cholesky;
            let sigma = (&w * &context.cholesky).svd().unwrap();
            let tail: f64 = (4..m.min(n)).map(|k| sigma.S()[k] * sigma.S()[k]).sum();
            assert!((residual.squared_norm_l2() - tail).abs() < 1e-8 * tail);
        }
    }
}
