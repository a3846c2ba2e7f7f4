use rayon::prelude::*;

use super::model::{Active, Atom, Code, Dictionary};
use super::shape::{Jet, LARGEST_BASIS};

/// Sweeps over the atoms of a row; coordinates of atoms that are nearly orthogonal settle in a few.
const SWEEPS: usize = 60;

/// A coordinate that moved by less than this has settled.
const SETTLED: f64 = 1e-10;

/// A row's code and what it costs.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub code: Code,
    /// Negative log-likelihood in nats, coordinates and amplitudes integrated out by Laplace's method.
    pub cost: f64,
}

/// Finds, row by row, which atoms are on and where on them the row lies, decoders fixed: minimises
///
/// ```text
///     ‖e‖²/2σ² + (r/2) log 2πσ² + Σ_on (energy of t and a + ½ log(1 + h/c) − log π) + Σ_off −log(1 − π)
/// ```
///
/// with h the precision of a coordinate and c that of its prior.
pub struct Coder<'a> {
    dictionary: &'a Dictionary,
    atoms: Vec<Prepared>,
}

/// What a search on one atom needs, in its M dimensions: with `c = B·e` and `G = B·Bᵀ`,
/// `‖e − a·Bᵀφ‖² = ‖e‖² + a²φᵀGφ − 2a·φᵀc`.
struct Prepared {
    gram: [[f64; LARGEST_BASIS]; LARGEST_BASIS],
    starts: Vec<([f64; 2], [f64; LARGEST_BASIS], f64)>,
    on: f64,
    off: f64,
}

struct Proposal {
    active: Active,
    /// Against the atom being off, gates not counted.
    cost: f64,
}

impl<'a> Coder<'a> {
    /// Prepares the searches on each atom.
    pub fn new(dictionary: &'a Dictionary) -> Self {
        let atoms = dictionary.atoms.iter().map(Prepared::new).collect();
        Self { dictionary, atoms }
    }

    /// All rows (n x r), beginning from the codes of before where there are any; a start from nothing is always tried.
    pub fn resolve(&self, y: &[f64], before: Option<&[Code]>) -> Vec<Resolved> {
        let rank = self.dictionary.space.rank;
        y.par_chunks(rank)
            .enumerate()
            .map(|(i, row)| {
                let fresh = self.grow(row, None);
                match before {
                    Some(before) if !before[i].is_empty() => {
                        let kept = self.settle(row, before[i].clone());
                        // Equal ones to rounding: the one that was there stays.
                        if kept.cost <= fresh.cost + 1e-9 { kept } else { fresh }
                    }
                    _ => fresh,
                }
            })
            .collect()
    }

    /// Rows without codes of before, more thoroughly: from nothing, and with each atom as the first one.
    pub fn encode(&self, y: &[f64]) -> Vec<Resolved> {
        y.par_chunks(self.dictionary.space.rank)
            .map(|row| {
                let mut best = self.grow(row, None);
                let firsts = if self.atoms.len() > 1 { 0..self.atoms.len() } else { 0..0 };
                for k in firsts {
                    let other = self.grow(row, Some(k));
                    // Equal ones to rounding: the plain search's stays.
                    if other.cost < best.cost - 1e-9 {
                        best = other;
                    }
                }
                best
            })
            .collect()
    }

    /// The atom that gains most, until none gains; `first` is on at the start whether it gains or not.
    fn grow(&self, row: &[f64], first: Option<usize>) -> Resolved {
        let mut code = Code::new();
        let mut e = self.rest(row, &code);
        if let Some(proposal) = first.and_then(|k| self.propose(k, &e, None)) {
            code.push(proposal.active);
            e = self.rest(row, &code);
        }
        for _ in 0..self.dictionary.most_active.min(self.atoms.len()) {
            let best = (0..self.atoms.len())
                .filter(|k| code.iter().all(|active| active.atom != *k))
                .filter_map(|k| {
                    let proposal = self.propose(k, &e, None)?;
                    let gain = proposal.cost + self.atoms[k].on - self.atoms[k].off;
                    (gain < 0.0).then_some((gain, proposal.active))
                })
                .min_by(|a, b| a.0.total_cmp(&b.0));
            let Some((_, active)) = best else { break };
            let at = code.partition_point(|other| other.atom < active.atom);
            code.insert(at, active);
            e = self.rest(row, &code);
            self.sweep(&mut code, &mut e, Gates::Kept, 3);
        }
        self.settle(row, code)
    }

