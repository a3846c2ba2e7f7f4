use std::f64::consts::TAU;

use faer::{Mat, Side};

use super::density::Density;
use super::signal::Signal;
use crate::ops::splitmix::SplitMix64;

/// Rounds of one ascent.
const ROUNDS: usize = 60;

/// Rows in a few whitened directions that do not look like a normal distribution: a shell of radius R around a centre,
/// which is a pair of points' worth of a ray for m = 1, a ring for m = 2, a sphere for m = 3, and a cluster at the
/// centre where the atom is off.
#[derive(Clone, Debug)]
pub struct Shell {
    /// W, q x m, orthonormal columns.
    pub w: Mat<f64>,
    /// Coordinates around the centre, n x m.
    pub z: Vec<f64>,
    /// Probability that the atom is on, for each row.
    pub on: Vec<f64>,
    pub radius: f64,
    /// Width of the shell.
    pub width: f64,
    /// Log-likelihood over that of a normal distribution, less what choosing the directions costs.
    pub gain: f64,
}

impl Shell {
    /// For m = 1, the same clusters with their parts exchanged.
    pub fn turned(&self, width: f64) -> Self {
        Self {
            w: &self.w * faer::Scale(-1.0),
            z: self.z.iter().map(|z| self.radius - z).collect(),
            on: self.on.iter().map(|on| 1.0 - on).collect(),
            width,
            ..self.clone()
        }
    }
}

/// The best shells of m dimensions, distinct, the best first.
pub fn shells(signal: &Signal, m: usize, seed: u64, keep: usize) -> Vec<Shell> {
    let q = signal.dim;
    if q < m {
        return Vec::new();
    }
    let mut random = SplitMix64::new(seed ^ (m as u64) << 32);
    let mut starts: Vec<Mat<f64>> = Vec::new();
    if q == m {
        starts.push(Mat::identity(q, m));
    } else {
        starts.extend(consensus(signal, m, &mut random));
        for _ in 0..(2 * q) {
            let columns: Vec<Vec<f64>> = (0..m).map(|_| (0..q).map(|_| random.signed()).collect()).collect();
            starts.extend(orthonormal(&columns, q));
        }
    }
    use rayon::prelude::*;
    let mut all: Vec<Shell> = starts
        .into_par_iter()
        .flat_map_iter(|w| {
            let signs: &[f64] = if m == 1 { &[1.0, -1.0] } else { &[1.0] };
            signs.iter().filter_map(|sign| ascend(signal, &w * faer::Scale(*sign))).collect::<Vec<_>>()
        })
        .collect();
    all.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    let mut kept: Vec<Shell> = Vec::new();
    for shell in all {
        if kept.len() < keep && kept.iter().all(|other| overlap(&other.w, &shell.w) < 0.8) {
            kept.push(shell);
        }
    }
    kept
}

/// `‖W₁ᵀW₂‖²/m`: 1 for the same directions.
fn overlap(a: &Mat<f64>, b: &Mat<f64>) -> f64 {
    let product = a.transpose() * b;
    product.norm_l2().powi(2) / a.ncols() as f64
}

/// Directions through few rows that many others lie on: what rows with one active atom show.
fn consensus(signal: &Signal, m: usize, random: &mut SplitMix64) -> Vec<Mat<f64>> {
    const TRIED: usize = 1200;
    const KEPT: usize = 8;
    let (n, q) = (signal.rows, signal.dim);
    let norm = |i: usize| signal.row(i).iter().map(|v| v * v).sum::<f64>();
    let quiet = 6.0 * q as f64 * signal.noise;
    let mut loud: Vec<(f64, usize)> = (0..n).map(|i| (norm(i), i)).filter(|(v, _)| *v > quiet).collect();
    loud.sort_by(|a, b| a.0.total_cmp(&b.0));
    loud.truncate((n / 3).max(24));
    if loud.len() < m {
        return Vec::new();
    }
    let allowed = 3.0 * (q - m) as f64 * signal.noise + 1e-6;
    let mut scored: Vec<(usize, Mat<f64>)> = Vec::new();
    for trial in 0..TRIED.min(loud.len().pow(m as u32)) {
        let pick = |random: &mut SplitMix64| loud[(random.uniform() * loud.len() as f64) as usize].1;
        let picked: Vec<Vec<f64>> = (0..m)
            .map(|_| {
                let i = if m == 1 { loud[trial % loud.len()].1 } else { pick(random) };
                signal.row(i).to_vec()
            })
            .collect();
        let Some(w) = orthonormal(&picked, q) else { continue };
        let z = signal.on(&w);
        let count = (0..n)
            .filter(|i| {
                let (all, on) = (norm(*i), z[i * m..(i + 1) * m].iter().map(|v| v * v).sum::<f64>());
                all - on < allowed && on > quiet
            })
            .count();
        scored.push((count, w));
    }
    scored.sort_by_key(|scored| std::cmp::Reverse(scored.0));
    let mut kept: Vec<Mat<f64>> = Vec::new();
    for (_, w) in scored {
        if kept.len() < KEPT && kept.iter().all(|other| overlap(other, &w) < 0.8) {
            kept.push(w);
        }
    }
    kept
}

