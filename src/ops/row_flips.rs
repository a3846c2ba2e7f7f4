use faer::{Mat, MatMut, MatRef};

/// A flip is taken when it lowers the error by more than this share of the flipped entry's own energy (f64).
pub const FLIP_TOLERANCE: f64 = 1e-12;

/// Passes over a row at most.
const MAX_PASSES: usize = 4;

/// Greedy sign flips, row by row: lowers `h² sᵀQs − 2h c·s` over s ∈ {±1}^r.
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | S | `signs` | m x r, ±1, updated in place |
/// | h | `scale` | m |
/// | Q | `q` | r x r, symmetric positive semidefinite |
/// | C | `c` | m x r, row i is c_i |
///
/// Flipping k changes the error by `−4h² s_k((Qs)_k − Q_kk s_k) + 4h s_k c_k`; entries are visited in the order of k,
/// at most four times, and a flip is taken when the change is below `−tol·h² Q_kk`. Rows are independent. Returns
/// the number of flips. Cost: 2mr² for the first Q·Sᵀ and 2r for a flip.
pub fn row_flips(mut signs: MatMut<'_, f64>, scale: &[f64], q: MatRef<'_, f64>, c: MatRef<'_, f64>) -> usize {
    let r = signs.ncols();
    let diagonal: Vec<f64> = (0..r).map(|k| q[(k, k)]).collect();
    // Columns are rows of S, so that one row is contiguous.
    let mut s_columns: Mat<f64> = signs.as_ref().transpose().to_owned();
    let mut qs_columns = q * &s_columns;
    let c_columns: Mat<f64> = c.transpose().to_owned();
    let mut flips = 0;
    for (i, h) in scale.iter().enumerate() {
        let s = column_mut(&mut s_columns, i);
        let qs = column_mut(&mut qs_columns, i);
        flips += flip_row(s, qs, column(&c_columns, i), *h, &diagonal, q);
    }
    signs.copy_from(s_columns.transpose());
    flips
}

fn flip_row(s: &mut [f64], qs: &mut [f64], c: &[f64], h: f64, diagonal: &[f64], q: MatRef<'_, f64>) -> usize {
    let mut flips = 0;
    for _ in 0..MAX_PASSES {
        let before = flips;
        for k in 0..s.len() {
            let change = 4.0 * h * s[k] * (c[k] - h * (qs[k] - diagonal[k] * s[k]));
            if change < -FLIP_TOLERANCE * h * h * diagonal[k] {
                s[k] = -s[k];
                let step = 2.0 * s[k];
                for (qs, q) in qs.iter_mut().zip(q.col(k).iter()) {
                    *qs += step * q;
                }
                flips += 1;
            }
        }
        if flips == before {
            break;
        }
    }
    flips
}

pub(crate) fn column(a: &Mat<f64>, j: usize) -> &[f64] {
    a.col(j).try_as_col_major().expect("columns of an owned matrix are contiguous").as_slice()
}

pub(crate) fn column_mut(a: &mut Mat<f64>, j: usize) -> &mut [f64] {
    a.col_mut(j).try_as_col_major_mut().expect("columns of an owned matrix are contiguous").as_slice_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objective(s: &[f64], h: f64, q: &Mat<f64>, c: &[f64]) -> f64 {
        let r = s.len();
        let quadratic: f64 =
            (0..r).flat_map(|i| (0..r).map(move |j| (i, j))).map(|(i, j)| s[i] * q[(i, j)] * s[j]).sum();
        h * h * quadratic - 2.0 * h * (0..r).map(|k| c[k] * s[k]).sum::<f64>()
    }

    #[test]
    fn flips_lower_the_objective_and_end_where_no_flip_helps() {
        let (m, r) = (6, 8);
        let a = Mat::from_fn(r, r, |i, j| ((i * 5 + j * 3) % 7) as f64 - 3.0);
        let q = &a * a.transpose();
        let c = Mat::from_fn(m, r, |i, j| ((i * 11 + j * 7) % 13) as f64 - 6.0);
        let scale: Vec<f64> = (0..m).map(|i| 0.5 - 0.2 * i as f64).collect();
        let start = Mat::from_fn(m, r, |i, j| if (i + j * j) % 3 == 0 { -1.0 } else { 1.0 });
        let mut signs = start.clone();
        assert!(row_flips(signs.as_mut(), &scale, q.as_ref(), c.as_ref()) > 0);
        let row = |a: &Mat<f64>, i: usize| -> Vec<f64> { (0..r).map(|k| a[(i, k)]).collect() };
        for (i, h) in scale.iter().enumerate() {
            let (before, after, c) = (row(&start, i), row(&signs, i), row(&c, i));
            assert!(objective(&after, *h, &q, &c) <= objective(&before, *h, &q, &c) + 1e-9);
        }
        assert_eq!(row_flips(signs.as_mut(), &scale, q.as_ref(), c.as_ref()), 0);
    }
}
