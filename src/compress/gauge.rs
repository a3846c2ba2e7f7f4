use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, get_global_parallelism};

use super::factors::Path;
use super::latents::Latents;
use crate::ops::polar::{PolarMethod, polar_factor};
use crate::ops::rank_one::rank_one_magnitudes;

/// How the gauge iteration went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GaugeInfo {
    /// Polar factors that had to go through an SVD.
    pub svd_fallbacks: usize,
}

/// Rotates the latents towards signs: weighted iterative quantisation (ITQ; Gong & Lazebnik 2011).
///
/// `U'V'ᵀ` does not change under `U' ← U'Q, V' ← V'Q` with Q orthogonal, so Q is free to make the entries of each row
/// equal in size. Z stacks the normalised rows of U' and V'; the weights are `‖u'_i‖` and `‖v'_j‖·(H̃_jj)^½`, their
/// squares scaled to mean 1. `steps` times, from Q = I: `Q ← polar(Zᵀ diag(w²) sign(ZQ))`.
///
/// `diagonal` is diag H̃ (n). Cost: a step is two products of (m+n) x r x r and a polar factor of r x r.
pub fn rotate_to_signs(latents: &mut Latents, diagonal: &[f64], steps: usize) -> GaugeInfo {
    let mut info = GaugeInfo::default();
    let par = get_global_parallelism();
    let (m, n, r) = (latents.u.nrows(), latents.v.nrows(), latents.u.ncols());
    let norms: Vec<f64> = (0..m)
        .map(|i| latents.u.row(i).norm_l2())
        .chain((0..n).map(|j| latents.v.row(j).norm_l2()))
        .collect();
    let squares: Vec<f64> =
        (0..m + n).map(|i| norms[i] * norms[i] * if i < m { 1.0 } else { diagonal[i - m] }).collect();
    let mean = squares.iter().sum::<f64>() / (m + n) as f64;
    if mean <= 0.0 || !mean.is_finite() {
        return info;
    }
    let z = Mat::from_fn(m + n, r, |i, k| {
        let entry = if i < m { latents.u[(i, k)] } else { latents.v[(i - m, k)] };
        if norms[i] > 0.0 { entry / norms[i] } else { 0.0 }
    });
    let weighted = Mat::from_fn(m + n, r, |i, k| z[(i, k)] * squares[i] / mean);
    let mut q = Mat::<f64>::identity(r, r);
    let mut signs = Mat::zeros(m + n, r);
    let mut pull = Mat::zeros(r, r);
    for _ in 0..steps {
        matmul(&mut signs, Accum::Replace, &z, &q, 1.0, par);
        for k in 0..r {
            signs.col_mut(k).iter_mut().for_each(|s| *s = sign(*s));
        }
        matmul(&mut pull, Accum::Replace, weighted.transpose(), &signs, 1.0, par);
        let Some((next, method)) = polar_factor(&pull, par) else { break };
        info.svd_fallbacks += usize::from(method == PolarMethod::Svd);
        q = next;
    }
    latents.u = &latents.u * &q;
    latents.v = &latents.v * &q;
    info
}

/// Signs of the latents, and magnitudes as non-negative rank-one fits `|U'| ≈ h λᵤᵀ`, `|V'| ≈ g λᵥᵀ`, `l = λᵤ∘λᵥ`.
pub fn signs_and_magnitudes(latents: &Latents) -> Path {
    let (h, lambda_u) = rank_one_magnitudes(latents.u.as_ref());
    let (g, lambda_v) = rank_one_magnitudes(latents.v.as_ref());
    let l = lambda_u.iter().zip(&lambda_v).map(|(u, v)| u * v).collect();
    Path { h, u: signs_of(&latents.u), l, v: signs_of(&latents.v), g }
}

fn signs_of(a: &Mat<f64>) -> Mat<f64> {
    Mat::from_fn(a.nrows(), a.ncols(), |i, k| sign(a[(i, k)]))
}

/// sign(0) is +1.
fn sign(x: f64) -> f64 {
    if x < 0.0 { -1.0 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latents() -> Latents {
        Latents {
            u: Mat::from_fn(20, 6, |i, k| ((i * 7 + k * 5) % 13) as f64 - 6.0),
            v: Mat::from_fn(14, 6, |j, k| ((j * 11 + k * 3) % 17) as f64 - 8.0),
        }
    }

    #[test]
    fn rotation_keeps_the_product_and_brings_it_nearer_to_signs() {
        let before = latents();
        let mut after = latents();
        rotate_to_signs(&mut after, &[1.0; 14], 50);
        let product = &before.u * before.v.transpose();
        assert!((&product - &after.u * after.v.transpose()).norm_max() < 1e-11 * product.norm_max());
        let misfit = |latents: &Latents| (&product - signs_and_magnitudes(latents).product()).norm_l2();
        assert!(misfit(&after) < misfit(&before));
    }

    #[test]
    fn zero_rows_and_zero_latents_stay_zero() {
        let mut some = latents();
        some.u.row_mut(3).fill(0.0);
        rotate_to_signs(&mut some, &[1.0; 14], 5);
        assert!(some.u.row(3).iter().all(|v| *v == 0.0));
        let mut none = Latents { u: Mat::zeros(4, 2), v: Mat::zeros(3, 2) };
        rotate_to_signs(&mut none, &[1.0; 3], 5);
        assert_eq!(signs_and_magnitudes(&none).product(), Mat::<f64>::zeros(4, 3));
    }
}
