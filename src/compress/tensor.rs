use faer::{Mat, MatRef};
use serde::{Deserialize, Serialize};

use super::context::Context;
use super::encode::{Fit, fit_paths};
use super::encoder::EncodedBy;
use super::latents::Spectrum;
use super::metric::{Judge, Problem};
use super::recipe::{PathChoice, Recipe};
use super::round::round_to_payload;
use crate::blr::payload::Payload;
use crate::blr::rank::{Budget, Clipped, Rank, rank_for};

/// What the layers that read one input share: the metric of the fit, and the Grams the result is judged by.
pub struct Input {
    /// The metric the encoder works in; the identity for a data-free recipe.
    pub context: Context,
    /// Fit and held-out Grams, n x n; `None` when no text was given.
    pub grams: Option<Grams>,
}

pub struct Grams {
    pub fit: Mat<f64>,
    pub heldout: Mat<f64>,
    /// Cross moment of the fit part with the same input in the original model, where that runs too.
    pub cross: Option<Mat<f64>>,
}

/// What became of a tensor.
pub enum Outcome {
    Packed(Box<Packed>),
    /// It stays as it was, and why.
    Dense(String),
}

pub struct Packed {
    pub payload: Payload,
    pub quality: Quality,
    /// Bytes copied to and from a device for all its candidates.
    pub moved: u64,
}

/// What a packed tensor asked for, got and cost. Relative errors are of the stored, rounded tensor, against the weight or,
/// with two streams, its target; rows of both times what they count, where outputs are not all alike
/// ([`output_weights`](super::output_weights)).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    #[serde(default)]
    pub encoded_by: EncodedBy,
    /// Why the device that was to encode it could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retried: Option<String>,
    pub paths: usize,
    pub rank: usize,
    /// Bits per weight: asked for (the K/V factor not applied), and delivered.
    pub requested_bits: f64,
    pub delivered_bits: f64,
    /// Multiplier of the budget.
    pub factor: f64,
    /// Whether the smallest or the largest possible rank decided instead of the budget.
    pub clipped: Clipped,
    /// sqrt(err(Ŵ; H)/err(0; H)) on the fit and held-out Grams; absent without text.
    pub fit_rel: Option<f64>,
    pub heldout_rel: Option<f64>,
    /// ‖W − Ŵ‖ / ‖W‖, Frobenius.
    pub weight_rel: f64,
    /// Damping that made the Gram positive definite, and the tries it took.
    pub damping: f64,
    pub damping_tries: usize,
    pub row_flips: usize,
    pub column_flips: usize,
    pub steps_kept: usize,
    pub steps_undone: usize,
    pub svd_fallbacks: usize,
}

/// Encodes one weight (m x n) within its budget. Two candidates of `PathChoice::Auto` run at the same time.
pub fn encode_tensor(weight: Mat<f64>, input: &Input, budget: Budget, recipe: &Recipe) -> Outcome {
    let (m, n) = weight.shape();
    let problem = Problem::new(weight, &input.context);
    if problem.energy <= 0.0 {
        return Outcome::Dense("the weight is zero wherever its input is not".into());
    }
    let spectrum = match Spectrum::of(problem.weight.as_ref(), problem.weighted.as_ref(), problem.context) {
        Ok(spectrum) => spectrum,
        Err(error) => return Outcome::Dense(error.to_string()),
    };
    let candidate = |paths: usize| -> Result<Candidate, String> {
        let rank = rank_for(m, n, paths, budget)
            .ok_or_else(|| format!("a side of {m}x{n} is below 8, the smallest rank"))?;
        let fit =
            fit_paths(&problem, &spectrum, paths, rank.rank, &recipe.params).map_err(|e| e.to_string())?;
        Ok(Candidate { fit, rank })
    };
    let chosen = match recipe.paths {
        PathChoice::One => candidate(1),
        PathChoice::Two => candidate(2),
        PathChoice::Auto => {
            let (one, two) = rayon::join(|| candidate(1), || candidate(2));
            one.and_then(|one| Ok(better(one, two?, &problem, input)))
        }
    };
    match chosen.and_then(|chosen| finish(chosen, &problem, input, budget)) {
        Ok(packed) => Outcome::Packed(Box::new(packed)),
        Err(reason) => Outcome::Dense(reason),
    }
}

struct Candidate {
    fit: Fit,
    rank: Rank,
}

/// The lower error on the held-out Gram, before rounding; two paths on a tie.
fn better(one: Candidate, two: Candidate, problem: &Problem<'_>, input: &Input) -> Candidate {
    let gram = input.grams.as_ref().map_or(&input.context.damped, |grams| &grams.heldout);
    let judge = Judge::new(problem.weight.as_ref(), gram.as_ref());
    let rel = |candidate: &Candidate| judge.relative_error(candidate.fit.product().as_ref());
    if rel(&one) < rel(&two) { one } else { two }
}

fn finish(chosen: Candidate, problem: &Problem<'_>, input: &Input, budget: Budget) -> Result<Packed, String> {
    let Candidate { fit, rank } = chosen;
    let (m, n) = problem.weight.shape();
    let payload = round_to_payload(&fit.paths).map_err(|e| e.to_string())?;
    let stored = dequantised(&payload, n);
    let rel =
        |gram: MatRef<'_, f64>| Judge::new(problem.weight.as_ref(), gram).relative_error(stored.as_ref());
    let weight_rel = (&problem.weight - &stored).norm_l2() / problem.weight.norm_l2();
    let quality = Quality {
        encoded_by: EncodedBy::F64Host,
        retried: None,
        paths: fit.paths.len(),
        rank: rank.rank,
        requested_bits: budget.bits,
        delivered_bits: payload.bits() as f64 / (m * n) as f64,
        factor: budget.factor,
        clipped: rank.clipped,
        fit_rel: input.grams.as_ref().map(|grams| rel(grams.fit.as_ref())),
        heldout_rel: input.grams.as_ref().map(|grams| rel(grams.heldout.as_ref())),
        weight_rel,
        damping: problem.context.damping,
        damping_tries: problem.context.tries,
        row_flips: fit.refine.row_flips,
        column_flips: fit.refine.column_flips,
        steps_kept: fit.refine.kept,
        steps_undone: fit.refine.undone,
        svd_fallbacks: fit.svd_fallbacks,
    };
    Ok(Packed { payload, quality, moved: 0 })
}

/// Ŵ as it is stored, without the padding of the width.
fn dequantised(payload: &Payload, cols: usize) -> Mat<f64> {
    let rows = payload.rows();
    let dense = payload.dequantise();
    Mat::from_fn(rows, cols, |i, j| dense[i * payload.cols() + j])
}
