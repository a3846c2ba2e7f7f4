//! First guesses of an atom: which rows it is on in, and where on it they lie.

use std::f64::consts::TAU;

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par, Side};

use super::model::{Active, Atom, Code, Dictionary};
use super::search::Shell;
use super::shape::angles;
use super::signal::Signal;
use super::{Shape, refine::Fitted};
use crate::ops::matmul::rows;

/// Standard deviation of a ray's amplitude at the start.
const FIRST_SPREAD: f64 = 0.4;

/// A guess of one atom: coordinate and amplitude for each row, `None` where it is off.
#[derive(Clone, Debug)]
pub struct Guess {
    pub shape: Shape,
    pub at: Vec<Option<([f64; 2], f64)>>,
}

impl Guess {
    /// A circle through a ring: coordinates are angles over 2π.
    pub fn circle(shell: &Shell) -> Self {
        let at = |z: &[f64]| ([z[1].atan2(z[0]).rem_euclid(TAU) / TAU, 0.0], 1.0);
        Self { shape: Shape::Circle(1), at: on(shell, 2, at) }
    }

    /// A sphere through a shell in three dimensions.
    pub fn sphere(shell: &Shell) -> Self {
        Self { shape: Shape::Sphere(1), at: on(shell, 3, |z| (angles([z[0], z[1], z[2]]), 1.0)) }
    }

    /// A ray on the far cluster, or a line without offset where the cluster is wider than it is far.
    pub fn ray(shell: &Shell) -> Self {
        if shell.radius < shell.width {
            return Self { shape: Shape::Line, at: on(shell, 1, |z| ([z[0] / shell.width, 0.0], 1.0)) };
        }
        let at = |z: &[f64]| ([0.0; 2], (z[0] / shell.radius).max(0.05));
        Self { shape: Shape::Ray, at: on(shell, 1, at) }
    }

    /// A line where a ray is on, with coordinates in a further direction.
    pub fn line(shell: &Shell, along: &[f64]) -> Self {
        let lit: Vec<f64> =
            along.iter().zip(&shell.on).filter(|(_, on)| **on > 0.5).map(|(a, _)| *a).collect();
        let (mean, spread) = moments(&lit);
        let at = (along.iter().zip(&shell.on))
            .map(|(a, on)| (*on > 0.5).then(|| ([(a - mean) / spread, 0.0], 1.0)))
            .collect();
        Self { shape: Shape::Line, at }
    }

    /// Atoms that are on in every row, with normal coordinates along given directions (r x m).
    pub fn everywhere(shape: Shape, e: &[f64], rank: usize, axes: &Mat<f64>) -> Option<Self> {
        let n = e.len() / rank;
        let m = axes.ncols();
        let scores = scores(e, rank, axes);
        let mut scale = [1.0; 2];
        for (k, scale) in scale.iter_mut().enumerate().take(m) {
            *scale = ((0..n).map(|i| scores[i * m + k].powi(2)).sum::<f64>() / n as f64).sqrt();
            if scale.is_nan() || *scale <= 0.0 {
                return None;
            }
        }
        let t = |i: usize, k: usize| if k < m { scores[i * m + k] / scale[k] } else { 0.0 };
        Some(Self { shape, at: (0..n).map(|i| Some(([t(i, 0), t(i, 1)], 1.0))).collect() })
    }

    /// Tori in three directions of the residual (r x 3): each of them as the axis.
    pub fn tori(e: &[f64], rank: usize, axes: &Mat<f64>) -> Vec<Self> {
        let z = scores(e, rank, axes);
        (0..3)
            .map(|axis| {
                let (a, b) = ((axis + 1) % 3, (axis + 2) % 3);
                let ring = z.chunks_exact(3).map(|z| z[a].hypot(z[b])).sum::<f64>() / (z.len() / 3) as f64;
                let at = |z: &[f64]| {
                    let u = z[b].atan2(z[a]).rem_euclid(TAU) / TAU;
                    let v = z[axis].atan2(z[a].hypot(z[b]) - ring).rem_euclid(TAU) / TAU;
                    Some(([u, v], 1.0))
                };
                Self { shape: Shape::Torus, at: z.chunks_exact(3).map(at).collect() }
            })
            .collect()
    }
}

