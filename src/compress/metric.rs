use faer::{Mat, MatRef};

use super::context::Context;
use super::factors::Path;

/// One linear layer to be fitted: the weight and what its input looks like.
pub struct Problem<'a> {
    pub context: &'a Context,
    /// W, m x n
    pub weight: Mat<f64>,
    /// W H̃, m x n
    pub weighted: Mat<f64>,
    /// err(0; H̃) = tr(W H̃ Wᵀ)
    pub energy: f64,
}

impl<'a> Problem<'a> {
    /// `weight` is m x n with n the context's width.
    pub fn new(weight: Mat<f64>, context: &'a Context) -> Self {
        let weighted = &weight * &context.damped;
        let energy = inner(weighted.as_ref(), weight.as_ref());
        Self { context, weight, weighted, energy }
    }
}

/// The products of the right factors `B_p = diag(g_p) V_p` with the metric; nothing m x n is formed again for an
/// error or for the scales l and h.
///
/// | field | formula | shape |
/// |---|---|---|
/// | `b[p]` | B_p | n x r |
/// | `hb[p]` | H̃ B_p | n x r |
/// | `wb[p]` | W H̃ B_p | m x r |
/// | `bhb[a][c]` | B_aᵀ H̃ B_c | r x r |
pub struct Metric {
    pub b: Vec<Mat<f64>>,
    pub hb: Vec<Mat<f64>>,
    pub wb: Vec<Mat<f64>>,
    pub bhb: Vec<Vec<Mat<f64>>>,
}

impl Metric {
    pub fn of(problem: &Problem<'_>, paths: &[Path]) -> Self {
        let b: Vec<_> = paths.iter().map(Path::gv).collect();
        let hb: Vec<_> = b.iter().map(|b| &problem.context.damped * b).collect();
        let wb: Vec<_> = b.iter().map(|b| &problem.weighted * b).collect();
        let bhb = b.iter().map(|a| hb.iter().map(|hc| a.transpose() * hc).collect()).collect();
        Self { b, hb, wb, bhb }
    }

    /// Brings the products of path `p` up to date after its g or V changed.
    pub fn update(&mut self, problem: &Problem<'_>, path: &Path, p: usize) {
        self.b[p] = path.gv();
        self.hb[p] = &problem.context.damped * &self.b[p];
        self.wb[p] = &problem.weighted * &self.b[p];
        for c in 0..self.b.len() {
            self.bhb[p][c] = self.b[p].transpose() * &self.hb[c];
            self.bhb[c][p] = self.bhb[p][c].transpose().to_owned();
        }
    }

    /// `err(Ŵ; H̃) = tr(W H̃ Wᵀ) − 2⟨W H̃ B, Λ⟩ + ⟨ΛᵀΛ, BᵀH̃B⟩`, from factor-sized products alone.
    pub fn error(&self, problem: &Problem<'_>, paths: &[Path]) -> f64 {
        let lambdas: Vec<_> = paths.iter().map(Path::lambda).collect();
        let mut error = problem.energy;
        for (a, left) in lambdas.iter().enumerate() {
            error -= 2.0 * inner(self.wb[a].as_ref(), left.as_ref());
            for (c, right) in lambdas.iter().enumerate() {
                error += inner((left.transpose() * right).as_ref(), self.bhb[a][c].as_ref());
            }
        }
        error
    }

    /// `(W − Σ_{c≠p} Ŵ_c) H̃ B_p` (m x r): what path `p` is to explain, seen through its own right factor.
    pub fn target(&self, paths: &[Path], p: usize) -> Mat<f64> {
        let mut target = self.wb[p].clone();
        for c in (0..paths.len()).filter(|&c| c != p) {
            target -= paths[c].lambda() * &self.bhb[c][p];
        }
        target
    }
}

/// `Λᵀ (W − Σ_{c≠p} Ŵ_c)` (r x n) for the left factor Λ of path `p`.
pub fn latent_target(problem: &Problem<'_>, paths: &[Path], lambda: &Mat<f64>, p: usize) -> Mat<f64> {
    let mut target = lambda.transpose() * &problem.weight;
    for c in (0..paths.len()).filter(|&c| c != p) {
        target -= (lambda.transpose() * paths[c].lambda()) * paths[c].gv().transpose();
    }
    target
}

/// Measures fits of one weight in the metric of one Gram, undamped: the errors that are reported.
pub struct Judge<'a> {
    weight: MatRef<'a, f64>,
    gram: MatRef<'a, f64>,
    energy: f64,
}

impl<'a> Judge<'a> {
    /// `weight` is m x n, `gram` n x n.
    pub fn new(weight: MatRef<'a, f64>, gram: MatRef<'a, f64>) -> Self {
        Self { weight, gram, energy: energy(weight, gram) }
    }

    /// `sqrt(err(Ŵ; A) / err(0; A))`; 0 where the weight has no energy in this metric and neither has the error.
    pub fn relative_error(&self, fitted: MatRef<'_, f64>) -> f64 {
        let error = energy((self.weight - fitted).as_ref(), self.gram).max(0.0);
        if error == 0.0 { 0.0 } else { (error / self.energy).sqrt() }
    }
}

/// tr(W A Wᵀ)
fn energy(weight: MatRef<'_, f64>, gram: MatRef<'_, f64>) -> f64 {
    inner((weight * gram).as_ref(), weight)
}

/// Frobenius inner product.
pub fn inner(a: MatRef<'_, f64>, b: MatRef<'_, f64>) -> f64 {
    (0..a.ncols()).map(|j| a.col(j).iter().zip(b.col(j).iter()).map(|(a, b)| a * b).sum::<f64>()).sum()
}
