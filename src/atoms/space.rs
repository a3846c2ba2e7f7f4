use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par, Side};

use super::AtomsError;
use crate::ops::matmul::{rows, rows_mut};

/// Most principal components that a fit works in: the border of its Newton systems is this times the basis functions.
pub const LARGEST_RANK: usize = 32;

/// Share of the variance that the components must hold, unless there are too many of them.
pub const SHARE: f64 = 0.995;

/// Singular values below this share of the largest are rounding.
const RANK_TOLERANCE: f64 = 1e-10;

/// Spread of rows below this share of their size is rounding.
pub(super) const ROUNDING: f64 = 1e-13;

/// The principal components in which a dictionary is fitted: `y = V(x − μ)/s`, s the root of the mean of ‖x − μ‖², so
/// that nothing depends on the scale of the data.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    /// p.
    pub width: usize,
    /// r.
    pub rank: usize,
    /// μ, p numbers.
    pub mean: Vec<f64>,
    /// V, r x p, orthonormal rows.
    pub axes: Vec<f64>,
    /// s.
    pub scale: f64,
    /// Share of the variance that the components hold.
    pub share: f64,
}

impl Space {
    /// The space of rows, and its coordinates of them (n x r).
    ///
    /// A component's sign is that for which the third moment of its coordinates is above zero: it turns with the data.
    ///
    /// # Errors
    /// Rows that do not vary, of another width, or that hold NaN or infinity.
    pub fn of(x: &[f64], width: usize) -> Result<(Self, Vec<f64>), AtomsError> {
        let n = checked(x, width)?;
        if n < 2 {
            return Err(AtomsError::Rows { got: n });
        }
        let mean = mean(x, width);
        let magnitude = x.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        let mut centred: Vec<f64> = x
            .chunks_exact(width)
            .flat_map(|row| row.iter().zip(&mean).map(|(x, m)| x - m).collect::<Vec<_>>())
            .collect();
        let spread = centred.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        // What is left of equal rows is rounding.
        if spread <= ROUNDING * magnitude {
            return Err(AtomsError::Constant { rows: n });
        }
        centred.iter_mut().for_each(|v| *v /= spread);
        let norm = (centred.iter().map(|v| v * v).sum::<f64>() / n as f64).sqrt();
        centred.iter_mut().for_each(|v| *v /= norm);
        let scale = norm * spread;
        let (axes, values) = components(&centred, n, width)?;
        let total: f64 = values.iter().sum();
        let mut held = 0.0;
        let mut rank = 0;
        while rank < values.len() && (rank == 0 || held < SHARE * total) && rank < LARGEST_RANK {
            held += values[rank];
            rank += 1;
        }
        let mut space =
            Self { width, rank, mean, axes: axes[..rank * width].to_vec(), scale, share: held / total };
        let mut y = space.project(x);
        for j in 0..rank {
            let third: f64 = y.chunks_exact(rank).map(|row| row[j].powi(3)).sum();
            if third < 0.0 {
                space.axes[j * width..(j + 1) * width].iter_mut().for_each(|v| *v = -*v);
                y.chunks_exact_mut(rank).for_each(|row| row[j] = -row[j]);
            }
        }
        Ok((space, y))
    }

    /// Coordinates of rows, n x r.
    pub fn project(&self, x: &[f64]) -> Vec<f64> {
        let n = x.len() / self.width;
        let mut centred = x.to_vec();
        for row in centred.chunks_exact_mut(self.width) {
            row.iter_mut().zip(&self.mean).for_each(|(x, m)| *x -= m);
        }
        let mut y = vec![0.0; n * self.rank];
        let axes = rows(&self.axes, self.rank, self.width).transpose();
        let centred = rows(&centred, n, self.width);
        matmul(
            rows_mut(&mut y, n, self.rank),
            Accum::Replace,
            centred,
            axes,
            1.0 / self.scale,
            Par::rayon(0),
        );
        y
    }

    /// Rows of coordinates, back in p dimensions.
    pub fn restore(&self, y: &[f64]) -> Vec<f64> {
        let n = y.len() / self.rank;
        let mut x: Vec<f64> = (0..n).flat_map(|_| self.mean.iter().copied()).collect();
        let (y, axes) = (rows(y, n, self.rank), rows(&self.axes, self.rank, self.width));
        matmul(rows_mut(&mut x, n, self.width), Accum::Add, y, axes, self.scale, Par::rayon(0));
        x
    }

