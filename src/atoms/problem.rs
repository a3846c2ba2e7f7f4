use std::error::Error;
use std::sync::Arc;

use faer::linalg::matmul::matmul;
use faer::{Accum, Par};
use rayon::prelude::*;

use super::model::{Code, Dictionary};
use super::regression::{firsts, gram, stiffness};
use super::shape::LARGEST_BASIS;
use crate::arrow::{Border, Cross, Linearisation, Problem, Rows, System, Vector};
use crate::ops::matmul::{rows, rows_mut};

/// The joint fit of decoders, coordinates and amplitudes with the active atoms of each row fixed, in the shape of an
/// arrow:
///
/// ```text
///     φ = ‖Y − Ŷ‖²/2σ² + ½ Σ λ_k/σ² tr(B_kᵀS_kB_k) + Σ ½((a − 1)/τ)²
/// ```
///
/// | part | |
/// |---|---|
/// | row unknowns | coordinates and free amplitudes of the active atoms, ragged; rows without any stand in the border alone |
/// | border | base and decoders, (1 + Σ M_k) x r, basis-major |
/// | row block | `J Jᵀ/σ²` and the amplitudes' precision: Gauss and Newton's, positive semidefinite |
/// | cross | factors `h ⊗ J/σ²`, h the row's basis values times amplitudes |
/// | border block | `(Σ h hᵀ + λS)/σ² ⊗ I_r` |
///
/// Normal coordinates have no prior here: a decoder that grows while its coordinates shrink would lower it without end.
/// Their scale is a gauge, and [`super::gauge`] fixes it.
pub struct Joint<'a> {
    y: &'a [f64],
    dictionary: &'a Dictionary,
    codes: &'a [Code],
    /// Rows that have unknowns, and where those begin.
    rows: Vec<usize>,
    offsets: Vec<usize>,
    /// First border row of each atom.
    firsts: Vec<usize>,
}

/// One row at a point.
struct At {
    /// h, the basis of base and atoms.
    h: Vec<f64>,
    /// y − ŷ.
    e: Vec<f64>,
    /// J, an r-vector for each unknown.
    jacobian: Vec<f64>,
    /// Precision and gradient of the amplitudes' prior, for each unknown.
    prior: Vec<(f64, f64)>,
}

impl<'a> Joint<'a> {
    /// Of rows y (n x r), in the dictionary's space, with the atoms that are on in `codes`.
    pub fn new(y: &'a [f64], dictionary: &'a Dictionary, codes: &'a [Code]) -> Self {
        let (mut rows, mut offsets) = (Vec::new(), vec![0]);
        for (i, code) in codes.iter().enumerate() {
            let unknowns: usize = code.iter().map(|active| dictionary.atoms[active.atom].unknowns()).sum();
            if unknowns > 0 {
                rows.push(i);
                offsets.push(offsets[offsets.len() - 1] + unknowns);
            }
        }
        Self { y, dictionary, codes, rows, offsets, firsts: firsts(dictionary) }
    }

    /// Whether there is a coordinate to move: without one the decoders are least squares.
    pub fn has_unknowns(&self) -> bool {
        !self.rows.is_empty()
    }

    /// The present point.
    pub fn point(&self) -> Vector {
        let mut z = Vector { row: Vec::new(), border: self.dictionary.base.clone() };
        for &i in &self.rows {
            for active in &self.codes[i] {
                let atom = &self.dictionary.atoms[active.atom];
                z.row.extend(&active.at[..atom.shape.dim()]);
                z.row.extend(atom.is_free().then_some(active.amplitude));
            }
        }
        self.dictionary.atoms.iter().for_each(|atom| z.border.extend(&atom.decoder));
        z
    }

    /// Dictionary and codes of a point.
    pub fn read(&self, z: &Vector) -> (Dictionary, Vec<Code>) {
        let rank = self.dictionary.space.rank;
        let mut dictionary = self.dictionary.clone();
        dictionary.base.copy_from_slice(&z.border[..rank]);
        for (atom, first) in dictionary.atoms.iter_mut().zip(&self.firsts) {
            let len = atom.decoder.len();
            atom.decoder.copy_from_slice(&z.border[first * rank..first * rank + len]);
        }
        let mut codes = self.codes.to_vec();
        for (k, &i) in self.rows.iter().enumerate() {
            codes[i] = self.code(i, &z.row[self.offsets[k]..self.offsets[k + 1]]);
        }
        (dictionary, codes)
    }