    fn settle(&self, row: &[f64], mut code: Code) -> Resolved {
        let mut e = self.rest(row, &code);
        self.sweep(&mut code, &mut e, Gates::Free, SWEEPS);
        let cost = self.cost(&code, &e);
        Resolved { code, cost }
    }

    fn sweep(&self, code: &mut Code, e: &mut [f64], gates: Gates, sweeps: usize) {
        for _ in 0..sweeps {
            let mut moved = 0.0;
            for k in 0..self.atoms.len() {
                let place = code.iter().position(|active| active.atom == k);
                if place.is_none() && (gates == Gates::Kept || code.len() >= self.dictionary.most_active) {
                    continue;
                }
                let before = place.map(|at| code[at]);
                if let Some(active) = before {
                    self.add(1.0, &active, e);
                }
                let proposal = self.propose(k, e, before);
                let gates_cost = self.atoms[k].on - self.atoms[k].off;
                let on = proposal.filter(|p| gates == Gates::Kept || p.cost + gates_cost < 0.0);
                match (place, on) {
                    (Some(at), Some(p)) => {
                        moved = f64::max(moved, distance(&code[at], &p.active));
                        code[at] = p.active;
                        self.add(-1.0, &p.active, e);
                    }
                    (None, Some(p)) => {
                        let at = code.partition_point(|active| active.atom < k);
                        code.insert(at, p.active);
                        self.add(-1.0, &p.active, e);
                        moved = f64::INFINITY;
                    }
                    (Some(at), None) => {
                        code.remove(at);
                        moved = f64::INFINITY;
                    }
                    (None, None) => {}
                }
            }
            if moved < SETTLED || (self.atoms.len() == 1 && moved.is_finite()) {
                break;
            }
        }
    }

    /// What a code leaves of a row.
    fn rest(&self, row: &[f64], code: &Code) -> Vec<f64> {
        row.iter().zip(self.dictionary.decode(code)).map(|(x, y)| x - y).collect()
    }

    fn add(&self, alpha: f64, active: &Active, e: &mut [f64]) {
        let atom = &self.dictionary.atoms[active.atom];
        atom.add(alpha * active.amplitude, &atom.shape.jet(active.at).value, e);
    }

    /// What a whole code costs, `e` being what it leaves.
    pub fn cost(&self, code: &Code, e: &[f64]) -> f64 {
        let noise = self.dictionary.noise;
        let error: f64 = e.iter().map(|e| e * e).sum();
        let mut cost = error / (2.0 * noise) + 0.5 * e.len() as f64 * (std::f64::consts::TAU * noise).ln();
        cost += self.atoms.iter().map(|atom| atom.off).sum::<f64>();
        for active in code {
            let (atom, prepared) = (&self.dictionary.atoms[active.atom], &self.atoms[active.atom]);
            cost += prepared.on - prepared.off + prepared.volume(atom, active, noise);
        }
        cost
    }

