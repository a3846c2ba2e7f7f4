use crate::ops::draw::{draw, draw_weighted};
use crate::ops::exp::exp;
use crate::ops::log_softmax::argmax;
use crate::ops::splitmix::SplitMix64;

/// How the next token is drawn from logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleParams {
    /// Logits are divided by it; 0 takes the most likely token.
    pub temperature: f32,
    /// Only the most likely tokens that together have this probability are drawn from (Holtzman et al. 2020); 1 keeps all.
    pub top_p: f32,
    /// Start of the random numbers: the same seed gives the same text.
    pub seed: u64,
}

impl Default for SampleParams {
    fn default() -> Self {
        Self { temperature: 0.0, top_p: 1.0, seed: 0 }
    }
}

/// Why parameters make no distribution.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    #[error("the temperature is {0}: give a finite number of at least 0 (0 takes the most likely token)")]
    Temperature(f32),
    #[error("top-p is {0}: give a number above 0 and at most 1 (1 keeps every token)")]
    TopP(f32),
}

/// Draws tokens; its random numbers are part of its state.
#[derive(Clone, Debug)]
pub struct Sampler {
    temperature: f32,
    top_p: f32,
    random: SplitMix64,
}

impl Sampler {
    /// Checks the parameters and seeds the draws.
    pub fn new(params: SampleParams) -> Result<Self, SampleError> {
        let SampleParams { temperature, top_p, seed } = params;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(SampleError::Temperature(temperature));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(SampleError::TopP(top_p));
        }
        Ok(Self { temperature, top_p, random: SplitMix64::new(seed) })
    }

    /// The next token for finite `logits`.
    ///
    /// # Panics
    /// When there are no logits.
    pub fn next(&mut self, logits: &[f32]) -> u32 {
        if let Some([temperature, u]) = self.next_plain() {
            return draw(logits, temperature, u) as u32;
        }
        let best = argmax(logits);
        let weight = |z: &f32| exp((z - logits[best]) / self.temperature);
        let mut candidates: Vec<(usize, f32)> = logits.iter().map(weight).enumerate().collect();
        keep_nucleus(&mut candidates, self.top_p);
        let u = self.random.uniform_f32();
        draw_weighted(candidates.into_iter(), u).unwrap_or(best) as u32
    }

    /// What the next [`draw`] takes beside the logits, temperature and u, for a device that has those: the same stream of
    /// numbers as [`next`](Self::next). `None` where unlikely tokens are dropped first, which only `next` does.
    pub fn next_plain(&mut self) -> Option<[f32; 2]> {
        match (self.temperature > 0.0, self.top_p < 1.0) {
            (false, _) => Some([0.0; 2]),
            (true, false) => Some([self.temperature, self.random.uniform_f32()]),
            (true, true) => None,
        }
    }
}

/// Keeps the fewest most likely candidates whose weights reach `top_p` of the total; ties in token order.
fn keep_nucleus(candidates: &mut Vec<(usize, f32)>, top_p: f32) {
    let total: f64 = candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
    // All candidates below this together weigh less than what may be missing: few are left to be sorted.
    let least = (1.0 - f64::from(top_p)) * total / candidates.len() as f64;
    candidates.retain(|(_, weight)| f64::from(*weight) >= least);
    candidates.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut sum = 0.0;
    let last = candidates.iter().position(|(_, weight)| {
        sum += f64::from(*weight);
        sum >= f64::from(top_p) * total
    });
    candidates.truncate(last.map_or(candidates.len(), |last| last + 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(params: SampleParams, logits: &[f32], draws: usize) -> Vec<usize> {
        let mut sampler = Sampler::new(params).unwrap();
        let mut counts = vec![0; logits.len()];
        (0..draws).for_each(|_| counts[sampler.next(logits) as usize] += 1);
        counts
    }

    #[test]
    fn draws_follow_the_distribution() {
        // Probabilities 1/7, 2/7, 4/7 at temperature 1; 1/21, 4/21, 16/21 at 0.5.
        let logits = [1f32.ln(), 2f32.ln(), 4f32.ln()];
        for (temperature, top_p, expected) in [
            (1.0, 1.0, [1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0]),
            (0.5, 1.0, [1.0 / 21.0, 4.0 / 21.0, 16.0 / 21.0]),
            (1.0, 0.8, [0.0, 1.0 / 3.0, 2.0 / 3.0]),
            (1.0, 0.5, [0.0, 0.0, 1.0]),
            (0.0, 1.0, [0.0, 0.0, 1.0]),
        ] {
            let counts = counts(SampleParams { temperature, top_p, seed: 3 }, &logits, 20_000);
            for (count, expected) in counts.iter().zip(expected) {
                let share = *count as f64 / 20_000.0;
                assert!(
                    (share - expected).abs() < 0.015,
                    "temperature {temperature}, top-p {top_p}: {counts:?}"
                );
            }
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_tokens() {
        let logits: Vec<f32> = (0..50).map(|k| (k as f32 * 0.7).sin()).collect();
        let params = SampleParams { temperature: 1.0, top_p: 0.9, seed: 11 };
        let draw = |params| {
            let mut sampler = Sampler::new(params).unwrap();
            (0..32).map(|_| sampler.next(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(draw(params), draw(params));
        assert_ne!(draw(params), draw(SampleParams { seed: 12, ..params }));
    }

    #[test]
    fn parameters_that_make_no_distribution_are_refused() {
        for temperature in [-0.1, f32::NAN, f32::INFINITY] {
            let params = SampleParams { temperature, ..Default::default() };
            assert!(matches!(Sampler::new(params), Err(SampleError::Temperature(_))));
        }
        for top_p in [0.0, -1.0, 1.1, f32::NAN] {
            let params = SampleParams { top_p, ..Default::default() };
            assert!(matches!(Sampler::new(params), Err(SampleError::TopP(_))));
        }
    }
}
