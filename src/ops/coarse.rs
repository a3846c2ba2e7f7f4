//! A distribution seen coarsely: its likeliest tokens one by one, all others as one.

use super::log_softmax::log_sum_exp;

/// The head K of a distribution p over tokens, and the mass of the rest R.
///
/// | symbol | field | meaning |
/// |---|---|---|
/// | K | `tokens` | the likeliest tokens, likeliest first, the first of equals first |
/// | log p_i | `log_p` | their log-probabilities, nats |
/// | log P_R | `log_rest` | log of `Σ_{i∉K} p_i`; −∞ where K is everything |
#[derive(Clone, Debug, PartialEq)]
pub struct Coarse {
    pub tokens: Vec<u32>,
    pub log_p: Vec<f32>,
    pub log_rest: f32,
}

impl Coarse {
    /// The head of `count` tokens of a row of logits; fewer where the row is shorter.
    pub fn of(logits: &[f32], count: usize) -> Self {
        let count = count.min(logits.len());
        let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
        let likelier = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if count < tokens.len() {
            tokens.select_nth_unstable_by(count, likelier);
            tokens.truncate(count);
        }
        tokens.sort_unstable_by(likelier);
        let (total, log_rest) = masses(logits, &tokens);
        let log_p = tokens.iter().map(|token| (f64::from(logits[*token as usize]) - total) as f32).collect();
        Self { tokens, log_p, log_rest: log_rest as f32 }
    }

    /// `Σ_{i∈K} p_i (log p_i − log q_i) + P_R (log P_R − log Q_R)` for the q of a row of logits, in nats; never below 0, and
    /// NaN where a logit is.
    ///
    /// It is the divergence of the two distributions in which all of R is one token, and so a lower bound of `KL(p ‖ q)`
    /// (log sum inequality: Cover & Thomas, Elements of Information Theory, theorem 2.7.1). What is missing is
    /// `P_R KL(p(·|R) ‖ q(·|R))`.
    ///
    /// # Panics
    /// When a token of the head is not below the number of logits.
    pub fn divergence(&self, logits: &[f32]) -> f64 {
        let (total, log_rest) = masses(logits, &self.tokens);
        let head = self.tokens.iter().zip(&self.log_p).map(|(token, log_p)| {
            let (log_p, log_q) = (f64::from(*log_p), f64::from(logits[*token as usize]) - total);
            log_p.exp() * (log_p - log_q)
        });
        let log_p_rest = f64::from(self.log_rest);
        let rest = match log_p_rest == f64::NEG_INFINITY {
            true => 0.0,
            false => log_p_rest.exp() * (log_p_rest - log_rest),
        };
        let sum = head.sum::<f64>() + rest;
        // Rounding may leave a little less than nothing; a NaN stays one.
        if sum < 0.0 { 0.0 } else { sum }
    }
}

/// `log Σ_i e^{z_i}`, and the logarithm of the mass of what is not in `head`, which is summed by itself: the difference of
/// two nearly equal masses would lose it.
fn masses(logits: &[f32], head: &[u32]) -> (f64, f64) {
    let total = log_sum_exp(logits);
    if head.len() == logits.len() {
        return (total, f64::NEG_INFINITY);
    }
    let mut rest = logits.to_vec();
    for token in head {
        rest[*token as usize] = f32::NEG_INFINITY;
    }
    (total, log_sum_exp(&rest) - total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::log_softmax::{argmax, divergence};

    fn rows() -> (Vec<f32>, Vec<f32>) {
        let p = (0..1237).map(|k| ((k * 37) % 101) as f32 * 0.13 - 4.0).collect();
        let q = (0..1237).map(|k| ((k * 53) % 97) as f32 * 0.11 - 9.0).collect();
        (p, q)
    }

    #[test]
    fn the_head_is_what_is_likeliest_and_masses_sum_to_one() {
        let (p, _) = rows();
        for count in [1, 256, 1236] {
            let coarse = Coarse::of(&p, count);
            assert_eq!((coarse.tokens.len(), coarse.tokens[0] as usize), (count, argmax(&p)));
            assert!(coarse.log_p.is_sorted_by(|a, b| a >= b));
            let mass = coarse.log_p.iter().map(|p| f64::from(*p).exp()).sum::<f64>();
            assert!((mass + f64::from(coarse.log_rest).exp() - 1.0).abs() < 1e-6);
        }
        assert_eq!(Coarse::of(&p, 5000).log_rest, f32::NEG_INFINITY);
    }

    #[test]
    fn what_the_bound_misses_is_the_divergence_within_the_rest() {
        let (p, q) = rows();
        let full = divergence(&p, &q);
        let mut last = 0.0;
        for count in [1, 16, 256, 1000, 1237] {
            let coarse = Coarse::of(&p, count);
            let bound = coarse.divergence(&q);
            let rest: Vec<usize> = (0..p.len()).filter(|k| !coarse.tokens.contains(&(*k as u32))).collect();
            let [p_rest, q_rest] = [&p, &q].map(|z| rest.iter().map(|k| z[*k]).collect::<Vec<_>>());
            let missing = match rest.as_slice() {
                [] => 0.0,
                _ => f64::from(coarse.log_rest).exp() * divergence(&p_rest, &q_rest),
            };
            assert!((bound + missing - full).abs() < 1e-5 * full, "{count}: {bound} + {missing}, {full}");
            assert!(bound >= last, "more tokens, a better bound");
            last = bound;
        }
        assert!(Coarse::of(&p, 256).divergence(&p) < 1e-6);
    }

    #[test]
    fn a_logit_that_is_no_number_shows() {
        let (p, mut q) = rows();
        let coarse = Coarse::of(&p, 256);
        q[5] = f32::NAN;
        assert!(coarse.divergence(&q).is_nan() && Coarse::of(&q, 256).log_p.iter().any(|p| p.is_nan()));
    }
}