    /// Where on atom k the row `e` lies best.
    fn propose(&self, k: usize, e: &[f64], before: Option<Active>) -> Option<Proposal> {
        let (atom, prepared) = (&self.dictionary.atoms[k], &self.atoms[k]);
        let noise = self.dictionary.noise;
        let mut c = [0.0; LARGEST_BASIS];
        for (c, row) in c.iter_mut().zip(atom.decoder.chunks_exact(e.len())) {
            *c = row.iter().zip(e).map(|(b, e)| b * e).sum();
        }
        let search = Search { atom, prepared, c, noise };
        let mut best = ([0.0; 2], f64::INFINITY);
        for (t, phi, height) in &prepared.starts {
            let energy = search.energy(*t, phi, *height).0;
            if energy < best.1 {
                best = (*t, energy);
            }
        }
        if let Some(before) = before {
            let energy = search.at(before.at).0;
            if energy <= best.1 {
                best = (before.at, energy);
            }
        }
        if !best.1.is_finite() {
            return None;
        }
        let at = search.descend(best.0);
        let (energy, amplitude) = search.at(at);
        let active = Active { atom: k, at, amplitude };
        let volume = prepared.volume(atom, &active, noise);
        // The energy of priors is in both.
        let cost = energy + volume - prior_energy(atom, &active);
        cost.is_finite().then_some(Proposal { active, cost })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Gates {
    /// Only coordinates move.
    Kept,
    /// Atoms go on and off.
    Free,
}

fn distance(a: &Active, b: &Active) -> f64 {
    let turn = |d: f64| d.abs().min((1.0 - d.abs()).abs());
    (0..2).map(|c| turn(a.at[c] - b.at[c])).fold((a.amplitude - b.amplitude).abs(), f64::max)
}

fn prior_energy(atom: &Atom, active: &Active) -> f64 {
    let amplitude = if atom.is_free() { 0.5 * ((active.amplitude - 1.0) / atom.spread).powi(2) } else { 0.0 };
    amplitude + atom.shape.prior_energy(active.at)
}

impl Prepared {
    fn new(atom: &Atom) -> Self {
        let (basis, rank) = (atom.shape.basis(), atom.rank());
        let mut gram = [[0.0; LARGEST_BASIS]; LARGEST_BASIS];
        let row = |k: usize| &atom.decoder[k * rank..(k + 1) * rank];
        for (i, line) in gram.iter_mut().enumerate().take(basis) {
            for (j, g) in line.iter_mut().enumerate().take(basis) {
                *g = row(i).iter().zip(row(j)).map(|(a, b)| a * b).sum();
            }
        }
        let start = |t| {
            let phi = atom.shape.jet(t).value;
            (t, phi, quadratic(&gram, &phi, &phi, basis))
        };
        let starts = atom.shape.starts().into_iter().map(start).collect();
        Self { gram, starts, on: -atom.activity.ln(), off: -(1.0 - atom.activity).ln() }
    }

    /// Prior energy and Laplace's volume of coordinate and amplitude.
    fn volume(&self, atom: &Atom, active: &Active, noise: f64) -> f64 {
        let (basis, dim) = (atom.shape.basis(), atom.shape.dim());
        let jet = atom.shape.jet(active.at);
        let weight = active.amplitude.powi(2) / noise;
        let h = |a: usize, b: usize| weight * quadratic(&self.gram, &jet.first[a], &jet.first[b], basis);
        let c = atom.shape.prior_precision();
        let mut volume = prior_energy(atom, active);
        match dim {
            1 => volume += 0.5 * (1.0 + h(0, 0) / c).ln(),
            2 => {
                let (a, b, d) = (1.0 + h(0, 0) / c, h(0, 1) / c, 1.0 + h(1, 1) / c);
                volume += 0.5 * (a * d - b * b).ln();
            }
            _ => {}
        }
        if atom.is_free() {
            let height = quadratic(&self.gram, &jet.value, &jet.value, basis);
            volume += 0.5 * (1.0 + atom.spread.powi(2) * height / noise).ln();
        }
        volume
    }
}

fn quadratic(
    gram: &[[f64; LARGEST_BASIS]; LARGEST_BASIS],
    a: &[f64; LARGEST_BASIS],
    b: &[f64; LARGEST_BASIS],
    basis: usize,
) -> f64 {
    let mut sum = 0.0;
    for i in 0..basis {
        let row: f64 = (0..basis).map(|j| gram[i][j] * b[j]).sum();
        sum += a[i] * row;
    }
    sum
}

/// The search for the coordinate of one row on one atom.
struct Search<'a> {
    atom: &'a Atom,
    prepared: &'a Prepared,
    c: [f64; LARGEST_BASIS],
    noise: f64,
}

impl Search<'_> {
    /// Energy and best amplitude at t: `(a²φᵀGφ − 2a·φᵀc)/2σ²` and the priors'.
    fn energy(&self, t: [f64; 2], phi: &[f64; LARGEST_BASIS], height: f64) -> (f64, f64) {
        let along: f64 = phi.iter().zip(&self.c).map(|(p, c)| p * c).sum();
        let prior = self.atom.shape.prior_energy(t);
        if !self.atom.is_free() {
            return ((height - 2.0 * along) / (2.0 * self.noise) + prior, 1.0);
        }
        let precision = self.atom.spread.powi(-2);
        let a = (along / self.noise + precision) / (height / self.noise + precision);
        if a <= 0.0 {
            return (f64::INFINITY, a);
        }
        let data = (a * a * height - 2.0 * a * along) / (2.0 * self.noise);
        (data + 0.5 * precision * (a - 1.0).powi(2) + prior, a)
    }

