use rayon::prelude::*;
use serde::Serialize;

use super::kl_base::{KlBase, KlBaseError, Prediction};
use super::predictor::Predictor;
use crate::device::Device;
use crate::model::on_device::{ForwardError, LOGIT_ROWS};
use crate::model::text::Windows;
use crate::model::{Decoder, DecoderError};
use crate::ops::log_softmax::{argmax, divergence, log_probability};

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
    /// Window by window, in the order of the text.
    pub per_window: Vec<WindowScores>,
}

/// Scores of one window, as those of all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowScores {
    pub perplexity: f64,
    pub nll: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_kl: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top1_agreement: Option<f64>,
}

/// What a model is compared with.
#[derive(Clone, Copy)]
pub enum Original<'a> {
    Loaded(&'a Decoder),
    /// Its predictions on the same windows.
    Stored(&'a KlBase),
}

/// What a divergence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KlKind {
    /// KL over the whole vocabulary.
    Exact,
    /// A lower bound: tokens outside of the original's likeliest count as one
    /// ([`Coarse::divergence`](crate::ops::coarse::Coarse::divergence)).
    LowerBound,
}

/// How far the model's distributions are from the original's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Divergence {
    pub kl_kind: KlKind,
    /// Mean and 99th percentile (nearest rank) of KL(original ‖ model), nats.
    pub mean_kl: f64,
    pub p99_kl: f64,
    /// Share of positions where both find the same token most likely.
    pub top1_agreement: f64,
    /// Perplexity of the original.
    pub original_perplexity: f64,
}

/// Why scores could not be computed.
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
    #[error(transparent)]
    Forward(Box<ForwardError>),
    #[error(transparent)]
    KlBase(#[from] KlBaseError),
    #[error(
        "the mean negative log-likelihood is {nll:.0} nats, a perplexity beyond any number: the model computes nonsense"
    )]
    Overflow { nll: f64 },
}

impl From<ForwardError> for EvalError {
    fn from(error: ForwardError) -> Self {
        Self::Forward(Box::new(error))
    }
}

impl EvalError {
    /// The same, found in this window.
    pub(super) fn in_window(self, index: usize) -> Self {
        match self {
            Self::NotFinite { model, .. } => Self::NotFinite { model, window: index },
            other => other,
        }
    }
}

/// Scores `model` on every window; with `original`, also how far it is from that.
///
/// In a window every position but the first is scored: positions 2..T, or with a start token all T tokens of text.
/// `done` is called after each window. Memory: one window's residual stream and 128 rows of logits a model.
pub fn evaluate(
    model: &Decoder,
    original: Option<Original>,
    windows: &Windows,
    done: &dyn Fn(&Scores),
) -> Result<Scores, EvalError> {
    evaluate_on(&Device::Host, model, original, windows, done)
}

