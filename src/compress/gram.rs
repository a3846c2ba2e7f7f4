use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatRef, get_global_parallelism};

use crate::ops::syrk::{mirror_lower, symmetric_product};

/// Second moment of a layer's input, `H = X Xᵀ / T`, summed in f64.
///
/// X is n x T: T tokens of width n. Cost: n²T multiplications and additions; memory n².
pub struct GramSum {
    lower: Mat<f64>,
    tokens: usize,
}

impl GramSum {
    pub fn new(width: usize) -> Self {
        Self { lower: Mat::zeros(width, width), tokens: 0 }
    }

    /// Adds tokens; `x` is T x n row-major, which is X column-major.
    pub fn add(&mut self, x: &[f32]) {
        let n = self.lower.nrows();
        let wide: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
        let x = MatRef::from_column_major_slice(&wide, n, wide.len() / n);
        symmetric_product(self.lower.as_mut(), Accum::Add, x, x.transpose(), 1.0, get_global_parallelism());
        self.tokens += x.ncols();
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// H, symmetric, n x n; zero when no token was added.
    pub fn finish(mut self) -> Mat<f64> {
        mirror_lower(self.lower.as_mut());
        if self.tokens > 0 {
            self.lower *= faer::Scale(1.0 / self.tokens as f64);
        }
        self.lower
    }
}

/// Second moment of two inputs at the same tokens, `C = X Yᵀ / T`, summed in f64; as [`GramSum`], but twice the cost.
pub struct CrossSum {
    sum: Mat<f64>,
    tokens: usize,
}

impl CrossSum {
    pub fn new(width: usize) -> Self {
        Self { sum: Mat::zeros(width, width), tokens: 0 }
    }

    /// Adds tokens; `x` and `y` are T x n row-major.
    ///
    /// # Panics
    /// When they are not as many.
    pub fn add(&mut self, x: &[f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "the same tokens");
        let (n, par) = (self.sum.nrows(), get_global_parallelism());
        let [x, y] = [x, y].map(|x| x.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
        let [x, y] = [&x, &y].map(|x| MatRef::from_column_major_slice(x, n, x.len() / n));
        matmul(self.sum.as_mut(), Accum::Add, x, y.transpose(), 1.0, par);
        self.tokens += x.ncols();
    }

    /// C, n x n; zero when no token was added.
    pub fn finish(mut self) -> Mat<f64> {
        if self.tokens > 0 {
            self.sum *= faer::Scale(1.0 / self.tokens as f64);
        }
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_batches_equal_the_whole() {
        let x: Vec<f32> = (0..40).map(|k| ((k * 7) % 11) as f32 - 5.0).collect();
        let mut whole = GramSum::new(4);
        whole.add(&x);
        let mut parts = GramSum::new(4);
        x.chunks(12).for_each(|part| parts.add(part));
        assert_eq!(parts.tokens(), 10);
        let (whole, parts) = (whole.finish(), parts.finish());
        assert_eq!(whole, parts);
        let expected: f64 = (0..10).map(|t| f64::from(x[4 * t + 1] * x[4 * t + 3])).sum::<f64>() / 10.0;
        assert!((whole[(1, 3)] - expected).abs() < 1e-12);
    }

    #[test]
    fn a_cross_sum_is_the_product_of_its_inputs() {
        let x: Vec<f32> = (0..24).map(|k| ((k * 5) % 7) as f32 - 3.0).collect();
        let y: Vec<f32> = (0..24).map(|k| ((k * 3) % 11) as f32 - 5.0).collect();
        let mut sum = CrossSum::new(3);
        x.chunks(12).zip(y.chunks(12)).for_each(|(x, y)| sum.add(x, y));
        let found = sum.finish();
        for i in 0..3 {
            for j in 0..3 {
                let expected = (0..8).map(|t| f64::from(x[3 * t + i] * y[3 * t + j])).sum::<f64>() / 8.0;
                assert!((found[(i, j)] - expected).abs() < 1e-12);
            }
        }
    }
}
