use rayon::prelude::*;

/// `y = x / sqrt(mean(x²) + ε) ∘ w`, row by row (Zhang & Sennrich 2019, eq. 4, with ε as in Llama).
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | x | `x` | T x n |
/// | w | `weight` | n |
/// | y | `y` | T x n |
///
/// The mean is summed in f64, so it does not depend on the width of vector instructions.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f64, y: &mut [f32]) {
    let width = weight.len();
    assert_eq!(x.len(), y.len(), "as many numbers out as in");
    let row = |(x, y): (&[f32], &mut [f32])| {
        let square: f64 = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        let scale = (1.0 / (square / width as f64 + epsilon).sqrt()) as f32;
        for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
            *y = x * scale * w;
        }
    };
    const ROWS_PER_TASK: usize = 32;
    x.par_chunks(width * ROWS_PER_TASK).zip(y.par_chunks_mut(width * ROWS_PER_TASK)).for_each(|(x, y)| {
        x.chunks_exact(width).zip(y.chunks_exact_mut(width)).for_each(row);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_scaled_to_unit_mean_square() {
        let mut y = [0.0; 4];
        rms_norm(&[1.0, 7.0, 0.0, 0.0], &[1.0, 2.0], 0.0, &mut y);
        assert_eq!(y[..2], [0.2, 2.8]);
        assert!(y[2].is_nan(), "0/0 without ε");
        rms_norm(&[1.0, 7.0, 0.0, 0.0], &[1.0, 2.0], 1e-5, &mut y);
        assert_eq!(y[2..], [0.0, 0.0]);
    }
}