    fn code(&self, row: usize, mut unknowns: &[f64]) -> Code {
        let mut code = self.codes[row].clone();
        for active in &mut code {
            let atom = &self.dictionary.atoms[active.atom];
            let (at, rest) = unknowns.split_at(atom.shape.dim());
            active.at[..at.len()].copy_from_slice(at);
            unknowns = rest;
            if atom.is_free() {
                (active.amplitude, unknowns) = (rest[0], &rest[1..]);
            }
        }
        code
    }

    fn basis(&self) -> usize {
        1 + self.dictionary.decoder_rows()
    }

    fn codes_at(&self, z: &Vector) -> Vec<Code> {
        let mut codes = self.codes.to_vec();
        for (k, &i) in self.rows.iter().enumerate() {
            codes[i] = self.code(i, &z.row[self.offsets[k]..self.offsets[k + 1]]);
        }
        codes
    }

    fn at(&self, i: usize, code: &Code, border: &[f64]) -> At {
        let rank = self.dictionary.space.rank;
        let mut at = At {
            h: vec![0.0; self.basis()],
            e: self.y[i * rank..(i + 1) * rank].to_vec(),
            jacobian: Vec::new(),
            prior: Vec::new(),
        };
        at.h[0] = 1.0;
        at.e.iter_mut().zip(border).for_each(|(e, b)| *e -= b);
        for active in code {
            let atom = &self.dictionary.atoms[active.atom];
            let (first, basis) = (self.firsts[active.atom], atom.shape.basis());
            let decoder = &border[first * rank..(first + basis) * rank];
            let jet = atom.shape.jet(active.at);
            let curve = |phi: &[f64; LARGEST_BASIS]| {
                let mut f = vec![0.0; rank];
                for (phi, row) in phi.iter().zip(decoder.chunks_exact(rank)) {
                    f.iter_mut().zip(row).for_each(|(f, b)| *f = phi.mul_add(*b, *f));
                }
                f
            };
            for (h, phi) in at.h[first..first + basis].iter_mut().zip(&jet.value) {
                *h = active.amplitude * phi;
            }
            let value = curve(&jet.value);
            at.e.iter_mut().zip(&value).for_each(|(e, f)| *e -= active.amplitude * f);
            for c in 0..atom.shape.dim() {
                at.jacobian.extend(curve(&jet.first[c]).iter().map(|f| active.amplitude * f));
                at.prior.push((0.0, 0.0));
            }
            if atom.is_free() {
                at.jacobian.extend(value);
                let precision = atom.spread.powi(-2);
                at.prior.push((precision, precision * (active.amplitude - 1.0)));
            }
        }
        at
    }

    /// Every row at a point, in order.
    fn all(&self, z: &Vector) -> Vec<At> {
        let codes = self.codes_at(z);
        codes.par_iter().enumerate().map(|(i, code)| self.at(i, code, &z.border)).collect()
    }

    /// λ_k·S_k, for each border row.
    fn stiffness(&self) -> Vec<f64> {
        stiffness(self.dictionary)
    }

    fn gradient_of(&self, z: &Vector, all: &[At]) -> Vector {
        let (rank, basis, noise) = (self.dictionary.space.rank, self.basis(), self.dictionary.noise);
        let mut gradient = Vector { row: Vec::new(), border: vec![0.0; basis * rank] };
        for &i in &self.rows {
            let at = &all[i];
            for (j, prior) in at.jacobian.chunks_exact(rank).zip(&at.prior) {
                let along: f64 = j.iter().zip(&at.e).map(|(j, e)| j * e).sum();
                gradient.row.push(prior.1 - along / noise);
            }
        }
        let h: Vec<f64> = all.iter().flat_map(|at| at.h.iter().copied()).collect();
        let e: Vec<f64> = all.iter().flat_map(|at| at.e.iter().copied()).collect();
        let (h, e) = (rows(&h, all.len(), basis).transpose(), rows(&e, all.len(), rank));
        matmul(rows_mut(&mut gradient.border, basis, rank), Accum::Replace, h, e, -1.0 / noise, Par::Seq);
        for (k, s) in self.stiffness().iter().enumerate().filter(|(_, s)| **s > 0.0) {
            let at = k * rank..(k + 1) * rank;
            for (g, b) in gradient.border[at.clone()].iter_mut().zip(&z.border[at]) {
                *g += s * b / noise;
            }
        }
        gradient
    }
}

