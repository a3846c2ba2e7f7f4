use std::time::{Duration, Instant};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::model::{Centre, Code, Dictionary};
use super::race::{Birth, Race};
use super::refine::{Effort, Fitted, Work, refine};
use super::{AtomsError, Shape, Space, gauge, reshape};

/// How a dictionary is fitted.
#[derive(Clone, Debug)]
pub struct FitParams {
    /// Most atoms.
    pub atoms: usize,
    /// Shapes that may be born.
    pub shapes: Vec<Shape>,
    /// Most atoms that may be on in one row.
    pub active: usize,
    /// Of the random starts.
    pub seed: u64,
    /// A fit ends after this long, with the best so far.
    pub time: Option<Duration>,
}

impl Default for FitParams {
    fn default() -> Self {
        Self { atoms: 12, shapes: Shape::ALL.to_vec(), active: 8, seed: 0, time: None }
    }
}

/// How a fit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The criterion stopped moving.
    Converged,
    /// It still moved after the last round.
    RoundLimit,
    TimeLimit,
    /// Nothing was born: the rows are noise, as far as this can tell.
    Nothing,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Converged => "converged",
            Self::RoundLimit => "still moving after the last round",
            Self::TimeLimit => "the time was up",
            Self::Nothing => "nothing was found",
        })
    }
}

/// Why no further atom was born.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// No direction of the residual varies more than noise does.
    NothingLeft,
    /// No further atom lowers the criterion.
    NoGain,
    AtomLimit,
    /// There are too few rows: for the directions of a further atom, or for its unknowns.
    RowLimit,
    TimeLimit,
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NothingLeft => "no direction of the residual varies more than noise does",
            Self::NoGain => "no further atom pays for itself",
            Self::AtomLimit => "there are as many atoms as were asked for",
            Self::RowLimit => "there are too few rows for another atom",
            Self::TimeLimit => "the time was up",
        })
    }
}

/// What stands behind a fit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Certificate {
    pub outcome: Outcome,
    pub ending: Ending,
    /// The test that the fit ended by.
    pub test: String,
    pub device: String,
    /// Nats, of all rows and decoders.
    pub criterion: f64,
    /// The same of a dictionary without atoms.
    pub criterion_of_nothing: f64,
    /// ‖∇φ‖ of the last Newton loop, over that of its start.
    pub gradient: f64,
    pub births: Vec<Birth>,
    pub work: Work,
    pub seconds: f64,
}

/// A dictionary with the codes of the rows that it was fitted to.
#[derive(Clone, Debug)]
pub struct Fit {
    pub dictionary: Dictionary,
    pub codes: Vec<Code>,
    pub certificate: Certificate,
}

/// Change of the criterion a row below which it has settled: at the end, and while candidates race.
const SETTLED: f64 = 1e-9;
const SETTLED_RACE: f64 = 1e-3;

/// Rounds of the last refinement.
const LAST_ROUNDS: usize = 40;

/// Fits a dictionary of typed shapes to rows (n x p, row-major): one atom is born at a time, each the winner of a race
/// between shapes on what the others leave.
///
/// The result depends on data and seed alone: not on the number of threads, nor, up to rounding, on scale, rotation or
/// order of the rows.
///
/// # Errors
/// Rows that cannot be fitted: too few, constant, with NaN or infinity.
pub fn fit(x: &[f64], width: usize, params: &FitParams) -> Result<Fit, AtomsError> {
    let began = Instant::now();
    let (space, y) = Space::of(x, width)?;
    // A time that the clock cannot hold is none.
    let deadline = params.time.and_then(|time| began.checked_add(time));
    let order = canonical_order(&y, space.rank);
    let sorted: Vec<f64> =
        order.iter().flat_map(|i| y[i * space.rank..(i + 1) * space.rank].iter().copied()).collect();
    let empty = nothing(&sorted, space, params)?;
    let criterion_of_nothing = empty.criterion();
    let mut race = Race { y: &sorted, params, deadline, work: Work::default() };
    let (mut fitted, births, ending) = grow(&mut race, empty)?;
    let last = Effort { rounds: LAST_ROUNDS, tries: 60, settled: SETTLED, deadline };
    if !fitted.dictionary.atoms.is_empty() {
        fitted = refine(&sorted, fitted.dictionary, fitted.codes, last)?;
        race.work += fitted.work;
    }
    gauge::fix_phases(&mut fitted.dictionary, &mut fitted.codes);
    let outcome = match () {
        () if ending == Ending::TimeLimit => Outcome::TimeLimit,
        () if fitted.dictionary.atoms.is_empty() => Outcome::Nothing,
        () if fitted.settled => Outcome::Converged,
        () if deadline.is_some_and(|at| Instant::now() >= at) => Outcome::TimeLimit,
        () => Outcome::RoundLimit,
    };
    let mut codes = vec![Code::new(); order.len()];
    for (code, i) in fitted.codes.iter().zip(&order) {
        codes[*i] = code.clone();
    }
    let certificate = Certificate {
        outcome,
        ending,
        test: format!("change of the criterion below {SETTLED:e} nats a row between two rounds"),
        device: "host".into(),
        criterion: fitted.criterion(),
        criterion_of_nothing,
        gradient: fitted.gradient,
        births,
        work: race.work,
        seconds: began.elapsed().as_secs_f64(),
    };
    Ok(Fit { dictionary: fitted.dictionary, codes, certificate })
}

