//! What a fit leaves open, fixed: directions along which nothing that is observed changes.
//!
//! | gauge | fixed by |
//! |---|---|
//! | an atom that is on in every row: its constant against the base | the constant is 0 |
//! | scale and origin of normal coordinates against the decoder | mean 0 and variance 1 over the rows where it is on |
//! | amplitude against the decoder's length | mean 1 over the same rows |
//! | phase and direction of a circle | phase 0 where it reaches farthest along its widest axis; then towards the second |
//!
//! Sphere and torus are fixed up to their symmetries by the fit's own start and are compared only up to them.

use faer::Mat;
use faer::linalg::solvers::Solve;

use super::Shape;
use super::model::{Active, Atom, Code, Dictionary};

/// Fixes all but the phases of circles, between two rounds of a fit.
pub fn normalise(dictionary: &mut Dictionary, codes: &mut [Code]) {
    let n = codes.len();
    for k in 0..dictionary.atoms.len() {
        let on: Vec<Active> = codes.iter().flatten().filter(|active| active.atom == k).copied().collect();
        if on.is_empty() {
            continue;
        }
        let atom = &mut dictionary.atoms[k];
        if atom.is_free() {
            unit_amplitude(atom, k, &on, codes);
        }
        if atom.shape.is_normal() {
            standardise(atom, k, &on, codes);
        }
        if on.len() == n && !atom.is_free() {
            let rank = dictionary.base.len();
            for (base, constant) in dictionary.base.iter_mut().zip(&mut atom.decoder[..rank]) {
                *base += *constant;
                *constant = 0.0;
            }
        }
    }
}

fn unit_amplitude(atom: &mut Atom, k: usize, on: &[Active], codes: &mut [Code]) {
    let mean = on.iter().map(|active| active.amplitude).sum::<f64>() / on.len() as f64;
    if mean > 0.0 {
        atom.decoder.iter_mut().for_each(|b| *b *= mean);
        for active in codes.iter_mut().flatten().filter(|active| active.atom == k) {
            active.amplitude /= mean;
        }
    }
}

/// `t = m + s·t'`: coordinates t' get mean 0 and variance 1 along each axis, on a patch also no covariance.
fn standardise(atom: &mut Atom, k: usize, on: &[Active], codes: &mut [Code]) {
    let count = on.len() as f64;
    let dim = atom.shape.dim();
    let mut mean = [0.0; 2];
    on.iter().for_each(|a| (0..dim).for_each(|c| mean[c] += a.at[c] / count));
    let mut spread = [[0.0; 2]; 2];
    for a in on {
        for c in 0..dim {
            (0..dim).for_each(|d| spread[c][d] += (a.at[c] - mean[c]) * (a.at[d] - mean[d]) / count);
        }
    }
    // Cholesky factor of the covariance.
    let l00 = spread[0][0].sqrt();
    if l00.is_nan() || l00 <= 1e-12 {
        return;
    }
    let l10 = spread[1][0] / l00;
    let l11 = if dim == 2 { (spread[1][1] - l10 * l10).sqrt() } else { 1.0 };
    if l11.is_nan() || l11 <= 1e-12 {
        return;
    }
    let from = |t: [f64; 2]| [mean[0] + l00 * t[0], mean[1] + l10 * t[0] + l11 * t[1]];
    let Some(decoder) = substituted(atom, from) else { return };
    atom.decoder = decoder;
    for active in codes.iter_mut().flatten().filter(|active| active.atom == k) {
        let u = (active.at[0] - mean[0]) / l00;
        let v = if dim == 2 { (active.at[1] - mean[1] - l10 * u) / l11 } else { 0.0 };
        active.at = [u, v];
    }
}

/// The decoder B' for which `B'ᵀφ(t) = Bᵀφ(from(t))`, for substitutions under which the basis is closed: through M
/// points. `None` where the points do not tell the basis functions apart.
fn substituted(atom: &Atom, from: impl Fn([f64; 2]) -> [f64; 2]) -> Option<Vec<f64>> {
    let (shape, rank) = (atom.shape, atom.rank());
    let basis = shape.basis();
    let points: Vec<[f64; 2]> = match shape {
        Shape::Patch => vec![[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1.0, 1.0]],
        Shape::Circle(_) => (0..basis).map(|i| [i as f64 / basis as f64, 0.0]).collect(),
        _ => (0..basis).map(|i| [i as f64 - 1.0, 0.0]).collect(),
    };
    let phi = |t: [f64; 2]| shape.jet(t).value;
    let left = Mat::from_fn(basis, basis, |i, j| phi(points[i])[j]);
    let right = Mat::from_fn(basis, rank, |i, l| {
        let phi = phi(from(points[i]));
        (0..basis).map(|j| phi[j] * atom.decoder[j * rank + l]).sum::<f64>()
    });
    let solved = left.partial_piv_lu().solve(&right);
    let decoder: Vec<f64> =
        (0..basis).flat_map(|j| (0..rank).map(move |l| (j, l))).map(|at| solved[at]).collect();
    decoder.iter().all(|b| b.is_finite()).then_some(decoder)
}

/// Fixes phase and direction of every circle, at the end of a fit.
pub fn fix_phases(dictionary: &mut Dictionary, codes: &mut [Code]) {
    for k in 0..dictionary.atoms.len() {
        let atom = &dictionary.atoms[k];
        let Shape::Circle(_) = atom.shape else { continue };
        let rank = atom.rank();
        let (sin, cos) = (&atom.decoder[rank..2 * rank], &atom.decoder[2 * rank..3 * rank]);
        let reach = |l: usize| sin[l].hypot(cos[l]);
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.sort_by(|a, b| reach(*b).total_cmp(&reach(*a)));
        let phase = sin[axes[0]].atan2(cos[axes[0]]);
        // Derivative along the second axis at the new phase 0.
        let forward = axes.get(1).is_none_or(|l| sin[*l] * phase.cos() - cos[*l] * phase.sin() >= 0.0);
        let (shift, sign) = (phase / std::f64::consts::TAU, if forward { 1.0 } else { -1.0 });
        let Some(decoder) = substituted(atom, |t| [shift + sign * t[0], 0.0]) else { continue };
        dictionary.atoms[k].decoder = decoder;
        for active in codes.iter_mut().flatten().filter(|active| active.atom == k) {
            active.at[0] = (sign * (active.at[0] - shift)).rem_euclid(1.0);
        }
    }
}
