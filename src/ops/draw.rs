use rayon::prelude::*;

use super::exp::exp;
use super::log_softmax::argmax;
use crate::device::arena::{Arena, Memory, Program, Table, View};

/// Segments of a row that the kernels sum side by side, at least: the program's threads.
const SEGMENTS: usize = 256;

pub(super) static DRAW: Program = program!("draw", "draw", 256, [("CUDA_THREADS", 1024)]);

/// How far a device's draw may be off, as a share of the total weight of n logits: a token comes where u lies within
/// this of the stretch of `[0, 1)` that its probability takes in exact arithmetic. With ε = 2⁻²⁴:
///
/// - a segment is summed in order, twice, and eight levels of a tree add segments: `2·(n/256 + 16)·ε`;
/// - a weight `e^−x` is off by `(5.5 + 5.5·x)·2ε` at most, what WGSL allows its division and exponential and what the
///   host's own take; the mean of x over the weights is at most `ln n`, and a share is a quotient of two such sums.
pub fn draw_tolerance(n: usize) -> f64 {
    let sums = 2.0 * (n.div_ceil(SEGMENTS) as f64 + 16.0);
    let weights = 22.0 * (1.0 + (n as f64).ln());
    (sums + weights) * f64::from(f32::EPSILON) / 2.0
}

/// The token that a number u in `[0, 1)` draws from finite logits z at temperature T: with `w_i = e^((z_i − max z)/T)`,
/// the first i with `w_0 + … + w_i > u·Σ_j w_j`. At T = 0 the first of the largest. Weights are f32, sums f64.
///
/// # Panics
/// When there are no logits.
pub fn draw(logits: &[f32], temperature: f32, u: f32) -> usize {
    let best = argmax(logits);
    if temperature == 0.0 {
        return best;
    }
    // Weights are computed twice and never stored: many draws side by side would fight for memory.
    let weight = |z: &f32| exp((z - logits[best]) / temperature);
    draw_weighted(logits.iter().map(weight).enumerate(), u).unwrap_or(best)
}

/// The same from candidates and their weights; `None` where rounding leaves nothing at the end.
pub fn draw_weighted(candidates: impl Iterator<Item = (usize, f32)> + Clone, u: f32) -> Option<usize> {
    let total: f64 = candidates.clone().map(|(_, weight)| f64::from(weight)).sum();
    let mut left = f64::from(u) * total;
    let mut passed = candidates.map(|(token, weight)| {
        left -= f64::from(weight);
        (token, left)
    });
    passed.find(|(_, left)| *left < 0.0).map(|(token, _)| token)
}

/// One draw a row of logits.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// N x vocabulary, at least one column
    pub logits: View,
    /// N temperatures
    pub temperatures: usize,
    /// N numbers in `[0, 1)`
    pub uniforms: usize,
    /// N tokens, stored as numbers (exact below 2²⁴)
    pub tokens: usize,
}

/// Draws a token for every row of all items; see [`draw`], and [`draw_tolerance`] for how near to it. A row's token does
/// not depend on the others. Where a logit is not finite the token has no meaning. Cost: two passes over the memory.
///
/// # Panics
/// When there are no logits.
pub fn draw_batch(arena: &mut Arena, items: &[Draw]) {
    assert!(items.iter().all(|item| item.logits.cols > 0), "logits to draw from");
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(7);
    for Draw { logits, temperatures, uniforms, tokens } in items {
        let words = [logits.at, logits.stride, logits.rows, logits.cols, *temperatures, *uniforms, *tokens];
        table.push(logits.rows, &words);
    }
    arena.queue(&DRAW, table);
}

fn on_host(memory: Memory, item: &Draw) {
    (0..item.logits.rows).into_par_iter().for_each(|i| {
        let number = |at: usize| memory.pointer(View::vector(at + i, 1));
        // SAFETY: logits, temperatures and numbers are read only; token i is written here alone.
        unsafe {
            let token = draw(memory.row(item.logits, i), *number(item.temperatures), *number(item.uniforms));
            *number(item.tokens) = token as f32;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_draws_the_token_whose_stretch_it_lies_in() {
        // Weights 1/4, 1/2, 1 at temperature 1: stretches end at 1/7, 3/7 and 1.
        let logits = [0.25f32.ln(), 0.5f32.ln(), 0.0];
        for (u, token) in
            [(0.0, 0), (0.14, 0), (0.15, 1), (0.42, 1), (0.43, 2), (1.0 - f32::EPSILON / 2.0, 2)]
        {
            assert_eq!(draw(&logits, 1.0, u), token, "{u}");
        }
        // At temperature 1/2 they are 1/16, 1/4 and 1: 1/21 and 5/21.
        assert_eq!([0.04, 0.05, 0.23, 0.24].map(|u| draw(&logits, 0.5, u)), [0, 1, 1, 2]);
    }

    #[test]
    fn without_temperature_the_first_of_the_largest_comes() {
        assert_eq!(draw(&[0.0, 3.0, -1.0, 3.0], 0.0, 0.9), 1);
    }

    #[test]
    fn tokens_without_weight_never_come() {
        let logits = [-200.0, -200.0, 0.0, 0.0, -200.0];
        assert_eq!([0.0, 0.49, 0.51].map(|u| draw(&logits, 1.0, u)), [2, 2, 3]);
        assert_eq!(draw(&logits, 1.0, 1.0 - f32::EPSILON / 2.0), 3);
    }
}
