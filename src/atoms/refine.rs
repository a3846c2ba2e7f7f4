use std::time::Instant;

use super::AtomsError;
use super::code::{Coder, Resolved};
use super::gauge;
use super::model::{Centre, Code, Dictionary};
use super::problem::Joint;
use super::regression::Regression;
use crate::arrow::{NewtonParams, Reuse, Stop, newton};

/// The noise a component is at least this share of the mean variance a component: f64's rounding, squared.
const LEAST_NOISE: f64 = 1e-20;

/// Spread of the amplitude below which it is 1.
const LEAST_SPREAD: f64 = 0.02;

/// Ridge that keeps steps along a gauge (the phase of a circle) off rounding.
const LEAST_RIDGE: f64 = 1e-9;

/// How hard a candidate is worked on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    pub rounds: usize,
    /// Tries of a round's Newton loop.
    pub tries: u32,
    /// Change of the criterion, a row, below which it has settled.
    pub settled: f64,
    pub deadline: Option<Instant>,
}

/// What work on the arrow systems a fit took.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Work {
    /// Newton loops.
    pub loops: u64,
    /// Frames built.
    pub builds: u64,
    /// Steps that a frame of an earlier point served.
    pub reuses: u64,
    /// Steps tried and taken.
    pub tries: u64,
    pub accepts: u64,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.loops += other.loops;
        self.builds += other.builds;
        self.reuses += other.reuses;
        self.tries += other.tries;
        self.accepts += other.accepts;
    }
}

/// A dictionary at the end of some rounds.
#[derive(Clone, Debug)]
pub struct Fitted {
    pub dictionary: Dictionary,
    pub codes: Vec<Code>,
    /// Cost of each row, in nats.
    pub costs: Vec<f64>,
    /// Cost of the decoders.
    pub penalty: f64,
    pub work: Work,
    /// Whether the criterion stopped moving.
    pub settled: bool,
    /// ‖∇φ‖ of the last Newton loop over that of its start.
    pub gradient: f64,
}

impl Fitted {
    /// The criterion: what rows and decoders cost, in nats.
    pub fn criterion(&self) -> f64 {
        self.costs.iter().sum::<f64>() + self.penalty
    }
}

/// Rounds of: decoders by least squares; all unknowns together by Newton's method; gauges; noise, priors and smoothing;
/// supports and coordinates anew. What cost least is kept.
///
/// # Errors
/// A fit that cannot be assembled or factored.
pub fn refine(y: &[f64], start: Dictionary, codes: Vec<Code>, effort: Effort) -> Result<Fitted, AtomsError> {
    let mut best: Option<Fitted> = None;
    let (mut dictionary, mut codes, mut work) = (start, codes, Work::default());
    let rows = codes.len() as f64;
    let mut last = f64::INFINITY;
    let mut settled = false;
    for round in 0..effort.rounds.max(1) {
        let regression = Regression::solve(y, &dictionary, &codes)?;
        regression.write(&mut dictionary);
        if round == 0 {
            update_noise(&mut dictionary, y, &codes);
        }
        let gradient = descend(y, &mut dictionary, &mut codes, effort, &mut work)?;
        gauge::normalise(&mut dictionary, &mut codes);
        update(&mut dictionary, y, &codes)?;
        let resolved = Coder::new(&dictionary).resolve(y, Some(&codes));
        let costs: Vec<f64> = resolved.iter().map(|r| r.cost).collect();
        codes = resolved.into_iter().map(|Resolved { code, .. }| code).collect();
        let penalty = penalty(&dictionary, &codes);
        let criterion = costs.iter().sum::<f64>() + penalty;
        if best.as_ref().is_none_or(|best| criterion < best.criterion()) {
            let (dictionary, codes) = (dictionary.clone(), codes.clone());
            best = Some(Fitted { dictionary, codes, costs, penalty, work, settled, gradient });
        }
        settled = (last - criterion).abs() <= effort.settled * rows;
        last = criterion;
        if settled || effort.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break;
        }
    }
    let mut best = best.ok_or(AtomsError::Empty)?;
    (best.work, best.settled) = (work, settled);
    Ok(best)
}

/// One Newton loop over coordinates, amplitudes and decoders.
fn descend(
    y: &[f64],
    dictionary: &mut Dictionary,
    codes: &mut Vec<Code>,
    effort: Effort,
    work: &mut Work,
) -> Result<f64, AtomsError> {
    let mut joint = Joint::new(y, dictionary, codes);
    if !joint.has_unknowns() {
        return Ok(0.0);
    }
    let params = NewtonParams {
        stop: Stop::RelativeGradient(1e-9),
        first_ridge: 1e-6,
        least_ridge: LEAST_RIDGE,
        tries: effort.tries,
        reuse: Reuse::WhileContracting(0.25),
        time: effort.deadline.map(|at| at.saturating_duration_since(Instant::now())),
        ..NewtonParams::default()
    };
    let start = joint.point();
    let summary = newton(&mut joint, start, &params)?;
    let first = summary.trace.first().map_or(summary.gradient_norm, |first| first.gradient_norm);
    *work += Work {
        loops: 1,
        builds: summary.builds,
        reuses: u64::from(summary.tries).saturating_sub(summary.builds),
        tries: summary.tries.into(),
        accepts: summary.accepts.into(),
    };
    let (next, moved) = joint.read(&summary.z);
    (*dictionary, *codes) = (next, moved);
    Ok(if first > 0.0 { summary.gradient_norm / first } else { 0.0 })
}

