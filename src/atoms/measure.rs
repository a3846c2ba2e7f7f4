use std::f64::consts::TAU;

use faer::Mat;

use super::code::Coder;
use super::model::{Code, Dictionary};
use super::shape::on_sphere;
use super::space::{ROUNDING, checked};
use super::zoo::Truth;
use super::{AtomsError, Shape};

/// Share of the rows of which an atom must be on in at least one in a thousand to count as alive.
const ALIVE: f64 = 1e-3;

/// What a dictionary is worth on rows that it was not fitted to, its decoders frozen and the codes found anew.
#[derive(Clone, Debug)]
pub struct Measures {
    /// `1 − Σ‖x − x̂‖²/Σ‖x − x̄‖²`; NaN where that has no meaning, see [`explained_variance`].
    pub explained: f64,
    /// Mean number of active atoms.
    pub l0: f64,
    /// Mean number of coefficients: coordinates and free amplitudes, one at least for each active atom.
    pub coefficients: f64,
    /// Share of atoms that are on in more than one row in a thousand.
    pub alive: f64,
    pub codes: Vec<Code>,
}

impl Dictionary {
    /// The codes of rows (n x p).
    ///
    /// # Errors
    /// Rows of another width than the dictionary's; NaN or infinity.
    pub fn encode(&self, x: &[f64], width: usize) -> Result<Vec<Code>, AtomsError> {
        if width != self.space.width {
            return Err(AtomsError::Width { got: width, expected: self.space.width });
        }
        checked(x, width)?;
        let y = self.space.project(x);
        Ok(Coder::new(self).encode(&y).into_iter().map(|resolved| resolved.code).collect())
    }

    /// The rows that codes stand for, n x p.
    pub fn reconstruct(&self, codes: &[Code]) -> Vec<f64> {
        let y: Vec<f64> = codes.iter().flat_map(|code| self.decode(code)).collect();
        self.space.restore(&y)
    }

    /// Measures on rows.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn measure(&self, x: &[f64], width: usize) -> Result<Measures, AtomsError> {
        let codes = self.encode(x, width)?;
        let n = codes.len() as f64;
        let explained = explained_variance(x, &self.reconstruct(&codes), width);
        let mean = |count: &dyn Fn(&Code) -> usize| codes.iter().map(|c| count(c) as f64).sum::<f64>() / n;
        let alive = (0..self.atoms.len())
            .filter(|k| codes.iter().flatten().filter(|active| active.atom == *k).count() as f64 > ALIVE * n)
            .count();
        let (l0, coefficients) = (mean(&|code| code.len()), mean(&|code| self.coefficients(code)));
        let alive = alive as f64 / self.atoms.len().max(1) as f64;
        Ok(Measures { explained, l0, coefficients, alive, codes })
    }
}

/// `1 − Σ‖x − x̂‖²/Σ‖x − x̄‖²`, x̄ the mean of these rows. NaN where the rows do not vary by more than rounding, and where
/// their squares are beyond what f64 holds.
pub fn explained_variance(x: &[f64], estimate: &[f64], width: usize) -> f64 {
    let n = (x.len() / width) as f64;
    let mut mean = vec![0.0; width];
    for row in x.chunks_exact(width) {
        mean.iter_mut().zip(row).for_each(|(m, x)| *m += x / n);
    }
    let error: f64 = x.iter().zip(estimate).map(|(x, e)| (x - e).powi(2)).sum();
    let total: f64 = x
        .chunks_exact(width)
        .map(|row| row.iter().zip(&mean).map(|(x, m)| (x - m).powi(2)).sum::<f64>())
        .sum();
    let size: f64 = x.iter().map(|x| x * x).sum();
    match total > ROUNDING * ROUNDING * size && size.is_finite() {
        true => 1.0 - error / total,
        false => f64::NAN,
    }
}

