use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve::solve_lower_triangular_in_place;
use faer::{Accum, MatMut, Par};

/// Columns of one step: wide enough for the products to run at full speed, and the part that plain loops factor
/// stays below `(BLOCK/n)²` of the work.
const BLOCK: usize = 128;

/// A pivot that is not above zero: the matrix is not positive definite, or not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NonPositivePivot {
    /// Row of the pivot.
    pub index: usize,
    /// Its value, `a_kk − Σ_j l_kj²`; may be NaN.
    pub pivot: f64,
}

/// Cholesky factor in place: `A = L·Lᵀ`, A (n x n) symmetric. L takes the place of the lower triangle and depends on
/// it alone; what the upper triangle holds afterwards means nothing.
///
/// Left-looking by blocks of columns: each takes the product of all columns before it in one GEMM, so n³/3
/// multiplications and additions run at the rate of the product, in an order that threads do not change.
///
/// # Errors
/// The first pivot that is not above zero; the columns before it hold L.
pub fn cholesky(mut a: MatMut<'_, f64>, par: Par) -> Result<(), NonPositivePivot> {
    let n = a.nrows();
    for at in (0..n).step_by(BLOCK) {
        let width = BLOCK.min(n - at);
        let (before, rest) = a.as_mut().get_mut(at.., ..).split_at_col_mut(at);
        let mut panel = rest.get_mut(.., ..width);
        if at > 0 {
            let before = before.as_ref();
            let top = before.get(..width, ..).transpose();
            matmul(panel.as_mut(), Accum::Add, before, top, -1.0, par);
        }
        let (mut corner, below) = panel.split_at_row_mut(width);
        factor_corner(corner.as_mut())
            .map_err(|e| NonPositivePivot { index: at + e.index, pivot: e.pivot })?;
        solve_lower_triangular_in_place(corner.as_ref(), below.transpose_mut(), par);
    }
    Ok(())
}

/// Right-looking plain loops down the columns.
fn factor_corner(mut a: MatMut<'_, f64>) -> Result<(), NonPositivePivot> {
    let n = a.nrows();
    let mut column = [0.0; BLOCK];
    for k in 0..n {
        let pivot = a[(k, k)];
        if !(pivot > 0.0 && pivot.is_finite()) {
            return Err(NonPositivePivot { index: k, pivot });
        }
        let root = pivot.sqrt();
        a[(k, k)] = root;
        for i in k + 1..n {
            a[(i, k)] /= root;
            column[i] = a[(i, k)];
        }
        for j in k + 1..n {
            let factor = column[j];
            match a.as_mut().get_mut(j.., j).try_as_col_major_mut() {
                Some(target) => {
                    let target = target.as_slice_mut();
                    target.iter_mut().zip(&column[j..n]).for_each(|(t, l)| *t -= factor * l);
                }
                None => (j..n).for_each(|i| a[(i, j)] -= factor * column[i]),
            }
        }
    }
    Ok(())
}

/// The same for a small row-major block (d up to about 16), by plain loops. The upper triangle is left as it is.
pub fn cholesky_small(a: &mut [f64], d: usize) -> Result<(), NonPositivePivot> {
    for i in 0..d {
        for j in 0..=i {
            let mut sum = a[i * d + j];
            for k in 0..j {
                sum -= a[i * d + k] * a[j * d + k];
            }
            if i > j {
                a[i * d + j] = sum / a[j * d + j];
            } else if sum > 0.0 && sum.is_finite() {
                a[i * d + i] = sum.sqrt();
            } else {
                return Err(NonPositivePivot { index: i, pivot: sum });
            }
        }
    }
    Ok(())
}

/// `x ← L⁻¹x` for the factor of [`cholesky_small`].
pub fn forward_small(l: &[f64], x: &mut [f64]) {
    let d = x.len();
    for i in 0..d {
        let sum: f64 = (0..i).map(|k| l[i * d + k] * x[k]).sum();
        x[i] = (x[i] - sum) / l[i * d + i];
    }
}

/// `x ← L⁻ᵀx` for the factor of [`cholesky_small`].
pub fn backward_small(l: &[f64], x: &mut [f64]) {
    let d = x.len();
    for i in (0..d).rev() {
        let sum: f64 = (i + 1..d).map(|k| l[k * d + i] * x[k]).sum();
        x[i] = (x[i] - sum) / l[i * d + i];
    }
}

#[cfg(test)]
mod tests {
    use faer::Mat;

    use super::*;

    fn spd(n: usize) -> Mat<f64> {
        let g = Mat::from_fn(n, n, |i, j| ((i * 31 + j * 17 + i * j) % 23) as f64 / 23.0 - 0.5);
        let mut a = &g * g.transpose();
        (0..n).for_each(|i| a[(i, i)] += 1.0);
        a
    }

    #[test]
    fn factor_times_its_transpose_is_the_matrix() {
        for n in [1, 3, 16, 128, 129, 300] {
            let a = spd(n);
            let mut l = a.clone();
            cholesky(l.as_mut(), Par::Seq).unwrap();
            let l = Mat::from_fn(n, n, |i, j| if i >= j { l[(i, j)] } else { 0.0 });
            assert!((&l * l.transpose() - &a).norm_max() < 1e-13 * n as f64, "{n}");
            if n <= 16 {
                let mut small: Vec<f64> = (0..n * n).map(|k| a[(k / n, k % n)]).collect();
                cholesky_small(&mut small, n).unwrap();
                let x: Vec<f64> = (0..n).map(|i| i as f64 - 1.5).collect();
                let mut y: Vec<f64> = (0..n).map(|i| (0..n).map(|j| a[(i, j)] * x[j]).sum()).collect();
                forward_small(&small, &mut y);
                backward_small(&small, &mut y);
                assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() < 1e-11));
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let factor = |par| {
            let mut a = spd(700);
            cholesky(a.as_mut(), par).unwrap();
            a
        };
        assert_eq!(factor(Par::Seq), factor(Par::rayon(2)));
    }

    #[test]
    fn a_bad_pivot_is_named() {
        for (n, k) in [(5, 2), (300, 210)] {
            let mut a = Mat::<f64>::identity(n, n);
            a[(k, k)] = -3.0;
            assert_eq!(cholesky(a.as_mut(), Par::Seq), Err(NonPositivePivot { index: k, pivot: -3.0 }));
        }
        let bad = cholesky_small(&mut [1.0, 2.0, 2.0, 1.0], 2);
        assert_eq!(bad, Err(NonPositivePivot { index: 1, pivot: -3.0 }));
    }
}
