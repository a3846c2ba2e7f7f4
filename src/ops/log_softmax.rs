//! Statistics of rows of logits: `log p_i = z_i − log Σ_j e^{z_j}`.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::exp::exp;
use crate::device::arena::{Arena, Memory, Program, Table, View};

/// Terms added in f32 before they join the f64 sum.
const CHUNK: usize = 512;
const LANES: usize = 16;

/// Largest error of a device's log-probability, in nats, for up to 2¹⁸ logits within 87 of the largest: a thread adds
/// 1,024 terms in order and eight levels of a tree their sums, 1,032·2⁻²⁴; WGSL's exponentials take 1e-5 in the mean,
/// and differences of up to 87 are rounded twice.
pub const LOG_PROBABILITY_TOLERANCE: f64 = 1e-4;

pub(super) static LOG_PROBABILITY: Program =
    program!("log_softmax", "log_probability", 256, [("CUDA_THREADS", 1024)]);

/// `log Σ_j e^{z_j}`, in nats. Terms are f32 ([`super::exp::EXP_TOLERANCE`]), their sum is f64.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let term = |z: f32, _: f32| exp(z - largest);
    let sum = pulp::Arch::new().dispatch(Terms { a: logits, b: logits, term });
    f64::from(largest) + sum.ln()
}

/// `log p(target)`, in nats.
///
/// # Panics
/// When `target` is not below the number of logits.
pub fn log_probability(logits: &[f32], target: usize) -> f64 {
    f64::from(logits[target]) - log_sum_exp(logits)
}

/// A log-probability for each of some rows.
#[derive(Clone, Copy, Debug)]
pub struct LogProbability {
    /// N x vocabulary
    pub logits: View,
    /// N tokens, stored as numbers (exact below 2²⁴)
    pub targets: usize,
    /// N results, in nats
    pub out: usize,
}

/// [`log_probability`] of every row of all items of an arena; within [`LOG_PROBABILITY_TOLERANCE`] on a device, NaN where
/// a logit is NaN or +∞. Cost: two passes over the memory.
pub fn log_probability_batch(arena: &mut Arena, items: &[LogProbability]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(6);
    for LogProbability { logits, targets, out } in items {
        table.push(logits.rows, &[logits.at, logits.stride, logits.rows, logits.cols, *targets, *out]);
    }
    arena.queue(&LOG_PROBABILITY, table);
}

fn on_host(memory: Memory, item: &LogProbability) {
    (0..item.logits.rows).into_par_iter().for_each(|i| {
        let number = |at: usize| memory.pointer(View::vector(at + i, 1));
        // SAFETY: logits and targets are read only; result i is written here alone.
        unsafe {
            let target = *number(item.targets) as usize;
            *number(item.out) = log_probability(memory.row(item.logits, i), target) as f32;
        }
    });
}

/// Kullback-Leibler divergence `KL(p ‖ q) = Σ_i p_i (log p_i − log q_i)` of two rows of logits, in nats; never below 0,
/// and NaN where a logit is.
pub fn divergence(p: &[f32], q: &[f32]) -> f64 {
    assert_eq!(p.len(), q.len(), "two rows over one vocabulary");
    let (p_total, q_total) = (log_sum_exp(p), log_sum_exp(q));
    let (p_shift, difference) = (p_total as f32, (q_total - p_total) as f32);
    let term = |p: f32, q: f32| exp(p - p_shift) * ((p - q) + difference);
    let sum = pulp::Arch::new().dispatch(Terms { a: p, b: q, term });
    // Rounding may leave a little less than nothing; a NaN stays one.
    if sum < 0.0 { 0.0 } else { sum }
}

/// The position of the largest logit; the first of equals.
pub fn argmax(logits: &[f32]) -> usize {
    let start = (0, f32::NEG_INFINITY);
    let larger = |best: (usize, f32), (at, z): (usize, &f32)| if *z > best.1 { (at, *z) } else { best };
    logits.iter().enumerate().fold(start, larger).0
}

/// `Σ_i term(a_i, b_i)` in a fixed order: lanes of f32 within a chunk, chunks in f64.
/// A struct and not a closure, so that the loop is surely compiled for the CPU's vectors.
struct Terms<'a, F> {
    a: &'a [f32],
    b: &'a [f32],
    term: F,
}

impl<F: Fn(f32, f32) -> f32> WithSimd for Terms<'_, F> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let Self { a, b, term } = self;
        let mut sum = 0.0;
        for (a, b) in a.chunks(CHUNK).zip(b.chunks(CHUNK)) {
            let mut lanes = [0.0f32; LANES];
            let (a, a_rest) = a.as_chunks::<LANES>();
            let (b, b_rest) = b.as_chunks::<LANES>();
            for (a, b) in a.iter().zip(b) {
                for k in 0..LANES {
                    lanes[k] += term(a[k], b[k]);
                }
            }
            for (lane, (a, b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
                *lane += term(*a, *b);
            }
            sum += lanes.iter().map(|v| f64::from(*v)).sum::<f64>();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> (Vec<f32>, Vec<f32>) {
        let p = (0..1237).map(|k| ((k * 37) % 101) as f32 * 0.13 - 4.0).collect();
        let q = (0..1237).map(|k| ((k * 53) % 97) as f32 * 0.11 - 90.0).collect();
        (p, q)
    }

    fn exact_log_probabilities(z: &[f32]) -> Vec<f64> {
        let total = z.iter().map(|z| f64::from(*z).exp()).sum::<f64>().ln();
        z.iter().map(|z| f64::from(*z) - total).collect()
    }

    #[test]
    fn statistics_equal_their_formulas_in_f64() {
        let (p, q) = rows();
        let (log_p, log_q) = (exact_log_probabilities(&p), exact_log_probabilities(&q));
        assert!((log_probability(&p, 17) - log_p[17]).abs() < 1e-6);
        assert!((log_probability(&q, 17) - log_q[17]).abs() < 1e-6);
        let exact: f64 = log_p.iter().zip(&log_q).map(|(p, q)| p.exp() * (p - q)).sum();
        let ours = divergence(&p, &q);
        assert!((ours - exact).abs() < 1e-5 * exact, "{ours} against {exact}");
        assert!(divergence(&p, &p) < 1e-6);
    }

    #[test]
    fn the_first_of_equal_logits_wins() {
        assert_eq!(argmax(&[0.0, 2.0, -1.0, 2.0]), 1);
    }

    #[test]
    fn a_logit_that_is_no_number_is_not_taken_for_agreement() {
        let (p, mut q) = rows();
        q[5] = f32::NAN;
        assert!(divergence(&p, &q).is_nan() && divergence(&q, &p).is_nan());
    }
}
