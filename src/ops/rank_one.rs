use faer::MatRef;

/// Relative change of the factors at which the power iteration stops.
const TOLERANCE: f64 = 1e-12;
/// Steps after which it stops in any case.
pub(super) const MAX_STEPS: usize = 200;

/// Best non-negative rank-one fit `|A| ≈ x λᵀ`, by power iteration from the constant vector.
///
/// A is m x r; x has length m, λ length r and 2-norm 1. The leading singular pair of a non-negative matrix is
/// non-negative (Perron-Frobenius), so no projection is needed. A zero matrix gives x = 0.
pub fn rank_one_magnitudes(a: MatRef<'_, f64>) -> (Vec<f64>, Vec<f64>) {
    let (m, r) = a.shape();
    let mut lambda = vec![1.0 / (r as f64).sqrt(); r];
    let mut x = vec![0.0; m];
    for _ in 0..MAX_STEPS {
        x.fill(0.0);
        for (k, l) in lambda.iter().enumerate() {
            for (x, a) in x.iter_mut().zip(a.col(k).iter()) {
                *x += a.abs() * l;
            }
        }
        let mut next: Vec<f64> =
            (0..r).map(|k| a.col(k).iter().zip(&x).map(|(a, x)| a.abs() * x).sum()).collect();
        let norm = next.iter().map(|v| v * v).sum::<f64>().sqrt();
        if norm == 0.0 {
            break;
        }
        next.iter_mut().for_each(|v| *v /= norm);
        let change = next.iter().zip(&lambda).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
        lambda = next;
        if change < TOLERANCE {
            break;
        }
    }
    x.fill(0.0);
    for (k, l) in lambda.iter().enumerate() {
        for (x, a) in x.iter_mut().zip(a.col(k).iter()) {
            *x += a.abs() * l;
        }
    }
    (x, lambda)
}

#[cfg(test)]
mod tests {
    use faer::Mat;

    use super::*;

    #[test]
    fn a_rank_one_matrix_is_recovered() {
        let a = Mat::from_fn(9, 4, |i, j| {
            (i + 1) as f64 * (j + 2) as f64 * if (i + j) % 2 == 0 { 1.0 } else { -1.0 }
        });
        let (x, lambda) = rank_one_magnitudes(a.as_ref());
        for i in 0..9 {
            for j in 0..4 {
                assert!((x[i] * lambda[j] - a[(i, j)].abs()).abs() < 1e-12);
            }
        }
        let zero = Mat::<f64>::zeros(3, 2);
        assert_eq!(rank_one_magnitudes(zero.as_ref()).0, [0.0; 3]);
    }
}