/// Mean and standard deviation, the latter above 0.
pub fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    (mean, variance.sqrt().max(1e-12))
}

fn on<T>(shell: &Shell, m: usize, at: impl Fn(&[f64]) -> T) -> Vec<Option<T>> {
    shell.z.chunks_exact(m).zip(&shell.on).map(|(z, on)| (*on > 0.5).then(|| at(z))).collect()
}

/// The directions of the residual (r x m, orthonormal) that whitened ones (q x m) reach.
pub fn span(signal: &Signal, w: &Mat<f64>) -> Option<Mat<f64>> {
    let svd = (&signal.directions * w).thin_svd().ok()?;
    Some(svd.U().to_owned())
}

/// The widest directions (r x m) of rows, around their mean.
fn widest(e: &[f64], rank: usize, m: usize) -> Option<Mat<f64>> {
    let lit: Vec<&[f64]> = e.chunks_exact(rank).collect();
    if lit.len() < 3 {
        return None;
    }
    let count = lit.len() as f64;
    let mean: Vec<f64> = (0..rank).map(|j| lit.iter().map(|e| e[j]).sum::<f64>() / count).collect();
    let centred = Mat::from_fn(lit.len(), rank, |i, j| lit[i][j] - mean[j]);
    let mut gram = Mat::zeros(rank, rank);
    matmul(gram.as_mut(), Accum::Replace, centred.transpose(), &centred, 1.0, Par::Seq);
    let eigen = gram.self_adjoint_eigen(Side::Lower).ok()?;
    Some(Mat::from_fn(rank, m.min(rank), |i, k| eigen.U()[(i, rank - 1 - k)]))
}

/// The principal directions of the residual inside the span of some (r x m).
pub fn principal(e: &[f64], rank: usize, axes: &Mat<f64>) -> Option<Mat<f64>> {
    let m = axes.ncols();
    let z = scores(e, rank, axes);
    let inside = widest(&z, m, m)?;
    Some(axes * inside)
}

fn scores(e: &[f64], rank: usize, axes: &Mat<f64>) -> Vec<f64> {
    let n = e.len() / rank;
    let mut z = vec![0.0; n * axes.ncols()];
    let out = crate::ops::matmul::rows_mut(&mut z, n, axes.ncols());
    matmul(out, Accum::Replace, rows(e, n, rank), axes, 1.0, Par::Seq);
    z
}

/// A fit with guessed atoms added; their decoders are for the first regression to find.
pub fn with(fitted: &Fitted, guesses: &[Guess]) -> (Dictionary, Vec<Code>) {
    let (mut dictionary, mut codes) = (fitted.dictionary.clone(), fitted.codes.clone());
    let rank = dictionary.space.rank;
    for Guess { shape, at } in guesses {
        let atom = dictionary.atoms.len();
        let on = at.iter().flatten().count();
        dictionary.atoms.push(Atom {
            shape: *shape,
            decoder: vec![0.0; shape.basis() * rank],
            spread: if *shape == Shape::Ray { FIRST_SPREAD } else { 0.0 },
            activity: (on as f64 + 0.5) / (at.len() as f64 + 1.0),
            smoothing: 0.0,
        });
        for (code, at) in codes.iter_mut().zip(at) {
            let active = |(at, amplitude)| Active { atom, at, amplitude };
            code.extend(at.map(active));
        }
    }
    (dictionary, codes)
}

/// The directions (r x m at most, orthonormal) in which an atom reaches farthest, its constant counted or not; those in
/// which it reaches less than `share` of the farthest are left out.
pub fn reach(atom: &Atom, m: usize, constant: bool, share: f64) -> Option<Mat<f64>> {
    let (rank, skip) = (atom.rank(), usize::from(!constant));
    let basis = atom.shape.basis() - skip;
    let b = Mat::from_fn(rank, basis, |l, k| atom.decoder[(k + skip) * rank + l]);
    let svd = b.thin_svd().ok()?;
    let lengths = svd.S().column_vector();
    let most = lengths.iter().take_while(|length| **length > share * lengths[0]).count();
    Some(svd.U().subcols(0, m.min(most)).to_owned())
}
