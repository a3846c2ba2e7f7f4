use faer::linalg::solvers::Solve;
use faer::{Mat, MatRef, Side};

/// Ridge of the scale systems, relative to the mean of the diagonal: far above rounding (1e-16), far below the
/// damping of the metric (3e-2).
pub const RELATIVE_RIDGE: f64 = 1e-10;

/// Solves `(A + ridge·mean(diag A)·I) x = b` for a symmetric positive semidefinite A (n x n, lower triangle read).
///
/// `None` where the ridged matrix is not positive definite or the solution is not finite.
pub fn spd_solve(mut a: Mat<f64>, b: &[f64]) -> Option<Vec<f64>> {
    let n = a.nrows();
    let ridge = RELATIVE_RIDGE * (0..n).map(|i| a[(i, i)]).sum::<f64>() / n as f64;
    for i in 0..n {
        a[(i, i)] += ridge;
    }
    let llt = a.llt(Side::Lower).ok()?;
    let x = llt.solve(MatRef::from_column_major_slice(b, n, 1));
    let x: Vec<f64> = x.col(0).iter().copied().collect();
    x.iter().all(|v| v.is_finite()).then_some(x)
}
