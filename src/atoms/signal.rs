use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par, Side};

use crate::ops::matmul::{rows, rows_mut};

/// Dimensions in which candidates are looked for.
const LARGEST_SIGNAL: usize = 12;

/// What is left to explain, with equal variance in every direction: `z = e·U/√λ`, for the q directions in which the
/// residual varies more than noise does.
#[derive(Clone, Debug)]
pub struct Signal {
    pub rows: usize,
    /// q; 0 where nothing stands out.
    pub dim: usize,
    /// n x q.
    pub white: Vec<f64>,
    /// U√λ, r x q: the residual is its mean and this times the whitened coordinates.
    pub directions: Mat<f64>,
    /// Mean variance of the noise in a whitened direction.
    pub noise: f64,
}

impl Signal {
    /// Directions of a residual (n x r) whose variance lies above the edge that noise alone reaches,
    /// `σ²(1 + √(r/n))²` (Marchenko and Pastur). Without a known σ² it is the median variance. The widest come first, `most` of them at most.
    pub fn of(e: &[f64], rank: usize, known: Option<f64>, most: usize) -> Option<Self> {
        let n = e.len() / rank;
        let mean: Vec<f64> =
            (0..rank).map(|j| (0..n).map(|i| e[i * rank + j]).sum::<f64>() / n as f64).collect();
        let centred = Mat::from_fn(n, rank, |i, j| e[i * rank + j] - mean[j]);
        let mut gram = Mat::zeros(rank, rank);
        matmul(gram.as_mut(), Accum::Replace, centred.transpose(), &centred, 1.0 / n as f64, Par::Seq);
        let eigen = gram.self_adjoint_eigen(Side::Lower).ok()?;
        let values: Vec<f64> = (0..rank).rev().map(|k| eigen.S().column_vector()[k].max(0.0)).collect();
        // With so few directions the median is signal; what is born then has the criterion alone to pass.
        let median = if rank >= 8 { values[rank / 2] } else { 0.0 };
        let floor = known.map_or(median, |known| if rank >= 8 { known.min(median * 1.5) } else { known });
        let edge = 1.1 * floor * (1.0 + (rank as f64 / n as f64).sqrt()).powi(2);
        let least = 1e-12 * values[0];
        let dim = values.iter().take_while(|v| **v > edge.max(least)).count().min(LARGEST_SIGNAL).min(most);
        let mut directions = Mat::zeros(rank, dim);
        let mut white = vec![0.0; n * dim];
        for k in 0..dim {
            let u = eigen.U().col(rank - 1 - k);
            let along: Vec<f64> = (0..n).map(|i| (0..rank).map(|j| centred[(i, j)] * u[j]).sum()).collect();
            // The sign for which the third moment is above zero.
            let sign = if along.iter().map(|a| a.powi(3)).sum::<f64>() < 0.0 { -1.0 } else { 1.0 };
            let length = values[k].sqrt();
            (0..rank).for_each(|i| directions[(i, k)] = sign * length * u[i]);
            along.iter().enumerate().for_each(|(i, a)| white[i * dim + k] = sign * a / length);
        }
        let noise = values[..dim].iter().map(|v| floor / v).sum::<f64>() / dim.max(1) as f64;
        Some(Self { rows: n, dim, white, directions, noise })
    }

    /// The same without some whitened directions (q x m).
    pub fn without(&self, w: &Mat<f64>) -> Option<Self> {
        Some(self.within(&complement(w)?))
    }

    /// The same in some whitened directions alone (q x m).
    pub fn within(&self, w: &Mat<f64>) -> Self {
        Self {
            rows: self.rows,
            dim: w.ncols(),
            white: self.on(w),
            directions: &self.directions * w,
            noise: self.noise,
        }
    }

    /// The whitened coordinates of a row.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.white[i * self.dim..(i + 1) * self.dim]
    }

    /// Coordinates of all rows on the columns of W (q x m), n x m.
    pub fn on(&self, w: &Mat<f64>) -> Vec<f64> {
        let m = w.ncols();
        let mut z = vec![0.0; self.rows * m];
        let white = rows(&self.white, self.rows, self.dim);
        matmul(rows_mut(&mut z, self.rows, m), Accum::Replace, white, w, 1.0, Par::Seq);
        z
    }
}

/// The directions orthogonal to some (q x m): eigenvectors of W Wᵀ at 0.
pub fn complement(w: &Mat<f64>) -> Option<Mat<f64>> {
    let eigen = (w * w.transpose()).self_adjoint_eigen(Side::Lower).ok()?;
    Some(eigen.U().subcols(0, w.nrows() - w.ncols()).to_owned())
}