impl Problem for Joint<'_> {
    fn objective(&mut self, z: &Vector) -> f64 {
        let (rank, noise) = (self.dictionary.space.rank, self.dictionary.noise);
        let codes = self.codes_at(z);
        let costs: Vec<f64> = codes
            .par_iter()
            .enumerate()
            .map(|(i, code)| {
                let mut e = self.y[i * rank..(i + 1) * rank].to_vec();
                e.iter_mut().zip(&z.border).for_each(|(e, b)| *e -= b);
                let mut prior = 0.0;
                for active in code {
                    let atom = &self.dictionary.atoms[active.atom];
                    let phi = atom.shape.jet(active.at).value;
                    let decoder = &z.border[self.firsts[active.atom] * rank..];
                    for (phi, row) in phi[..atom.shape.basis()].iter().zip(decoder.chunks_exact(rank)) {
                        let factor = active.amplitude * phi;
                        e.iter_mut().zip(row).for_each(|(e, b)| *e -= factor * b);
                    }
                    if atom.is_free() {
                        prior += 0.5 * ((active.amplitude - 1.0) / atom.spread).powi(2);
                    }
                }
                e.iter().map(|e| e * e).sum::<f64>() / (2.0 * noise) + prior
            })
            .collect();
        let smooth: f64 = self
            .stiffness()
            .iter()
            .zip(z.border.chunks_exact(rank))
            .map(|(s, row)| if *s > 0.0 { s * row.iter().map(|b| b * b).sum::<f64>() } else { 0.0 })
            .sum();
        costs.iter().sum::<f64>() + smooth / (2.0 * noise)
    }

    fn linearise(&mut self, z: &Vector) -> Result<Linearisation, Box<dyn Error + Send + Sync>> {
        let (rank, basis, noise) = (self.dictionary.space.rank, self.basis(), self.dictionary.noise);
        let all = self.all(z);
        let gradient = self.gradient_of(z, &all);
        let (mut blocks, mut values, mut jacobian) = (Vec::new(), Vec::new(), Vec::new());
        for &i in &self.rows {
            let at = &all[i];
            let d = at.prior.len();
            for s in 0..d {
                for t in 0..d {
                    let (a, b) =
                        (&at.jacobian[s * rank..(s + 1) * rank], &at.jacobian[t * rank..(t + 1) * rank]);
                    let product: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                    blocks.push(product / noise + if s == t { at.prior[s].0 } else { 0.0 });
                }
            }
            values.extend(&at.h);
            jacobian.extend(at.jacobian.iter().map(|j| j / noise));
        }
        let mut gram = gram(&all.iter().map(|at| at.h.as_slice()).collect::<Vec<_>>(), basis);
        gram.iter_mut().step_by(basis + 1).zip(self.stiffness()).for_each(|(g, s)| *g += s);
        gram.iter_mut().for_each(|g| *g /= noise);
        let cross = Cross::Factored { basis, values, jacobian };
        let border = Border::Kronecker { basis, gram };
        let system = System::new(Rows::Ragged(self.offsets.clone()), basis * rank, blocks, cross, border)?;
        Ok(Linearisation { gradient, hessian: Arc::new(system) })
    }

    fn gradient(&mut self, z: &Vector) -> Result<Vector, Box<dyn Error + Send + Sync>> {
        Ok(self.gradient_of(z, &self.all(z)))
    }

    fn retract(&self, z: &Vector, step: &Vector) -> Vector {
        let mut next = z.clone();
        next.border.iter_mut().zip(&step.border).for_each(|(z, s)| *z += s);
        let mut at = 0;
        for &i in &self.rows {
            for active in &self.codes[i] {
                let atom = &self.dictionary.atoms[active.atom];
                let d = atom.shape.dim();
                let mut t = [0.0; 2];
                let mut move_by = [0.0; 2];
                t[..d].copy_from_slice(&z.row[at..at + d]);
                move_by[..d].copy_from_slice(&step.row[at..at + d]);
                next.row[at..at + d].copy_from_slice(&atom.shape.retract(t, move_by)[..d]);
                at += d;
                if atom.is_free() {
                    next.row[at] += step.row[at];
                    at += 1;
                }
            }
        }
        next
    }
}
