use rayon::prelude::*;

use super::model::{Atom, Centre, Code, Dictionary};
use super::race::{Birth, Race, lead};
use super::refine::{Effort, Fitted, refine};
use super::{AtomsError, Shape};

/// Spread from which a free amplitude begins.
const FIRST_SPREAD: f64 = 0.1;

/// Another form of one atom, on the rows where it is on.
#[derive(Clone, Copy, Debug)]
struct Form {
    shape: Shape,
    spread: f64,
    /// Whether it says less than the present one: then it also wins a tie.
    simpler: bool,
}

/// The race between shapes once all atoms are there: each atom may become simpler where that costs nothing, or richer
/// where that pays beyond the noise of the comparison.
pub fn reshape(race: &mut Race<'_>, mut fitted: Fitted, births: &mut [Birth]) -> Result<Fitted, AtomsError> {
    let effort = Effort { rounds: 4, tries: 12, settled: 1e-4, deadline: race.deadline };
    fitted = centred(race, fitted, effort)?;
    for k in 0..fitted.dictionary.atoms.len() {
        // A form that won may have a further one.
        for _ in 0..3 {
            let mut forms = forms(&fitted.dictionary.atoms[k], &race.params.shapes);
            forms.retain(|form| form.simpler || fills(&fitted.codes, k, form.shape));
            let tried: Vec<_> = forms
                .par_iter()
                .map(|form| {
                    let (dictionary, codes) = formed(&fitted, k, *form);
                    refine(race.y, dictionary, codes, effort)
                })
                .collect();
            let mut best: Option<(Form, Fitted)> = None;
            for (form, candidate) in forms.into_iter().zip(tried) {
                let candidate = candidate?;
                race.work += candidate.work;
                let (ahead, band) = lead(&candidate, &fitted);
                // Ties go to the simpler.
                let wins = if form.simpler { ahead >= -band } else { ahead > band };
                let leads = best.as_ref().is_none_or(|(_, b)| candidate.criterion() < b.criterion());
                if wins && leads {
                    best = Some((form, candidate));
                }
            }
            let Some((form, candidate)) = best else { break };
            births.iter_mut().filter(|birth| birth.atom == k).for_each(|birth| birth.shape = form.shape);
            fitted = candidate;
        }
    }
    Ok(fitted)
}

/// Where every atom is on in every row, the centre may be the mean of the rows: fewer numbers, if that costs no more.
fn centred(race: &mut Race<'_>, fitted: Fitted, effort: Effort) -> Result<Fitted, AtomsError> {
    let atoms = fitted.dictionary.atoms.len();
    if atoms == 0 || fitted.codes.iter().any(|code| code.len() < atoms) {
        return Ok(fitted);
    }
    let mut dictionary = fitted.dictionary.clone();
    dictionary.centre = Centre::Mean;
    let held = refine(race.y, dictionary, fitted.codes.clone(), effort)?;
    race.work += held.work;
    Ok(if held.criterion() <= fitted.criterion() { held } else { fitted })
}

/// Whether the rows lie all round a circle of several harmonics: a few points lie on such a curve in any order.
fn fills(codes: &[Code], k: usize, shape: Shape) -> bool {
    let Shape::Circle(harmonics) = shape else { return true };
    let arcs = 8 * harmonics;
    let mut taken = vec![false; arcs];
    for active in codes.iter().flatten().filter(|active| active.atom == k) {
        taken[((active.at[0] * arcs as f64) as usize).min(arcs - 1)] = true;
    }
    harmonics == 1 || 4 * taken.iter().filter(|taken| **taken).count() > 3 * arcs
}

fn forms(atom: &Atom, allowed: &[Shape]) -> Vec<Form> {
    let simpler = |shape| Form { shape, spread: if shape == Shape::Ray { 0.4 } else { 0.0 }, simpler: true };
    let richer = |shape| Form { shape, spread: atom.spread, simpler: false };
    let free = Form { shape: atom.shape, spread: FIRST_SPREAD, simpler: false };
    let mut forms = match atom.shape {
        Shape::Ray => vec![],
        // On in every row, a free amplitude and a coordinate are the same but for the base.
        Shape::Line if atom.activity > 0.95 => vec![richer(Shape::Arc)],
        Shape::Line => vec![simpler(Shape::Ray), richer(Shape::Arc)],
        Shape::Arc => vec![simpler(Shape::Line)],
        Shape::Circle(1) => vec![simpler(Shape::Ray), richer(Shape::Circle(2))],
        Shape::Circle(2) => vec![simpler(Shape::Circle(1)), richer(Shape::Circle(3))],
        Shape::Circle(h) => vec![simpler(Shape::Circle(h - 1))],
        Shape::Sphere(1) => vec![simpler(Shape::Ray), richer(Shape::Sphere(2))],
        Shape::Sphere(_) => vec![simpler(Shape::Sphere(1))],
        Shape::Torus | Shape::Patch => vec![simpler(Shape::Ray)],
    };
    forms.retain(|form| allowed.iter().any(|shape| shape.name() == form.shape.name()));
    if atom.shape.is_curved() && atom.shape.has_amplitude() && !atom.is_free() {
        forms.push(free);
    }
    forms
}

fn formed(fitted: &Fitted, k: usize, form: Form) -> (Dictionary, Vec<Code>) {
    let (mut dictionary, mut codes) = (fitted.dictionary.clone(), fitted.codes.clone());
    let rank = dictionary.space.rank;
    let atom = &mut dictionary.atoms[k];
    let straight = form.shape == Shape::Ray;
    atom.decoder.resize(form.shape.basis() * rank, 0.0);
    (atom.shape, atom.spread, atom.smoothing) = (form.shape, form.spread, 0.0);
    for active in codes.iter_mut().flatten().filter(|active| active.atom == k) {
        active.amplitude = 1.0;
        if straight {
            active.at = [0.0; 2];
        }
    }
    (dictionary, codes)
}
