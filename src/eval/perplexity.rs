use rayon::prelude::*;
use serde::Serialize;

use crate::model::text::Windows;
use crate::model::{Decoder, DecoderError, NoCapture, Run};
use crate::ops::log_softmax::{argmax, divergence, log_probability};

/// Positions whose logits are alive at once: 50 MB for a vocabulary of 49,152.
const LOGIT_ROWS: usize = 256;

/// Scores of a model on the windows of a text. Logarithms are natural.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scores {
    /// exp of the mean negative log-likelihood.
    pub perplexity: f64,
    /// Mean negative log-likelihood, nats a token.
    pub nll: f64,
    pub windows: usize,
    pub window: usize,
    /// Positions that were scored.
    pub scored: usize,
    /// Against the original model on the same positions.
    #[serde(flatten)]
    pub divergence: Option<Divergence>,
}

/// How far the model's distributions are from the original's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// Mean and 99th percentile (nearest rank) of KL(original ‖ model), nats.
    pub mean_kl: f64,
    pub p99_kl: f64,
    /// Share of positions where both find the same token most likely.
    pub top1_agreement: f64,
    /// Perplexity of the original.
    pub original_perplexity: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    #[error(
        "the two models have vocabularies of {model} and {original} tokens: only models with one tokenizer compare"
    )]
    Vocabulary { model: usize, original: usize },
    #[error("the output of {model} is not finite in window {window}: look for NaN or overflowing weights")]
    NotFinite { model: &'static str, window: usize },
    #[error(
        "the mean negative log-likelihood is {nll:.0} nats, a perplexity beyond any number: the model computes nonsense"
    )]
    Overflow { nll: f64 },
}

/// Scores `model` on every window; with `original`, also how far it is from that.
///
/// In a window every position but the first is scored: positions 2..T, or with a start token all T tokens of text.
/// `done` is called after each window. Memory: one window's residual stream and 256 rows of logits a model.
pub fn evaluate(
    model: &Decoder,
    original: Option<&Decoder>,
    windows: &Windows,
    done: &dyn Fn(&Scores),
) -> Result<Scores, EvalError> {
    if let Some(original) = original {
        let (model, original) = (model.config().vocab, original.config().vocab);
        if model != original {
            return Err(EvalError::Vocabulary { model, original });
        }
    }
    let mut tally = Tally::default();
    let mut scores = tally.scores(windows, 0);
    for index in 0..windows.count() {
        let tokens = windows.window(index);
        let run = || Run::Windows { len: tokens.len() };
        let own = model.hidden(tokens, run(), &mut NoCapture)?;
        let reference =
            original.map(|original| original.hidden(tokens, run(), &mut NoCapture)).transpose()?;
        for start in (0..tokens.len() - 1).step_by(LOGIT_ROWS) {
            let end = (start + LOGIT_ROWS).min(tokens.len() - 1);
            let rows = |hidden: &[f32], decoder: &Decoder| {
                let width = decoder.config().hidden;
                decoder.logits(&hidden[start * width..end * width])
            };
            let logits = rows(&own, model);
            let reference = original.zip(reference.as_ref()).map(|(original, hidden)| rows(hidden, original));
            tally.add(&logits, reference.as_deref(), &tokens[start + 1..=end]);
        }
        scores = tally.scores(windows, index + 1);
        if let Some(model) = tally.not_finite() {
            return Err(EvalError::NotFinite { model, window: index });
        }
        if !scores.perplexity.is_finite() {
            return Err(EvalError::Overflow { nll: scores.nll });
        }
        done(&scores);
    }
    Ok(scores)
}

/// Sums over positions, in the order of the text.
#[derive(Default)]
struct Tally {
    nll: f64,
    original_nll: f64,
    scored: usize,
    agree: usize,
    kl: Vec<f64>,
}

impl Tally {
    fn add(&mut self, logits: &[f32], reference: Option<&[f32]>, targets: &[u32]) {
        let vocab = logits.len() / targets.len();
        let position = |(row, target): (usize, &u32)| {
            let (own, target) = (&logits[row * vocab..][..vocab], *target as usize);
            let against = reference.map(|reference| {
                let original = &reference[row * vocab..][..vocab];
                let agree = argmax(own) == argmax(original);
                (log_probability(original, target), divergence(original, own), agree)
            });
            (log_probability(own, target), against)
        };
        let positions: Vec<_> = targets.par_iter().enumerate().map(position).collect();
        for (own, against) in positions {
            self.nll -= own;
            self.scored += 1;
            if let Some((original, kl, agree)) = against {
                self.original_nll -= original;
                self.kl.push(kl);
                self.agree += usize::from(agree);
            }
        }
    }

    /// Whose sums are no numbers.
    fn not_finite(&self) -> Option<&'static str> {
        if !self.nll.is_finite() {
            return Some("the model");
        }
        let original = self.original_nll.is_finite() && self.kl.iter().all(|kl| kl.is_finite());
        (!original).then_some("the original")
    }

    fn scores(&self, windows: &Windows, done: usize) -> Scores {
        let scored = self.scored as f64;
        let nll = self.nll / scored;
        Scores {
            perplexity: nll.exp(),
            nll,
            windows: done,
            window: windows.len,
            scored: self.scored,
            divergence: (!self.kl.is_empty()).then(|| Divergence {
                mean_kl: self.kl.iter().sum::<f64>() / scored,
                p99_kl: percentile_99(&self.kl),
                top1_agreement: self.agree as f64 / scored,
                original_perplexity: (self.original_nll / scored).exp(),
            }),
        }
    }
}

/// Nearest rank: the smallest value that at least 99 % of the values do not exceed.
fn percentile_99(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    let rank = (sorted.len() * 99).div_ceil(100) - 1;
    *sorted.select_nth_unstable_by(rank, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_the_nearest_rank() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile_99(&values), 198.0);
        assert_eq!(percentile_99(&[3.0]), 3.0);
    }
}