    fn at(&self, t: [f64; 2]) -> (f64, f64) {
        let phi = self.atom.shape.jet(t).value;
        self.energy(t, &phi, quadratic(&self.prepared.gram, &phi, &phi, self.atom.shape.basis()))
    }

    /// Newton's method with halving, amplitudes at their best.
    fn descend(&self, mut t: [f64; 2]) -> [f64; 2] {
        let shape = self.atom.shape;
        if shape.dim() == 0 {
            return t;
        }
        let (mut energy, mut a) = self.at(t);
        for _ in 0..30 {
            let step = self.step(&shape.jet(t), t, a);
            let length = step[0].abs().max(step[1].abs());
            let mut factor = 1.0;
            let mut taken = false;
            while factor > 1e-3 && length > 1e-12 {
                let next = shape.retract(t, [factor * step[0], factor * step[1]]);
                let (value, amplitude) = self.at(next);
                if value <= energy {
                    (t, energy, a, taken) = (next, value, amplitude, true);
                    break;
                }
                factor *= 0.5;
            }
            if !taken || length < 1e-11 {
                break;
            }
        }
        t
    }

    /// A Newton step; of Gauss and Newton where the Hessian is not positive definite.
    fn step(&self, jet: &Jet, t: [f64; 2], a: f64) -> [f64; 2] {
        let (shape, gram) = (self.atom.shape, &self.prepared.gram);
        let basis = shape.basis();
        let mut lever = [0.0; LARGEST_BASIS];
        for (i, l) in lever.iter_mut().enumerate().take(basis) {
            *l = a * (0..basis).map(|j| gram[i][j] * jet.value[j]).sum::<f64>() - self.c[i];
        }
        let dot = |v: &[f64; LARGEST_BASIS]| v.iter().zip(&lever).map(|(v, l)| v * l).sum::<f64>();
        let normal = f64::from(u8::from(shape.is_normal()));
        let g: [f64; 2] = std::array::from_fn(|c| a * dot(&jet.first[c]) / self.noise + normal * t[c]);
        let gauss =
            |c: usize, d: usize| a * a * quadratic(gram, &jet.first[c], &jet.first[d], basis) / self.noise;
        let bent = |s: usize| a * dot(&jet.second[s]) / self.noise;
        if shape.dim() == 1 {
            let h = gauss(0, 0) + normal;
            let full = h + bent(0);
            return [-g[0] / if full > 0.1 * h { full } else { h.max(f64::MIN_POSITIVE) }, 0.0];
        }
        let tiny = 1e-9 * (gauss(0, 0) + gauss(1, 1)) + f64::MIN_POSITIVE;
        let h = [gauss(0, 0) + normal + tiny, gauss(0, 1), gauss(1, 1) + normal + tiny];
        let full = [h[0] + bent(0), h[1] + bent(1), h[2] + bent(2)];
        let det = |h: &[f64; 3]| h[0] * h[2] - h[1] * h[1];
        let h = if full[0] > 0.0 && det(&full) > 0.01 * full[0] * full[2] { full } else { h };
        let d = det(&h);
        if d <= 0.0 {
            return [-g[0] / h[0], -g[1] / h[2]];
        }
        [-(h[2] * g[0] - h[1] * g[1]) / d, -(h[0] * g[1] - h[1] * g[0]) / d]
    }
}
