use rayon::prelude::*;

use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

/// Rows that one workgroup takes.
pub const ROWS: usize = 8;

pub(super) static RMS_NORM: Program = program!("rms_norm", "rms_norm", 256, [("ROWS", ROWS as u32)]);

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

/// One norm of a batch: x, y (T x n each, y not x) and the place of w.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    pub x: View,
    pub weight: usize,
    pub y: View,
}

/// Computes all norms of an arena. Devices sum the mean in f32: |x| must stay below 1e19/sqrt(n).
///
/// # Panics
/// When shapes contradict each other.
pub fn rms_norm_batch(arena: &mut Arena, epsilon: f64, items: &[RmsNorm]) {
    for RmsNorm { x, y, .. } in items {
        assert_eq!((x.rows, x.cols), (y.rows, y.cols), "a norm keeps the shape");
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, epsilon, item));
    }
    let mut table = Table::new(8);
    for RmsNorm { x, weight, y } in items {
        let epsilon = float_word(epsilon as f32);
        let words = [x.at, x.stride, y.at, y.stride, x.rows, x.cols, *weight, epsilon];
        table.push(x.rows.div_ceil(ROWS), &words);
    }
    arena.queue(&RMS_NORM, table);
}

fn on_host(memory: Memory, epsilon: f64, item: &RmsNorm) {
    (0..item.x.rows).into_par_iter().for_each(|i| {
        // SAFETY: x and w are read only; row i of y is written here alone.
        unsafe {
            let weight = memory.row(View::vector(item.weight, item.x.cols), 0);
            rms_norm(memory.row(item.x, i), weight, epsilon, memory.row_mut(item.y, i));
        }
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
