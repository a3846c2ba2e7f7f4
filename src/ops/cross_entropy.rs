use rayon::prelude::*;

use super::exp::exp;
use super::log_softmax::log_sum_exp;
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

pub(super) static CROSS_ENTROPY: Program = cuda_program!("cross_entropy", "cross_entropy", 256, []);

/// In the place of a token: a row that has none.
pub const NO_TOKEN: f32 = -1.0;

/// Rows of logits, T x vocabulary, and the token of each that came.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy {
    /// Becomes `factor·(softmax(logits) − e_token)`; zero where there is no token.
    pub logits: View,
    /// T tokens, stored as numbers (exact below 2²⁴), or [`NO_TOKEN`].
    pub tokens: usize,
    /// A vector of T numbers.
    pub out: usize,
    pub factor: f32,
}

/// `out_i = −log softmax(logits_i)[token_i]` in nats, 0 without a token, and the gradient of `factor·Σ out` in the place
/// of the logits.
pub fn cross_entropy(arena: &mut Arena, items: &[CrossEntropy]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(7);
    for CrossEntropy { logits, tokens, out, factor } in items {
        let words = [logits.at, logits.stride, logits.rows, logits.cols, *tokens, *out, float_word(*factor)];
        table.push(logits.rows, &words);
    }
    arena.queue(&CROSS_ENTROPY, table);
}

fn on_host(memory: Memory, item: &CrossEntropy) {
    (0..item.logits.rows).into_par_iter().for_each(|i| {
        // SAFETY: tokens are read only; row i of the logits and number i of the result are written here alone.
        unsafe {
            let logits = memory.row_mut(item.logits, i);
            let token = *memory.pointer(View::vector(item.tokens + i, 1));
            let out = memory.pointer(View::vector(item.out + i, 1));
            if token < 0.0 {
                logits.fill(0.0);
                *out = 0.0;
                return;
            }
            let total = log_sum_exp(logits);
            *out = (total - f64::from(logits[token as usize])) as f32;
            for z in logits.iter_mut() {
                *z = item.factor * exp(*z - total as f32);
            }
            logits[token as usize] -= item.factor;
        }
    });
}