/// The same with the models on a device: blocks pass by the residual streams of all windows, which stay there with one
/// block and the head; log-probabilities come back, or logits to be compared with an original's on the host.
pub fn evaluate_on(
    device: &Device,
    model: &Decoder,
    original: Option<Original>,
    windows: &Windows,
    done: &dyn Fn(&Scores),
) -> Result<Scores, EvalError> {
    let vocab = model.config().vocab;
    let other = match original {
        Some(Original::Loaded(original)) => original.config().vocab,
        Some(Original::Stored(base)) => base.info.vocab,
        None => vocab,
    };
    if vocab != other {
        return Err(EvalError::Vocabulary { model: vocab, original: other });
    }
    let mut tally = Tally::default();
    let mut scores = tally.scores(windows);
    let mut model = Predictor::open(device, model, windows)?;
    let mut beside = match original {
        Some(Original::Loaded(original)) => Some(Predictor::open(device, original, windows)?),
        _ => None,
    };
    for index in 0..windows.count() {
        let tokens = windows.window(index);
        model.enter(windows, index)?;
        beside.as_mut().map_or(Ok(()), |original| original.enter(windows, index))?;
        let stored = match original {
            Some(Original::Stored(base)) => Some(base.window(index)?),
            _ => None,
        };
        for start in (0..tokens.len() - 1).step_by(LOGIT_ROWS) {
            let part = start..(start + LOGIT_ROWS).min(tokens.len() - 1);
            let next = &tokens[part.start + 1..=part.end];
            let reference = match (&mut beside, &stored) {
                (Some(original), _) => Reference::Logits(original.logits(part.clone())?),
                (None, Some(stored)) => Reference::Stored(&stored[part.clone()]),
                (None, None) => {
                    tally.add_alone(&model.log_probabilities(part.start, next)?);
                    continue;
                }
            };
            tally.add(&model.logits(part)?, &reference, next);
        }
        tally.end_window();
        scores = tally.scores(windows);
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

/// What is known of the original at some positions.
enum Reference<'a> {
    Logits(Vec<f32>),
    Stored(&'a [Prediction]),
}

/// Sums over positions, in the order of the text.
#[derive(Default)]
struct Tally {
    nll: f64,
    original_nll: f64,
    scored: usize,
    agree: usize,
    kl: Vec<f64>,
    kl_kind: Option<KlKind>,
    windows: Vec<WindowScores>,
    /// What the sums were before the window that is being added.
    before: Before,
}

#[derive(Clone, Copy, Default)]
struct Before {
    nll: f64,
    scored: usize,
    agree: usize,
    kl: usize,
}

/// One position: log-probabilities of what came, the model's and the original's, the divergence, whether both agree.
type Position = (f64, f64, f64, bool);

impl Tally {
    /// Adds some positions of a window.
    fn add(&mut self, logits: &[f32], reference: &Reference, targets: &[u32]) {
        let vocab = logits.len() / targets.len();
        let position = |(row, target): (usize, &u32)| -> Position {
            let (own, target) = (&logits[row * vocab..][..vocab], *target as usize);
            let likely = log_probability(own, target);
            match reference {
                Reference::Logits(original) => {
                    let original = &original[row * vocab..][..vocab];
                    let agree = argmax(own) == argmax(original);
                    (likely, log_probability(original, target), divergence(original, own), agree)
                }
                Reference::Stored(predictions) => {
                    let Prediction { coarse, next } = &predictions[row];
                    let agree = coarse.tokens.first() == Some(&(argmax(own) as u32));
                    (likely, f64::from(*next), coarse.divergence(own), agree)
                }
            }
        };
        self.kl_kind = match reference {
            Reference::Logits(_) => Some(KlKind::Exact),
            Reference::Stored(_) => Some(KlKind::LowerBound),
        };
        let positions: Vec<Position> = targets.par_iter().enumerate().map(position).collect();
        for (own, original, kl, agree) in positions {
            self.add_alone(&[own]);
            self.original_nll -= original;
            self.kl.push(kl);
            self.agree += usize::from(agree);
        }
    }

    /// Adds positions of a model without an original: log-probabilities of what came.
    fn add_alone(&mut self, log_probabilities: &[f64]) {
        log_probabilities.iter().for_each(|own| self.nll -= own);
        self.scored += log_probabilities.len();
    }

    fn end_window(&mut self) {
        let before = self.before;
        let scored = (self.scored - before.scored) as f64;
        let nll = (self.nll - before.nll) / scored;
        let compared = self.kl_kind.is_some();
        self.windows.push(WindowScores {
            perplexity: nll.exp(),
            nll,
            mean_kl: compared.then(|| self.kl[before.kl..].iter().sum::<f64>() / scored),
            top1_agreement: compared.then(|| (self.agree - before.agree) as f64 / scored),
        });
        self.before = Before { nll: self.nll, scored: self.scored, agree: self.agree, kl: self.kl.len() };
    }

    /// Whose sums are no numbers.
    fn not_finite(&self) -> Option<&'static str> {
        if !self.nll.is_finite() {
            return Some("the model");
        }
        let original = self.original_nll.is_finite() && self.kl.iter().all(|kl| kl.is_finite());
        (!original).then_some("the original")
    }

    fn scores(&self, windows: &Windows) -> Scores {
        let scored = self.scored as f64;
        let nll = self.nll / scored;
        Scores {
            perplexity: nll.exp(),
            nll,
            windows: self.windows.len(),
            window: windows.len,
            scored: self.scored,
            divergence: self.kl_kind.map(|kl_kind| Divergence {
                kl_kind,
                mean_kl: self.kl.iter().sum::<f64>() / scored,
                p99_kl: percentile_99(&self.kl),
                top1_agreement: self.agree as f64 / scored,
                original_perplexity: (self.original_nll / scored).exp(),
            }),
            per_window: self.windows.clone(),
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