/// Columns made orthonormal; `None` where they do not span enough.
fn orthonormal(columns: &[Vec<f64>], q: usize) -> Option<Mat<f64>> {
    let mut done: Vec<Vec<f64>> = Vec::new();
    for column in columns {
        let mut v = column.clone();
        let before = v.iter().map(|v| v * v).sum::<f64>().sqrt();
        for _ in 0..2 {
            for other in &done {
                let along: f64 = other.iter().zip(&v).map(|(a, b)| a * b).sum();
                v.iter_mut().zip(other).for_each(|(v, o)| *v -= along * o);
            }
        }
        let length = v.iter().map(|v| v * v).sum::<f64>().sqrt();
        if length.is_nan() || length <= 0.05 * before {
            return None;
        }
        done.push(v.iter().map(|v| v / length).collect());
    }
    Some(Mat::from_fn(q, done.len(), |i, k| done[k][i]))
}

/// Ascent of the likelihood of a shell by its directions and its density: each round the squared distances to the
/// nearest points of shell and centre bound it from below, and the polar factor of a linear form raises the bound.
fn ascend(signal: &Signal, mut w: Mat<f64>) -> Option<Shell> {
    let (n, q, m) = (signal.rows, signal.dim, w.ncols());
    let mut density = Density::start(&signal.on(&w), n, m);
    let mut last = f64::NEG_INFINITY;
    for round in 0..ROUNDS {
        let z = signal.on(&w);
        let on = density.posterior(&z, m);
        density.update(&z, &on, m);
        let value = density.log_likelihood(&z, m);
        if !value.is_finite() {
            return None;
        }
        if round > 8 && (value - last).abs() < 1e-4 {
            break;
        }
        last = value;
        if q == m && m > 1 {
            continue;
        }
        w = polar(&raised(signal, &w, &density, (&z, &on))?)?;
    }
    Some(judged(signal, w, &density))
}

/// The linear form in W that bounds the likelihood from below, for rows at z whose atoms are on with some probability.
fn raised(signal: &Signal, w: &Mat<f64>, density: &Density, (z, on): (&[f64], &[f64])) -> Option<Mat<f64>> {
    let (n, q, m) = (signal.rows, signal.dim, w.ncols());
    let weights = density.widths.map(|s| s.powi(-2));
    // A: Σ weight·y yᵀ; C: Σ weight·y target.
    let (mut a, mut c) = (Mat::<f64>::zeros(q, q), Mat::<f64>::zeros(q, m));
    for i in 0..n {
        let y = signal.row(i);
        let z = &z[i * m..(i + 1) * m];
        let target = density.target(z, m);
        let (g, h) = (on[i] * weights[0], (1.0 - on[i]) * weights[1]);
        for j in 0..q {
            for l in 0..=j {
                a[(j, l)] += (g + h - 1.0) * y[j] * y[l];
            }
            for k in 0..m {
                c[(j, k)] += y[j] * (g * target[k] + h * density.centre[k]);
            }
        }
    }
    for j in 0..q {
        for l in 0..j {
            a[(l, j)] = a[(j, l)];
        }
    }
    let largest = a.self_adjoint_eigenvalues(Side::Lower).ok()?.last().copied()?.max(0.0);
    Some(w * faer::Scale(largest) - &a * w + c)
}

/// A shell with its gain, the simpler or the turned one where that is better.
fn judged(signal: &Signal, w: Mat<f64>, density: &Density) -> Shell {
    let (n, q, m) = (signal.rows, signal.dim, w.ncols());
    let z = signal.on(&w);
    let on = density.posterior(&z, m);
    let choice = (m * (q - m)) as f64;
    let normal: f64 = z.iter().map(|z| 0.5 * (z * z + TAU.ln())).sum();
    let cost = |numbers: f64| 0.5 * (n as f64).ln() * (choice + numbers);
    let gain = density.log_likelihood(&z, m) + normal - cost((4 + m) as f64);
    // A shell around the mean that is on in every row has two numbers alone.
    if m > 1 {
        let even = Density::even(&z, n, m);
        let plain = even.log_likelihood(&z, m) + normal - cost(2.0);
        if plain > gain {
            let (radius, width) = (even.radius, even.widths[0]);
            return Shell { w, z, on: vec![1.0; n], radius, width, gain: plain };
        }
    }
    let z = z
        .chunks_exact(m)
        .flat_map(|z| (0..m).map(|k| z[k] - density.centre[k]).collect::<Vec<_>>())
        .collect();
    let shell = Shell { w, z, on, radius: density.radius, width: density.widths[0], gain };
    // Of two clusters on a line the narrow one, or the larger of two alike, is where nothing is on.
    let [far, near] = density.widths;
    let alike = far / near > 0.7 && far / near < 1.4;
    let turned = m == 1 && if alike { density.share > 0.5 } else { far < near };
    if turned { shell.turned(near) } else { shell }
}

fn polar(a: &Mat<f64>) -> Option<Mat<f64>> {
    let svd = a.thin_svd().ok()?;
    Some(svd.U() * svd.V().transpose())
}
