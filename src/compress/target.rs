//! The two-stream target (QEP, Fujitsu, NeurIPS 2025): a layer of the packed model is fitted to give, for the inputs
//! that it will really see, what the original gives for its own.

use faer::linalg::solvers::{Llt, Solve};
use faer::{Mat, MatRef, Side};

use super::context::{ContextError, Damped, damp};

/// What turns the weights that read one input into their targets.
///
/// | symbol | what | shape |
/// |---|---|---|
/// | H | second moment of the input in the packed model, `X_q X_qᵀ / T` | n x n |
/// | C | cross moment with the input in the original, `X_ref X_qᵀ / T` | n x n |
/// | c | damping, `ρ·tr H / n` | |
///
/// The minimum of `‖W·X_ref − W*·X_q‖²/T + c·‖W − W*‖²` is `W* = W·(C + cI)·(H + cI)⁻¹`; the target is the blend
/// `(1−α)·W + α·W*`, since all of W* would trust the calibration text too far.
pub struct Target {
    factor: Llt<f64>,
    /// C + cI
    cross: Mat<f64>,
    blend: f64,
}

impl Target {
    /// `blend` is α. Cost: about n³/3.
    ///
    /// Errors: as those of [`Context::build`](super::context::Context::build), whose damping this is.
    pub fn new(gram: &Mat<f64>, cross: &Mat<f64>, damping: f64, blend: f64) -> Result<Self, ContextError> {
        let Damped { factors: factor, ridge, .. } = damp(gram, damping, |h| h.llt(Side::Lower).ok())?;
        let cross = Mat::from_fn(cross.nrows(), cross.ncols(), |i, j| {
            cross[(i, j)] + if i == j { ridge } else { 0.0 }
        });
        Ok(Self { factor, cross, blend })
    }

    /// The target of a weight (m x n). Cost: about 3·m·n².
    pub fn of(&self, weight: MatRef<'_, f64>) -> Mat<f64> {
        // W* is the solution X of X·(H + cI) = W·(C + cI); transposed, one with the factor on the left.
        let right = self.cross.transpose() * weight.transpose();
        let solved = self.factor.solve(&right);
        let blend = self.blend;
        Mat::from_fn(weight.nrows(), weight.ncols(), |i, j| {
            (1.0 - blend) * weight[(i, j)] + blend * solved[(j, i)]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, cols: usize, seed: usize) -> Mat<f64> {
        Mat::from_fn(rows, cols, |i, j| (((i * 37 + j * 11 + seed * 53) % 29) as f64 - 14.0) / 10.0)
    }

    /// ‖W·X_ref − V·X_q‖²/T + c‖W − V‖²
    fn loss(w: &Mat<f64>, v: &Mat<f64>, reference: &Mat<f64>, packed: &Mat<f64>, c: f64) -> f64 {
        let apart = w * reference - v * packed;
        apart.squared_norm_l2() / packed.ncols() as f64 + c * (w - v).squared_norm_l2()
    }

    #[test]
    fn the_target_is_the_minimum() {
        let (m, n, tokens) = (5, 7, 60);
        let (w, reference) = (matrix(m, n, 1), matrix(n, tokens, 2));
        let packed = &reference + matrix(n, tokens, 3) * faer::Scale(0.3);
        let gram = &packed * packed.transpose() * faer::Scale(1.0 / tokens as f64);
        let cross = &reference * packed.transpose() * faer::Scale(1.0 / tokens as f64);
        let c = 0.03 * (0..n).map(|j| gram[(j, j)]).sum::<f64>() / n as f64;
        let best = Target::new(&gram, &cross, 0.03, 1.0).unwrap().of(w.as_ref());
        let least = loss(&w, &best, &reference, &packed, c);
        assert!(least < 0.9 * loss(&w, &w, &reference, &packed, c));
        for k in 0..m * n {
            for step in [-1e-3, 1e-3] {
                let mut other = best.clone();
                other[(k / n, k % n)] += step;
                assert!(loss(&w, &other, &reference, &packed, c) > least);
            }
        }
        let half = Target::new(&gram, &cross, 0.03, 0.5).unwrap().of(w.as_ref());
        assert!((half - (&w + &best) * faer::Scale(0.5)).norm_max() < 1e-12);
    }

    #[test]
    fn the_same_stream_leaves_the_weight() {
        let (w, x) = (matrix(4, 6, 1), matrix(6, 40, 2));
        let gram = &x * x.transpose() * faer::Scale(1.0 / 40.0);
        let target = Target::new(&gram, &gram, 0.03, 1.0).unwrap().of(w.as_ref());
        assert!((target - w).norm_max() < 1e-12);
    }
}
