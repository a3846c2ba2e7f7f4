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
}
