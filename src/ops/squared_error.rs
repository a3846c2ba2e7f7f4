use rayon::prelude::*;

use super::gemm::NONE;
use super::rms_norm::ROWS;
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

pub(super) static SQUARED_ERROR: Program =
    cuda_program!("squared_error", "squared_error", 256, [("ROWS", ROWS as u32)]);

/// The distance of y from a target, T x n each.
#[derive(Clone, Copy, Debug)]
pub struct SquaredError {
    /// Becomes `factor·diag(w)·(y − target)`.
    pub y: View,
    pub target: View,
    /// A vector of T numbers.
    pub out: usize,
    pub factor: f32,
    /// w, a vector of T numbers; 1 without.
    pub weights: Option<usize>,
}

/// `out_i = w_i·Σ_k (y_ik − target_ik)²`, and the gradient of `factor/2·Σ out` in the place of y.
///
/// # Panics
/// When shapes contradict each other.
pub fn squared_error(arena: &mut Arena, items: &[SquaredError]) {
    for SquaredError { y, target, .. } in items {
        assert_eq!((y.rows, y.cols), (target.rows, target.cols), "y and its target have one shape");
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(9);
    for SquaredError { y, target, out, factor, weights } in items {
        let (factor, weights) = (float_word(*factor), weights.unwrap_or(NONE));
        let words = [y.at, y.stride, target.at, target.stride, y.rows, y.cols, *out, factor, weights];
        table.push(y.rows.div_ceil(ROWS), &words);
    }
    arena.queue(&SQUARED_ERROR, table);
}

fn on_host(memory: Memory, item: &SquaredError) {
    (0..item.y.rows).into_par_iter().for_each(|i| {
        // SAFETY: the target and its weights are read only; row i of y and number i of the result are written here alone.
        unsafe {
            let (y, target) = (memory.row_mut(item.y, i), memory.row(item.target, i));
            let weight = item.weights.map_or(1.0, |at| *memory.pointer(View::vector(at + i, 1)));
            let mut sum = 0.0;
            for (y, target) in y.iter_mut().zip(target) {
                let apart = *y - target;
                sum += apart * apart;
                *y = item.factor * weight * apart;
            }
            *memory.pointer(View::vector(item.out + i, 1)) = weight * sum;
        }
    });
}