/// How well coordinates found agree with those planted, up to what a shape leaves open; 0 for rows where the planted
/// atom is on and the found one is not. 1 is perfect.
///
/// | shape | measure |
/// |---|---|
/// | ray, line, arc, patch | \|Pearson\| of amplitude or first coordinate |
/// | circle | \|mean exp(i(t − t'))\|, best direction: the circular correlation at the best rotation |
/// | sphere | mean cosine at the best orthogonal map |
/// | torus | mean of both circles', best directions and order |
pub fn recovery(shape: Shape, planted: &[Option<[f64; 2]>], found: &[Option<[f64; 2]>]) -> f64 {
    let both: Vec<([f64; 2], [f64; 2])> =
        planted.iter().zip(found).filter_map(|(a, b)| Some(((*a)?, (*b)?))).collect();
    let on = planted.iter().flatten().count() as f64;
    if both.len() < 3 {
        return 0.0;
    }
    let hit = both.len() as f64 / on;
    let circle = |c: usize, d: usize| {
        let coherence = |sign: f64| {
            let (mut re, mut im) = (0.0, 0.0);
            for (a, b) in &both {
                let (sin, cos) = (TAU * (a[c] - sign * b[d])).sin_cos();
                (re, im) = (re + cos, im + sin);
            }
            f64::hypot(re, im) / both.len() as f64
        };
        coherence(1.0).max(coherence(-1.0))
    };
    hit * match shape {
        Shape::Ray | Shape::Line | Shape::Arc | Shape::Patch => pearson(&both).abs(),
        Shape::Circle(_) => circle(0, 0),
        Shape::Torus => (0.5 * (circle(0, 0) + circle(1, 1))).max(0.5 * (circle(0, 1) + circle(1, 0))),
        Shape::Sphere(_) => {
            let mut cross = Mat::<f64>::zeros(3, 3);
            for (a, b) in &both {
                let (a, b) = (on_sphere(*a), on_sphere(*b));
                (0..9).for_each(|k| cross[(k / 3, k % 3)] += a[k / 3] * b[k % 3]);
            }
            let nuclear = cross.thin_svd().map_or(0.0, |svd| svd.S().column_vector().iter().sum::<f64>());
            nuclear / both.len() as f64
        }
    }
}

fn pearson(pairs: &[([f64; 2], [f64; 2])]) -> f64 {
    let n = pairs.len() as f64;
    let (a, b) = pairs.iter().fold((0.0, 0.0), |(a, b), p| (a + p.0[0] / n, b + p.1[0] / n));
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (p, q) in pairs {
        let (x, y) = (p[0] - a, q[0] - b);
        (ab, aa, bb) = (ab + x * y, aa + x * x, bb + y * y);
    }
    if aa * bb > 0.0 { ab / (aa * bb).sqrt() } else { 0.0 }
}

/// The best pairing of planted atoms with found ones of the same kind: recovery of each planted atom, 0 without partner.
pub fn recoveries(shapes: &[Shape], truth: &[Truth], dictionary: &Dictionary, codes: &[Code]) -> Vec<f64> {
    let planted = |k: usize| -> Vec<Option<[f64; 2]>> {
        truth.iter().map(|t| t.active.iter().find(|(atom, _)| *atom == k).map(|(_, at)| *at)).collect()
    };
    let found = |k: usize| -> Vec<Option<[f64; 2]>> {
        let at = |code: &Code| {
            let active = code.iter().find(|active| active.atom == k)?;
            let ray = dictionary.atoms[k].shape == Shape::Ray;
            Some(if ray { [active.amplitude, 0.0] } else { active.at })
        };
        codes.iter().map(at).collect()
    };
    let mut table: Vec<(f64, usize, usize)> = Vec::new();
    for (i, shape) in shapes.iter().enumerate() {
        let planted = planted(i);
        for (j, atom) in dictionary.atoms.iter().enumerate() {
            if atom.shape.name() == shape.name() {
                table.push((recovery(*shape, &planted, &found(j)), i, j));
            }
        }
    }
    table.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut result, mut taken, mut done) = (vec![0.0; shapes.len()], Vec::new(), Vec::new());
    for (value, i, j) in table {
        if !done.contains(&i) && !taken.contains(&j) {
            result[i] = value;
            done.push(i);
            taken.push(j);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variance_by_rounding_alone_explains_nothing() {
        let rows = |step: f64| (0..2000).map(|i| 0.1 + step * f64::from(i % 3)).collect::<Vec<f64>>();
        for (step, varies) in [(0.0, false), (1.4e-17, false), (1e-10, true)] {
            let x = rows(step);
            assert_eq!(explained_variance(&x, &x, 2) == 1.0, varies, "{step}");
            assert_eq!(explained_variance(&x, &x, 2).is_nan(), !varies, "{step}");
        }
        for size in [1e-200, 1e200] {
            let x: Vec<f64> = rows(1.0).iter().map(|x| x * size).collect();
            assert!(explained_variance(&x, &x, 2).is_nan(), "{size:e}");
        }
    }
}
