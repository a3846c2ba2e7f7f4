//! The zoo, measured: every case over seeds, each fit judged by what was planted and by rows that it has not seen.

use std::time::Instant;

use super::baseline::{Baselines, Size, baselines};
use super::measure::recoveries;
use super::zoo::Case;
use super::{AtomsError, Ending, FitParams, Outcome, Shape, fit};
use crate::arrow::bench::Figure;

/// Recovery that a success needs, of a single circle.
pub const CIRCLE_RECOVERY: f64 = 0.99;
/// Recovery that a success needs, of everything else.
pub const RECOVERY: f64 = 0.97;

/// Distance of the explained variance from the noise ceiling that a single circle may have.
pub const CEILING_DISTANCE: f64 = 0.01;

/// One fit of the zoo.
#[derive(Clone, Debug)]
pub struct Trial {
    pub case: Case,
    pub seed: u64,
    pub shapes: Vec<Shape>,
    pub outcome: Outcome,
    pub ending: Ending,
    /// Of each planted atom.
    pub recoveries: Vec<f64>,
    pub explained: f64,
    pub ceiling: f64,
    pub l0: f64,
    pub alive: f64,
    pub baselines: Option<Baselines>,
    pub seconds: f64,
}

impl Trial {
    /// Fits one planted case and measures it on its held-out rows.
    ///
    /// # Errors
    /// None on planted rows; whatever a fit may say.
    pub fn run(case: Case, seed: u64) -> Result<Self, AtomsError> {
        let planted = case.plant(seed);
        let params = FitParams { seed, ..FitParams::default() };
        let began = Instant::now();
        let found = fit(planted.fit_rows(), planted.width, &params)?;
        let seconds = began.elapsed().as_secs_f64();
        let dictionary = &found.dictionary;
        let measures = dictionary.measure(planted.heldout_rows(), planted.width)?;
        let recoveries = recoveries(&planted.shapes, planted.heldout_truth(), dictionary, &measures.codes);
        let size =
            Size { rows: dictionary.decoder_rows(), coefficients: measures.coefficients.ceil() as usize };
        let baselines = (size.coefficients > 0)
            .then(|| baselines(planted.fit_rows(), planted.heldout_rows(), planted.width, size))
            .transpose()?;
        Ok(Self {
            case,
            seed,
            shapes: dictionary.atoms.iter().map(|atom| atom.shape).collect(),
            outcome: found.certificate.outcome,
            ending: found.certificate.ending,
            recoveries,
            explained: measures.explained,
            ceiling: planted.ceiling(),
            l0: measures.l0,
            alive: measures.alive,
            baselines,
            seconds,
        })
    }

    /// The lowest recovery of a planted atom.
    pub fn recovery(&self) -> f64 {
        self.recoveries.iter().copied().fold(1.0, f64::min)
    }

    /// How many atoms are curved.
    pub fn curves(&self) -> usize {
        self.shapes.iter().filter(|shape| shape.is_curved()).count()
    }

    /// Whether the shapes are those that were planted, however they are ordered.
    pub fn has_right_shapes(&self) -> bool {
        let sorted = |shapes: &[Shape]| {
            let mut names: Vec<&str> = shapes.iter().map(|shape| shape.name()).collect();
            names.sort_unstable();
            names
        };
        sorted(&self.shapes) == sorted(&self.case.plant_shapes())
    }

    /// Right shapes, recovered; a single circle also explains what the true one does.
    pub fn succeeds(&self) -> bool {
        match self.case {
            Case::Circle => {
                self.has_right_shapes()
                    && self.recovery() >= CIRCLE_RECOVERY
                    && (self.explained - self.ceiling).abs() <= CEILING_DISTANCE
            }
            Case::Rays | Case::Plane => self.curves() == 0,
            Case::Noise => self.shapes.is_empty(),
            // A coordinate cannot be known better than the noise lets it be.
            Case::NoisyCircle => self.has_right_shapes() && self.recovery() >= 0.9,
            _ => self.has_right_shapes() && self.recovery() >= RECOVERY,
        }
    }
}

/// Every case over `seeds` seeds; `told` hears of each fit.
///
/// # Errors
/// As [`Trial::run`].
pub fn run(cases: &[Case], seeds: u64, told: &dyn Fn(&Trial)) -> Result<Vec<Trial>, AtomsError> {
    let mut trials = Vec::new();
    for case in cases {
        for seed in 0..seeds {
            let trial = Trial::run(*case, seed)?;
            told(&trial);
            trials.push(trial);
        }
    }
    Ok(trials)
}

/// The figures of trials, case by case.
pub fn figures(trials: &[Trial]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for case in Case::ALL {
        let of: Vec<&Trial> = trials.iter().filter(|trial| trial.case == case).collect();
        if of.is_empty() {
            continue;
        }
        let mut put = |what: &str, value: f64, unit, note: Option<String>| {
            let name = format!("atoms.{}.{what}", case.name());
            figures.push(Figure::new(name, value, unit, note));
        };
        let count = |passes: &dyn Fn(&Trial) -> bool| of.iter().filter(|trial| passes(trial)).count() as f64;
        let over = |value: &dyn Fn(&Trial) -> f64| {
            let mut values: Vec<f64> = of.iter().map(|trial| value(trial)).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let middle = |values: &[f64]| 0.5 * (values[(values.len() - 1) / 2] + values[values.len() / 2]);
        let seconds = over(&|trial| trial.seconds);
        match case {
            Case::Rays => put("false_curves", count(&|trial| trial.curves() > 0), "fits", None),
            Case::Noise => put("false_births", count(&|trial| !trial.shapes.is_empty()), "fits", None),
            _ => put("success", count(&Trial::succeeds), "fits", Some(format!("of {}", of.len()))),
        }
        put("median_s", middle(&seconds), "s", None);
        put("worst_s", seconds[seconds.len() - 1], "s", None);
        if case == Case::Noise {
            continue;
        }
        put("worst_recovery", over(&Trial::recovery)[0], "1", None);
        let explained = over(&|trial| trial.explained);
        put("explained", middle(&explained), "1", None);
        put("explained_spread", explained[explained.len() - 1] - explained[0], "1", None);
        put("ceiling", middle(&over(&|trial| trial.ceiling)), "1", None);
        put("l0", middle(&over(&|trial| trial.l0)), "atoms", None);
        put("alive", over(&|trial| trial.alive)[0], "1", None);
        let pca = over(&|trial| trial.baselines.map_or(0.0, |b| b.pca));
        let topk = over(&|trial| trial.baselines.map_or(0.0, |b| b.topk));
        put("pca_explained", middle(&pca), "1", Some("equal coefficients a row".into()));
        put("topk_explained", middle(&topk), "1", Some("equal decoder rows and coefficients a row".into()));
    }
    figures
}