/// What decoders and priors cost: half the logarithm of the rows that speak for them, a number (Schwarz).
pub fn penalty(dictionary: &Dictionary, codes: &[Code]) -> f64 {
    let rank = dictionary.space.rank as f64;
    let rows = codes.len() as f64;
    let mut penalty = if dictionary.centre == Centre::Free { 0.5 * rank * rows.ln() } else { 0.0 };
    for (k, atom) in dictionary.atoms.iter().enumerate() {
        let on = codes.iter().flatten().filter(|active| active.atom == k).count();
        let everywhere = on == codes.len() && !atom.is_free();
        let numbers = rank * (atom.shape.basis() - usize::from(everywhere)) as f64;
        penalty += 0.5 * numbers * (on.max(2) as f64).ln();
        // Activity, and the spread of a free amplitude.
        penalty += 0.5 * rows.ln() * (1.0 + f64::from(u8::from(atom.is_free())));
    }
    penalty
}

/// What codes leave of the rows, n x r.
pub fn residual(y: &[f64], dictionary: &Dictionary, codes: &[Code]) -> Vec<f64> {
    let rank = dictionary.space.rank;
    y.chunks_exact(rank)
        .zip(codes)
        .flat_map(|(row, code)| {
            row.iter().zip(dictionary.decode(code)).map(|(x, f)| x - f).collect::<Vec<_>>()
        })
        .collect()
}

/// σ² = ‖E‖² over what is left of the numbers once unknowns are taken off.
fn update_noise(dictionary: &mut Dictionary, y: &[f64], codes: &[Code]) {
    let e = residual(y, dictionary, codes);
    let error: f64 = e.iter().map(|e| e * e).sum();
    let rank = dictionary.space.rank;
    let unknowns: usize = codes.iter().flatten().map(|active| dictionary.atoms[active.atom].unknowns()).sum();
    let taken = unknowns + rank * (1 + dictionary.decoder_rows());
    let left = y.len().saturating_sub(taken).max(y.len() / 10).max(1);
    dictionary.noise = (error / left as f64).max(LEAST_NOISE);
}

/// Noise; activity; spread of amplitudes; and the smoothing by the generalised Fellner-Schall step
/// `λ ← λ·(rank(S)·r/λ − r·tr(VS)) / (tr(BᵀSB)/σ²)`, V the decoder's covariance for fixed coordinates (Wood and Fasiolo, 2017).
fn update(dictionary: &mut Dictionary, y: &[f64], codes: &[Code]) -> Result<(), AtomsError> {
    update_noise(dictionary, y, codes);
    let rows = codes.len() as f64;
    let rank = dictionary.space.rank;
    let regression = Regression::solve(y, dictionary, codes)?;
    for k in 0..dictionary.atoms.len() {
        let trace = regression.smoothness_trace(dictionary, k);
        let noise = dictionary.noise;
        let atom = &mut dictionary.atoms[k];
        let on: Vec<f64> =
            codes.iter().flatten().filter(|active| active.atom == k).map(|active| active.amplitude).collect();
        atom.activity = (on.len() as f64 + 0.5) / (rows + 1.0);
        let s = atom.shape.smoothness();
        let bent: f64 = s
            .iter()
            .zip(atom.decoder.chunks_exact(rank))
            .map(|(s, row)| s * row.iter().map(|b| b * b).sum::<f64>())
            .sum();
        let penalised = s.iter().filter(|s| **s > 0.0).count();
        if penalised > 0 && bent > 0.0 {
            let free = (penalised as f64 - atom.smoothing * trace).max(0.0) * rank as f64;
            atom.smoothing = free * noise / bent;
        }
        if atom.shape.has_amplitude() && !on.is_empty() {
            atom.spread = spread(atom, &on, noise);
        }
    }
    Ok(())
}

/// τ: the second moment of the amplitudes around 1, with their own uncertainty once they are free.
fn spread(atom: &super::Atom, on: &[f64], noise: f64) -> f64 {
    if !atom.is_free() {
        return 0.0;
    }
    // Mean of ‖f‖²: the squares of sines, cosines and the like average to a half.
    let share = if atom.shape.dim() == 0 { 1.0 } else { 0.5 };
    let height = share * atom.decoder.iter().map(|b| b * b).sum::<f64>();
    let variance = 1.0 / (height / noise + atom.spread.powi(-2));
    let moment = on.iter().map(|a| (a - 1.0).powi(2)).sum::<f64>() / on.len() as f64 + variance;
    let spread = moment.sqrt().min(atom.shape.largest_spread());
    if spread < LEAST_SPREAD && atom.shape.is_curved() { 0.0 } else { spread.max(1e-3) }
}
