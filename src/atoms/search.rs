use std::f64::consts::TAU;

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par, Side};

use crate::ops::matmul::rows;
use crate::ops::splitmix::SplitMix64;

/// Dimensions in which candidates are looked for.
const LARGEST_SIGNAL: usize = 12;

/// Rounds of one ascent.
const ROUNDS: usize = 60;

/// A width is at least this over √n of the unit in which a whitened coordinate varies: equal rows are no proof of a
/// width of nothing.
const LEAST_WIDTH: f64 = 1.0;

/// What is left to explain, with equal variance in every direction: `z = e·U/√λ`, for the q directions in which the
/// residual varies more than noise does.
#[derive(Clone, Debug)]
pub struct Signal {
    pub rows: usize,
    /// q; 0 where nothing stands out.
    pub dim: usize,
    /// n x q.
    pub white: Vec<f64>,
    /// U√λ, r x q: the residual is its mean and this times the whitened coordinates.
    pub directions: Mat<f64>,
    /// Mean variance of the noise in a whitened direction.
    pub noise: f64,
}

impl Signal {
    /// Directions of a residual (n x r) whose variance lies above the edge that noise alone reaches,
    /// `σ²(1 + √(r/n))²` (Marchenko and Pastur). Without a known σ² it is the median variance. The widest come first, `most` of them at most.
    pub fn of(e: &[f64], rank: usize, known: Option<f64>, most: usize) -> Option<Self> {
        let n = e.len() / rank;
        let mean: Vec<f64> =
            (0..rank).map(|j| (0..n).map(|i| e[i * rank + j]).sum::<f64>() / n as f64).collect();
        let centred = Mat::from_fn(n, rank, |i, j| e[i * rank + j] - mean[j]);
        let mut gram = Mat::zeros(rank, rank);
        matmul(gram.as_mut(), Accum::Replace, centred.transpose(), &centred, 1.0 / n as f64, Par::Seq);
        let eigen = gram.self_adjoint_eigen(Side::Lower).ok()?;
        let values: Vec<f64> = (0..rank).rev().map(|k| eigen.S().column_vector()[k].max(0.0)).collect();
        // With so few directions the median is signal; what is born then has the criterion alone to pass.
        let median = if rank >= 8 { values[rank / 2] } else { 0.0 };
        let floor = known.map_or(median, |known| if rank >= 8 { known.min(median * 1.5) } else { known });
        let edge = 1.1 * floor * (1.0 + (rank as f64 / n as f64).sqrt()).powi(2);
        let least = 1e-12 * values[0];
        let dim = values.iter().take_while(|v| **v > edge.max(least)).count().min(LARGEST_SIGNAL).min(most);
        let mut directions = Mat::zeros(rank, dim);
        let mut white = vec![0.0; n * dim];
        for k in 0..dim {
            let u = eigen.U().col(rank - 1 - k);
            let along: Vec<f64> = (0..n).map(|i| (0..rank).map(|j| centred[(i, j)] * u[j]).sum()).collect();
            // The sign for which the third moment is above zero.
            let sign = if along.iter().map(|a| a.powi(3)).sum::<f64>() < 0.0 { -1.0 } else { 1.0 };
            let length = values[k].sqrt();
            (0..rank).for_each(|i| directions[(i, k)] = sign * length * u[i]);
            along.iter().enumerate().for_each(|(i, a)| white[i * dim + k] = sign * a / length);
        }
        let noise = values[..dim].iter().map(|v| floor / v).sum::<f64>() / dim.max(1) as f64;
        Some(Self { rows: n, dim, white, directions, noise })
    }

    /// The same without some whitened directions (q x m).
    pub fn without(&self, w: &Mat<f64>) -> Option<Self> {
        Some(self.within(&complement(w)?))
    }

    /// The same in some whitened directions alone (q x m).
    pub fn within(&self, w: &Mat<f64>) -> Self {
        Self {
            rows: self.rows,
            dim: w.ncols(),
            white: self.on(w),
            directions: &self.directions * w,
            noise: self.noise,
        }
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.white[i * self.dim..(i + 1) * self.dim]
    }

    /// Coordinates of all rows on the columns of W (q x m), n x m.
    pub fn on(&self, w: &Mat<f64>) -> Vec<f64> {
        let m = w.ncols();
        let mut z = vec![0.0; self.rows * m];
        let white = rows(&self.white, self.rows, self.dim);
        matmul(crate::ops::matmul::rows_mut(&mut z, self.rows, m), Accum::Replace, white, w, 1.0, Par::Seq);
        z
    }
}

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

/// The density of a shell: `(1 − π)·N(z; c, s₀²I) + π·N(‖z − c‖; R, s₁²)/(A_m‖z − c‖^(m−1))`.
struct Density {
    centre: [f64; 3],
    radius: f64,
    share: f64,
    widths: [f64; 2],
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

/// The directions orthogonal to some (q x m): eigenvectors of W Wᵀ at 0.
pub fn complement(w: &Mat<f64>) -> Option<Mat<f64>> {
    let eigen = (w * w.transpose()).self_adjoint_eigen(Side::Lower).ok()?;
    Some(eigen.U().subcols(0, w.nrows() - w.ncols()).to_owned())
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
        let raised = &w * faer::Scale(largest) - &a * &w + c;
        w = polar(&raised)?;
    }
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
            return Some(Shell { w, z, on: vec![1.0; n], radius, width, gain: plain });
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
    Some(if turned { shell.turned(near) } else { shell })
}

fn polar(a: &Mat<f64>) -> Option<Mat<f64>> {
    let svd = a.thin_svd().ok()?;
    Some(svd.U() * svd.V().transpose())
}

