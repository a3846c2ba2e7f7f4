use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par};

/// ‖QᵀQ − I‖_F at which a factor counts as orthogonal (f64).
pub const POLAR_TOLERANCE: f64 = 1e-12;

/// Newton-Schulz steps before the fallback. A step multiplies a small singular value by 1.5, so 60 steps reach
/// singular values down to 1e-10 of the largest.
const MAX_STEPS: usize = 60;

/// Which method gave the factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolarMethod {
    NewtonSchulz,
    Svd,
}

/// Orthogonal polar factor: the orthogonal Q (r x r) nearest to A, `A = Q·S` with S symmetric positive semidefinite.
///
/// Newton-Schulz, `X ← X(3I − XᵀX)/2` from `X = A / s`, with s above ‖A‖₂ but near it:
/// `s² = ‖(AᵀA)²‖_∞^½`, an upper bound of ‖A‖₂² that is tighter than the Frobenius norm. A matrix that is singular
/// to working precision goes through an SVD. `None` where A is not finite or the SVD fails.
pub fn polar_factor(a: &Mat<f64>, par: Par) -> Option<(Mat<f64>, PolarMethod)> {
    let r = a.nrows();
    let mut gram = Mat::zeros(r, r);
    matmul(&mut gram, Accum::Replace, a.transpose(), a, 1.0, par);
    let mut next = Mat::zeros(r, r);
    matmul(&mut next, Accum::Replace, &gram, &gram, 1.0, par);
    let scale = row_sum_norm(&next).sqrt().sqrt();
    if !scale.is_finite() {
        return None;
    }
    if scale > 0.0 {
        let mut x = a * faer::Scale(1.0 / scale);
        gram *= faer::Scale(1.0 / (scale * scale));
        for _ in 0..MAX_STEPS {
            let done = distance_to_identity(&gram) <= POLAR_TOLERANCE;
            if done {
                return Some((x, PolarMethod::NewtonSchulz));
            }
            next.copy_from(&x);
            matmul(&mut next, Accum::Add, &x, &half_minus(&gram), 1.0, par);
            std::mem::swap(&mut x, &mut next);
            matmul(&mut gram, Accum::Replace, x.transpose(), &x, 1.0, par);
        }
    }
    let svd = a.svd().ok()?;
    Some((svd.U() * svd.V().transpose(), PolarMethod::Svd))
}

/// `(I − G)/2`: the step is `X + X·(I − XᵀX)/2`, which keeps full precision near the end.
fn half_minus(gram: &Mat<f64>) -> Mat<f64> {
    Mat::from_fn(gram.nrows(), gram.ncols(), |i, j| 0.5 * (f64::from(u8::from(i == j)) - gram[(i, j)]))
}

fn distance_to_identity(gram: &Mat<f64>) -> f64 {
    let mut sum = 0.0;
    for j in 0..gram.ncols() {
        for (i, g) in gram.col(j).iter().enumerate() {
            let d = g - f64::from(u8::from(i == j));
            sum += d * d;
        }
    }
    sum.sqrt()
}

/// ‖·‖_∞ of a symmetric matrix: the largest sum of absolute values in a column.
fn row_sum_norm(a: &Mat<f64>) -> f64 {
    (0..a.ncols()).map(|j| a.col(j).iter().map(|v| v.abs()).sum()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(r: usize) -> Mat<f64> {
        Mat::from_fn(r, r, |i, j| ((i * 7 + j * 13) % 11) as f64 - 5.0 + f64::from(u8::from(i == j)) * 9.0)
    }

    #[test]
    fn factor_is_orthogonal_and_leaves_a_symmetric_rest() {
        for r in [1, 8, 40] {
            let a = matrix(r);
            let (q, method) = polar_factor(&a, Par::Seq).unwrap();
            assert_eq!(method, PolarMethod::NewtonSchulz);
            let s = q.transpose() * &a;
            for i in 0..r {
                for j in 0..r {
                    let one = f64::from(u8::from(i == j));
                    assert!(((q.transpose() * &q)[(i, j)] - one).abs() < 1e-12);
                    assert!((s[(i, j)] - s[(j, i)]).abs() < 1e-11 * s.norm_max());
                }
            }
        }
    }

    #[test]
    fn singular_matrices_go_through_the_svd() {
        let mut a = matrix(8);
        for i in 0..8 {
            a[(i, 3)] = 0.0;
        }
        let (q, method) = polar_factor(&a, Par::Seq).unwrap();
        assert_eq!(method, PolarMethod::Svd);
        assert!(distance_to_identity(&(q.transpose() * &q)) < 1e-12);
    }
}