    /// A direction of the space (r numbers) as one of p numbers, without the mean.
    pub fn direction(&self, y: &[f64]) -> Vec<f64> {
        let mut x = vec![0.0; self.width];
        for (y, axis) in y.iter().zip(self.axes.chunks_exact(self.width)) {
            x.iter_mut().zip(axis).for_each(|(x, a)| *x += self.scale * y * a);
        }
        x
    }
}

/// Number of rows.
///
/// # Errors
/// An incomplete row; NaN or infinity, by row and column.
pub fn checked(x: &[f64], width: usize) -> Result<usize, AtomsError> {
    if width == 0 || x.is_empty() {
        return Err(AtomsError::Empty);
    }
    if !x.len().is_multiple_of(width) {
        return Err(AtomsError::Length { got: x.len(), width });
    }
    if let Some(at) = x.iter().position(|v| !v.is_finite()) {
        return Err(AtomsError::NonFinite { row: at / width, column: at % width, value: x[at] });
    }
    Ok(x.len() / width)
}

fn mean(x: &[f64], width: usize) -> Vec<f64> {
    let n = (x.len() / width) as f64;
    let mut mean = vec![0.0; width];
    for row in x.chunks_exact(width) {
        mean.iter_mut().zip(row).for_each(|(m, x)| *m += x / n);
    }
    mean
}

/// Principal directions by rows, and the variances along them, falling; through the smaller of the two Grams.
fn components(x: &[f64], n: usize, width: usize) -> Result<(Vec<f64>, Vec<f64>), AtomsError> {
    let x = rows(x, n, width);
    let side = n.min(width);
    let mut gram = Mat::zeros(side, side);
    let (a, b) = if width <= n { (x.transpose(), x) } else { (x, x.transpose()) };
    matmul(gram.as_mut(), Accum::Replace, a, b, 1.0 / n as f64, Par::rayon(0));
    let eigen = gram.self_adjoint_eigen(Side::Lower).map_err(|_| AtomsError::Eigen)?;
    let order: Vec<usize> = (0..side).rev().collect();
    let value = |k: usize| eigen.S().column_vector()[k];
    let largest = value(side - 1);
    let kept: Vec<usize> = order.into_iter().filter(|k| value(*k) > RANK_TOLERANCE * largest).collect();
    let mut axes = vec![0.0; kept.len() * width];
    for (axis, k) in axes.chunks_exact_mut(width).zip(&kept) {
        let u = eigen.U().col(*k);
        if width <= n {
            axis.iter_mut().enumerate().for_each(|(j, a)| *a = u[j]);
        } else {
            for i in 0..n {
                axis.iter_mut().enumerate().for_each(|(j, a)| *a += u[i] * x[(i, j)]);
            }
            let length = axis.iter().map(|v| v * v).sum::<f64>().sqrt();
            axis.iter_mut().for_each(|a| *a /= length);
        }
    }
    Ok((axes, kept.iter().map(|k| value(*k)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atoms::zoo::Case;

    #[test]
    fn rows_come_back_and_scale_does_not_matter() {
        for case in [Case::Circle, Case::WideCircle] {
            let planted = case.plant(1);
            let (space, y) = Space::of(planted.fit_rows(), planted.width).unwrap();
            assert!(space.rank <= LARGEST_RANK && space.share > 0.5);
            let back = space.restore(&y);
            let error: f64 = back.iter().zip(planted.fit_rows()).map(|(a, b)| (a - b).powi(2)).sum();
            let total = space.scale.powi(2) * planted.fit as f64;
            assert!((error / total - (1.0 - space.share)).abs() < 1e-9);
            let scaled: Vec<f64> = planted.fit_rows().iter().map(|x| 1e-200 * x).collect();
            let (_, z) = Space::of(&scaled, planted.width).unwrap();
            assert!(y.iter().zip(&z).all(|(a, b)| (a - b).abs() < 1e-9));
        }
    }

    #[test]
    fn bad_rows_are_named() {
        assert!(matches!(Space::of(&[], 3), Err(AtomsError::Empty)));
        assert!(matches!(Space::of(&[1.0; 4], 3), Err(AtomsError::Length { got: 4, width: 3 })));
        assert!(matches!(Space::of(&[1.0; 3], 3), Err(AtomsError::Rows { got: 1 })));
        assert!(matches!(Space::of(&[1.5; 9], 3), Err(AtomsError::Constant { rows: 3 })));
        let mut x = vec![0.0; 9];
        x[5] = f64::NAN;
        assert!(matches!(Space::of(&x, 3), Err(AtomsError::NonFinite { row: 1, column: 2, .. })));
    }
}
