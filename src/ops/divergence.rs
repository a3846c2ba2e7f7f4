use rayon::prelude::*;

use super::exp::exp;
use super::log_softmax::{self, log_sum_exp};
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

pub(super) static DIVERGENCE: Program = cuda_program!("divergence", "divergence", 256, []);

/// Rows of logits and of those that they should be, T x vocabulary each.
#[derive(Clone, Copy, Debug)]
pub struct Divergence {
    /// Becomes `factor·(softmax(logits) − softmax(target))`.
    pub logits: View,
    pub target: View,
    /// A vector of T numbers.
    pub out: usize,
    pub factor: f32,
}

/// `out_i = KL(softmax(target_i) ‖ softmax(logits_i))` in nats, and the gradient of `factor·Σ out` in the place of the
/// logits.
///
/// # Panics
/// When shapes contradict each other.
pub fn divergence(arena: &mut Arena, items: &[Divergence]) {
    for Divergence { logits, target, .. } in items {
        assert_eq!((logits.rows, logits.cols), (target.rows, target.cols), "logits over one vocabulary");
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(8);
    for Divergence { logits, target, out, factor } in items {
        let factor = float_word(*factor);
        let words =
            [logits.at, logits.stride, target.at, target.stride, logits.rows, logits.cols, *out, factor];
        table.push(logits.rows, &words);
    }
    arena.queue(&DIVERGENCE, table);
}

fn on_host(memory: Memory, item: &Divergence) {
    (0..item.logits.rows).into_par_iter().for_each(|i| {
        // SAFETY: the target is read only; row i of the logits and number i of the result are written here alone.
        unsafe {
            let (logits, target) = (memory.row_mut(item.logits, i), memory.row(item.target, i));
            *memory.pointer(View::vector(item.out + i, 1)) = log_softmax::divergence(target, logits) as f32;
            let [q, p] = [&*logits, target].map(|z| log_sum_exp(z) as f32);
            for (z, t) in logits.iter_mut().zip(target) {
                *z = item.factor * (exp(*z - q) - exp(*t - p));
            }
        }
    });
}
