use rayon::prelude::*;

use super::rms_norm::ROWS;
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

pub(super) static RMS_NORM_BACKWARD: Program =
    cuda_program!("rms_norm_backward", "rms_norm_backward", 256, [("ROWS", ROWS as u32)]);

/// The gradient of one [`RmsNorm`](super::rms_norm::RmsNorm) with respect to x, T x n each.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormGradient {
    pub x: View,
    pub weight: usize,
    pub dy: View,
    /// May be `dy` itself.
    pub dx: View,
    pub result: Added,
}

/// What becomes of what is in the place of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    Replace,
    /// The gradient is added to it, as where a branch leaves the residual stream.
    Add,
}

/// `dx = s·(w∘dy) − s³/n·⟨dy∘w, x⟩·x` with `s = 1/sqrt(mean(x²) + ε)`, row by row.
///
/// # Panics
/// When shapes contradict each other.
pub fn rms_norm_backward(arena: &mut Arena, epsilon: f64, items: &[RmsNormGradient]) {
    for RmsNormGradient { x, dy, dx, .. } in items {
        let shape = (x.rows, x.cols);
        assert!(shape == (dy.rows, dy.cols) && shape == (dx.rows, dx.cols), "gradients of one shape");
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, epsilon, item));
    }
    let mut table = Table::new(11);
    for RmsNormGradient { x, weight, dy, dx, result } in items {
        let (epsilon, add) = (float_word(epsilon as f32), usize::from(*result == Added::Add));
        let words =
            [x.at, x.stride, dy.at, dy.stride, dx.at, dx.stride, x.rows, x.cols, *weight, epsilon, add];
        table.push(x.rows.div_ceil(ROWS), &words);
    }
    arena.queue(&RMS_NORM_BACKWARD, table);
}

fn on_host(memory: Memory, epsilon: f64, item: &RmsNormGradient) {
    let n = item.x.cols;
    (0..item.x.rows).into_par_iter().for_each(|i| {
        // SAFETY: x and w are read only; row i of dx is written here alone, each number after that of dy was read.
        unsafe {
            let (x, weight) = (memory.row(item.x, i), memory.row(View::vector(item.weight, n), 0));
            let dy = memory.pointer(item.dy.part((i, 0), (1, n)));
            let dx = memory.pointer(item.dx.part((i, 0), (1, n)));
            let square: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
            let dot: f64 = (0..n).map(|k| f64::from(*dy.add(k) * weight[k]) * f64::from(x[k])).sum();
            let scale = 1.0 / (square / n as f64 + epsilon).sqrt();
            let along = (scale.powi(3) * dot / n as f64) as f32;
            for k in 0..n {
                let value = scale as f32 * weight[k] * *dy.add(k) - along * x[k];
                *dx.add(k) = if item.result == Added::Add { *dx.add(k) + value } else { value };
            }
        }
    });
}