/// Rows by their first coordinate, then the second, and so on: the same order however they came.
fn canonical_order(y: &[f64], rank: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..y.len() / rank).collect();
    let row = |i: usize| &y[i * rank..(i + 1) * rank];
    order.sort_by(|a, b| {
        let pairs = row(*a).iter().zip(row(*b));
        pairs.map(|(a, b)| a.total_cmp(b)).find(|o| o.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    });
    order
}

/// A dictionary without atoms.
fn nothing(y: &[f64], space: Space, params: &FitParams) -> Result<Fitted, AtomsError> {
    let rank = space.rank;
    let dictionary = Dictionary {
        base: vec![0.0; rank],
        space,
        atoms: Vec::new(),
        noise: 1.0,
        most_active: params.active,
        centre: Centre::Free,
    };
    let effort = Effort { rounds: 1, tries: 0, settled: SETTLED, deadline: None };
    refine(y, dictionary, vec![Code::new(); y.len() / rank], effort)
}

fn grow(race: &mut Race<'_>, mut fitted: Fitted) -> Result<(Fitted, Vec<Birth>, Ending), AtomsError> {
    let mut births = Vec::new();
    let ending = loop {
        if race.deadline.is_some_and(|at| Instant::now() >= at) {
            break Ending::TimeLimit;
        }
        if fitted.dictionary.atoms.len() >= race.params.atoms {
            break Ending::AtomLimit;
        }
        let full = race.unknowns(&fitted) + fitted.dictionary.space.rank >= race.y.len();
        if full || race.directions_left(&fitted) == 0 {
            break Ending::RowLimit;
        }
        let settled = Effort { rounds: 6, tries: 20, settled: SETTLED_RACE, deadline: race.deadline };
        match race.run(&fitted, births.len() as u64)? {
            Ok((winner, born)) => {
                births.extend(born);
                fitted = refine(race.y, winner.dictionary, winner.codes, settled)?;
                race.work += fitted.work;
            }
            Err(ending) => break ending,
        }
    };
    let fitted = prune(race, fitted, &mut births)?;
    let fitted = reshape::reshape(race, fitted, &mut births)?;
    Ok((fitted, births, ending))
}

/// Takes out every atom without which the criterion is no higher.
fn prune(race: &mut Race<'_>, mut fitted: Fitted, births: &mut Vec<Birth>) -> Result<Fitted, AtomsError> {
    loop {
        let effort = Effort { rounds: 3, tries: 12, settled: SETTLED_RACE, deadline: race.deadline };
        let without: Vec<_> = (0..fitted.dictionary.atoms.len())
            .into_par_iter()
            .map(|k| {
                let (dictionary, codes) = removed(&fitted, k);
                refine(race.y, dictionary, codes, effort)
            })
            .collect();
        let mut best: Option<(usize, Fitted)> = None;
        for (k, candidate) in without.into_iter().enumerate() {
            let candidate = candidate?;
            race.work += candidate.work;
            if best.as_ref().is_none_or(|(_, best)| candidate.criterion() < best.criterion()) {
                best = Some((k, candidate));
            }
        }
        match best {
            Some((k, candidate)) if candidate.criterion() <= fitted.criterion() => {
                births.retain(|birth| birth.atom != k);
                births.iter_mut().filter(|birth| birth.atom > k).for_each(|birth| birth.atom -= 1);
                fitted = candidate;
            }
            _ => return Ok(fitted),
        }
    }
}

fn removed(fitted: &Fitted, k: usize) -> (Dictionary, Vec<Code>) {
    let (mut dictionary, mut codes) = (fitted.dictionary.clone(), fitted.codes.clone());
    dictionary.atoms.remove(k);
    for code in &mut codes {
        code.retain(|active| active.atom != k);
        code.iter_mut().filter(|active| active.atom > k).for_each(|active| active.atom -= 1);
    }
    (dictionary, codes)
}