impl Density {
    fn start(z: &[f64], n: usize, m: usize) -> Self {
        let mut radii: Vec<f64> = if m == 1 {
            z.to_vec()
        } else {
            z.chunks_exact(m).map(|z| z.iter().map(|v| v * v).sum::<f64>().sqrt()).collect()
        };
        radii.sort_by(f64::total_cmp);
        let upper = &radii[n / 2..];
        let radius = upper.iter().sum::<f64>() / upper.len() as f64;
        let mut centre = [0.0; 3];
        let mut radius = radius.max(0.3);
        if m == 1 {
            // Two clusters: the lower half is where the other one is.
            centre[0] = radii[..n / 2].iter().sum::<f64>() / (n / 2).max(1) as f64;
            radius -= centre[0];
        }
        Self { centre, radius, share: 0.6, widths: [0.4 * radius, 0.4 * radius] }
    }

    /// A shell around the origin, on in every row.
    fn even(z: &[f64], n: usize, m: usize) -> Self {
        let radii: Vec<f64> =
            z.chunks_exact(m).map(|z| z.iter().map(|v| v * v).sum::<f64>().sqrt()).collect();
        let radius = radii.iter().sum::<f64>() / n as f64;
        let width = (radii.iter().map(|d| (d - radius).powi(2)).sum::<f64>() / n as f64).sqrt();
        let width = width.max(LEAST_WIDTH / (n as f64).sqrt());
        Self { centre: [0.0; 3], radius, share: 1.0, widths: [width, 1.0] }
    }

    /// Log-densities of shell and cluster, with their shares.
    fn logs(&self, z: &[f64], m: usize) -> [f64; 2] {
        let mut square = 0.0;
        for (z, c) in z.iter().zip(&self.centre) {
            square += (z - c).powi(2);
        }
        let [s1, s0] = self.widths;
        let distance = if m == 1 { z[0] - self.centre[0] } else { square.sqrt() };
        let area = match m {
            1 => 1.0,
            2 => TAU * distance.max(1e-12),
            _ => 2.0 * TAU * (distance * distance).max(1e-24),
        };
        let shell = self.share.ln()
            - 0.5 * ((distance - self.radius) / s1).powi(2)
            - s1.ln()
            - 0.5 * TAU.ln()
            - area.ln();
        let cluster =
            (1.0 - self.share).ln() - 0.5 * square / (s0 * s0) - m as f64 * (s0.ln() + 0.5 * TAU.ln());
        [shell, cluster]
    }

    fn posterior(&self, z: &[f64], m: usize) -> Vec<f64> {
        z.chunks_exact(m)
            .map(|z| {
                let [shell, cluster] = self.logs(z, m);
                1.0 / (1.0 + (cluster - shell).exp())
            })
            .collect()
    }

    fn log_likelihood(&self, z: &[f64], m: usize) -> f64 {
        z.chunks_exact(m)
            .map(|z| {
                let [a, b] = self.logs(z, m);
                let top = a.max(b);
                top + ((a - top).exp() + (b - top).exp()).ln()
            })
            .sum()
    }

    /// The point of the shell that lies nearest.
    fn target(&self, z: &[f64], m: usize) -> [f64; 3] {
        let mut d = [0.0; 3];
        (0..m).for_each(|k| d[k] = z[k] - self.centre[k]);
        let length = if m == 1 { 1.0 } else { d.iter().map(|d| d * d).sum::<f64>().sqrt().max(1e-12) };
        if m == 1 {
            d[0] = 1.0;
        }
        std::array::from_fn(|k| self.centre[k] + self.radius * d[k] / length)
    }

    fn update(&mut self, z: &[f64], on: &[f64], m: usize) {
        let n = on.len() as f64;
        let lit: f64 = on.iter().sum();
        let dark = n - lit;
        self.share = ((lit + 0.5) / (n + 1.0)).clamp(1e-6, 1.0 - 1e-6);
        let [s1, s0] = self.widths.map(|s| s.powi(-2));
        // The centre, from the cluster and from what the shell's points say of it.
        let mut centre = [0.0; 3];
        let mut weight = 0.0;
        for (z, on) in z.chunks_exact(m).zip(on) {
            let target = self.target(z, m);
            let (g, h) = (if m == 1 { 0.0 } else { on * s1 }, (1.0 - on) * s0);
            weight += g + h;
            for k in 0..m {
                centre[k] += g * (z[k] - target[k] + self.centre[k]) + h * z[k];
            }
        }
        if weight > 1e-9 {
            centre.iter_mut().for_each(|c| *c /= weight);
            self.centre = centre;
        }
        let (mut radius, mut cluster) = (0.0, 0.0);
        let distance = |z: &[f64], centre: &[f64; 3]| {
            if m == 1 {
                z[0] - centre[0]
            } else {
                (0..m).map(|k| (z[k] - centre[k]).powi(2)).sum::<f64>().sqrt()
            }
        };
        for (z, on) in z.chunks_exact(m).zip(on) {
            let d = distance(z, &self.centre);
            radius += on * d;
            cluster += (1.0 - on) * d * d;
        }
        if lit > 1e-6 {
            self.radius = radius / lit;
        }
        let width: f64 = z
            .chunks_exact(m)
            .zip(on)
            .map(|(z, on)| on * (distance(z, &self.centre) - self.radius).powi(2))
            .sum();
        let floor = |s: f64| s.max(LEAST_WIDTH / n.sqrt());
        self.widths = [
            floor((width / lit.max(1e-6)).sqrt()),
            floor(if dark > 1.0 { (cluster / (dark * m as f64)).sqrt() } else { self.widths[1] }),
        ];
    }
}
