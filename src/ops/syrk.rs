use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

/// Columns of the result computed by one product. At 256 the part above the diagonal that is computed in vain
/// stays below 256/n of the work, while each product is still wide enough to run at full speed.
const BLOCK: usize = 256;

/// Lower triangle of the symmetric product: `C ← [C +] α·A·B`, for A·B known to be symmetric.
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | A | `a` | n x k |
/// | B | `b` | k x n (`a` transposed for a Gram) |
/// | C | `c` | n x n; entries above the diagonal are left in no defined state |
///
/// Half the cost of the full product: n²k multiplications and additions.
pub fn symmetric_product(
    mut c: MatMut<'_, f64>,
    accum: Accum,
    a: MatRef<'_, f64>,
    b: MatRef<'_, f64>,
    alpha: f64,
    par: Par,
) {
    let n = c.nrows();
    let mut at = 0;
    while at < n {
        let width = BLOCK.min(n - at);
        let part = c.as_mut().submatrix_mut(at, at, n - at, width);
        matmul(part, accum, a.subrows(at, n - at), b.subcols(at, width), alpha, par);
        at += width;
    }
}

/// Copies the lower triangle to the upper one.
pub fn mirror_lower(mut c: MatMut<'_, f64>) {
    for j in 0..c.ncols() {
        for i in 0..j {
            c[(i, j)] = c[(j, i)];
        }
    }
}

#[cfg(test)]
mod tests {
    use faer::Mat;

    use super::*;

    #[test]
    fn lower_triangle_equals_the_full_product() {
        for n in [1, 5, 256, 300] {
            let a = Mat::from_fn(n, 7, |i, j| ((i * 31 + j * 17) % 23) as f64 - 11.0);
            let mut c = Mat::from_fn(n, n, |i, j| (i.min(j) + 2 * i.max(j)) as f64);
            let expected = &c + 0.5 * (&a * a.transpose());
            symmetric_product(c.as_mut(), Accum::Add, a.as_ref(), a.transpose(), 0.5, Par::Seq);
            mirror_lower(c.as_mut());
            assert_eq!(c, expected);
        }
    }
}
