use faer::linalg::matmul::matmul;
use faer::linalg::solvers::Solve;
use faer::{Accum, Mat, Par, Side};

use super::model::{Centre, Code, Dictionary};
use super::{Atom, AtomsError};
use crate::ops::matmul::rows;

/// Ridge of the decoders' normal equations, as a share of their diagonal: far above rounding, and what chooses between
/// the base and the constant of an atom that is on in every row.
const RELATIVE_RIDGE: f64 = 1e-9;

/// Stiffness of a base that is held at the mean of the rows.
const HELD: f64 = 1e9;

/// The decoders' normal equations for fixed codes: factored once, they give the decoders and their uncertainty.
pub struct Regression {
    inverse: Mat<f64>,
    decoders: Mat<f64>,
}

impl Regression {
    /// `(Σ h hᵀ + λS) B = Σ h yᵀ`, (1 + Σ M) x r.
    ///
    /// # Errors
    /// Equations that are not positive definite: never with rows that are finite.
    pub fn solve(y: &[f64], dictionary: &Dictionary, codes: &[Code]) -> Result<Self, AtomsError> {
        let (rank, basis) = (dictionary.space.rank, 1 + dictionary.decoder_rows());
        let firsts = firsts(dictionary);
        let h: Vec<Vec<f64>> = codes
            .iter()
            .map(|code| {
                let mut h = vec![0.0; basis];
                h[0] = 1.0;
                for active in code {
                    let shape = dictionary.atoms[active.atom].shape;
                    let phi = shape.jet(active.at).value;
                    let first = firsts[active.atom];
                    for (h, phi) in h[first..first + shape.basis()].iter_mut().zip(&phi) {
                        *h = active.amplitude * phi;
                    }
                }
                h
            })
            .collect();
        let gram = gram(&h.iter().map(Vec::as_slice).collect::<Vec<_>>(), basis);
        let mut gram = Mat::from_fn(basis, basis, |i, j| gram[i * basis + j]);
        for (k, s) in stiffness(dictionary).iter().enumerate() {
            // An atom that is on nowhere has a diagonal of 0.
            gram[(k, k)] = gram[(k, k)] * (1.0 + RELATIVE_RIDGE) + s + f64::MIN_POSITIVE.sqrt();
        }
        let flat: Vec<f64> = h.concat();
        let mut right = Mat::zeros(basis, rank);
        let n = codes.len();
        let (h, y) = (rows(&flat, n, basis).transpose(), rows(y, n, rank));
        matmul(right.as_mut(), Accum::Replace, h, y, 1.0, Par::Seq);
        let llt = gram.llt(Side::Lower).map_err(|_| AtomsError::Decoders)?;
        let decoders = llt.solve(&right);
        let inverse = llt.solve(Mat::<f64>::identity(basis, basis));
        Ok(Self { inverse, decoders })
    }

    /// The decoders into a dictionary.
    pub fn write(&self, dictionary: &mut Dictionary) {
        let rank = dictionary.space.rank;
        let row = |k: usize| (0..rank).map(move |l| self.decoders[(k, l)]);
        dictionary.base = row(0).collect();
        let firsts = firsts(dictionary);
        for (atom, first) in dictionary.atoms.iter_mut().zip(firsts) {
            atom.decoder = (first..first + atom.shape.basis()).flat_map(row).collect();
        }
    }

    /// `tr(V S)` of an atom, V the covariance of its decoder's columns over σ².
    pub fn smoothness_trace(&self, dictionary: &Dictionary, atom: usize) -> f64 {
        let first = firsts(dictionary)[atom];
        let shape = dictionary.atoms[atom].shape;
        let s = shape.smoothness();
        (0..shape.basis()).map(|k| s[k] * self.inverse[(first + k, first + k)]).sum()
    }
}

/// First border row of each atom; the base is row 0.
pub fn firsts(dictionary: &Dictionary) -> Vec<usize> {
    let mut next = 1;
    let first = |atom: &Atom| {
        next += atom.shape.basis();
        next - atom.shape.basis()
    };
    dictionary.atoms.iter().map(first).collect()
}

/// λ_k·S_k for each border row.
pub fn stiffness(dictionary: &Dictionary) -> Vec<f64> {
    // Far stiffer than any number of rows in this space, whose variance is 1.
    let held = if dictionary.centre == Centre::Mean { HELD } else { 0.0 };
    let mut all = vec![held];
    for atom in &dictionary.atoms {
        let first = all.len();
        all.extend(atom.shape.smoothness()[..atom.shape.basis()].iter().map(|s| atom.smoothing * s));
        all[first] = held;
    }
    all
}

/// `Σ h hᵀ`, both triangles, exactly symmetric.
pub fn gram(all: &[&[f64]], basis: usize) -> Vec<f64> {
    let mut gram = vec![0.0; basis * basis];
    for h in all {
        for (i, a) in h.iter().enumerate().filter(|(_, a)| **a != 0.0) {
            gram[i * basis..=i * basis + i].iter_mut().zip(*h).for_each(|(g, b)| *g += a * b);
        }
    }
    for i in 0..basis {
        for j in 0..i {
            gram[j * basis + i] = gram[i * basis + j];
        }
    }
    gram
}
