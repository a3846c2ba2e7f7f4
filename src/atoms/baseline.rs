//! Linear dictionaries of the same size, to hold a fit against: principal components, and a dictionary of directions of
//! which each row uses a few.

use faer::linalg::solvers::Solve;
use faer::{Mat, Side};
use rayon::prelude::*;

use super::measure::explained_variance;
use super::{AtomsError, Space};
use crate::ops::splitmix::SplitMix64;

/// Rounds of the TopK dictionary: supports, then directions.
const ROUNDS: usize = 30;

/// Random starts, of which the best on the fit rows is kept.
const STARTS: u64 = 3;

/// What the baselines may use: as many decoder rows as the shapes have, as many coefficients a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub rows: usize,
    pub coefficients: usize,
}

/// Explained variance on held-out rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Baselines {
    /// As many principal components as a row may have coefficients.
    pub pca: f64,
    /// Sparse coding by orthogonal matching pursuit, directions by least squares (Engan et al., 1999).
    pub topk: f64,
}

/// Fits both to `fit` and measures them on `heldout` (rows of `width`).
///
/// # Errors
/// Rows that cannot be fitted.
pub fn baselines(fit: &[f64], heldout: &[f64], width: usize, size: Size) -> Result<Baselines, AtomsError> {
    let (space, y) = Space::of(fit, width)?;
    let rank = space.rank;
    let mut kept = space.project(heldout);
    for row in kept.chunks_exact_mut(rank) {
        row[size.coefficients.min(rank)..].fill(0.0);
    }
    let pca = explained_variance(heldout, &space.restore(&kept), width);
    let starts: Vec<(f64, Vec<f64>)> =
        (0..STARTS).into_par_iter().map(|seed| directions(&y, rank, size, seed)).collect();
    let Some((_, best)) = starts.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)) else {
        return Ok(Baselines { pca, topk: 0.0 });
    };
    let held = space.project(heldout);
    let coded: Vec<f64> = held
        .par_chunks(rank)
        .flat_map_iter(|row| rebuilt(&best, rank, &pursue(&best, rank, row, size.coefficients)))
        .collect();
    Ok(Baselines { pca, topk: explained_variance(heldout, &space.restore(&coded), width) })
}

type Sparse = Vec<(usize, f64)>;

/// Directions (rows x r) from one start, with their error on the rows.
fn directions(y: &[f64], rank: usize, size: Size, seed: u64) -> (f64, Vec<f64>) {
    let (n, m) = (y.len() / rank, size.rows.max(1));
    let mut random = SplitMix64::new(seed);
    let mut d = vec![0.0; m * rank];
    for direction in d.chunks_exact_mut(rank) {
        let row = (random.uniform() * n as f64) as usize;
        direction.copy_from_slice(&y[row * rank..(row + 1) * rank]);
        normalise(direction, &mut random);
    }
    let mut error = f64::INFINITY;
    for _ in 0..ROUNDS {
        let codes: Vec<Sparse> =
            y.par_chunks(rank).map(|row| pursue(&d, rank, row, size.coefficients)).collect();
        error = y
            .chunks_exact(rank)
            .zip(&codes)
            .map(|(row, code)| {
                row.iter().zip(rebuilt(&d, rank, code)).map(|(a, b)| (a - b).powi(2)).sum::<f64>()
            })
            .sum();
        let mut gram = Mat::<f64>::zeros(m, m);
        let mut right = Mat::<f64>::zeros(m, rank);
        for (row, code) in y.chunks_exact(rank).zip(&codes) {
            for (j, a) in code {
                code.iter().for_each(|(k, b)| gram[(*j, *k)] += a * b);
                (0..rank).for_each(|l| right[(*j, l)] += a * row[l]);
            }
        }
        (0..m).for_each(|j| gram[(j, j)] += 1e-9 * n as f64);
        let Ok(llt) = gram.llt(Side::Lower) else { break };
        let solved = llt.solve(&right);
        for (j, direction) in d.chunks_exact_mut(rank).enumerate() {
            (0..rank).for_each(|l| direction[l] = solved[(j, l)]);
            normalise(direction, &mut random);
        }
    }
    (error, d)
}

/// To length 1; a direction that nothing uses begins anew.
fn normalise(direction: &mut [f64], random: &mut SplitMix64) {
    let length = |d: &[f64]| d.iter().map(|v| v * v).sum::<f64>().sqrt();
    if length(direction) < 1e-9 {
        direction.iter_mut().for_each(|v| *v = random.signed());
    }
    let length = length(direction).max(f64::MIN_POSITIVE);
    direction.iter_mut().for_each(|v| *v /= length);
}

/// Orthogonal matching pursuit: the direction that the rest leans on most, then all coefficients anew.
fn pursue(d: &[f64], rank: usize, row: &[f64], count: usize) -> Sparse {
    let mut chosen: Vec<usize> = Vec::new();
    let mut values = Vec::new();
    let mut rest = row.to_vec();
    let along =
        |j: usize, v: &[f64]| d[j * rank..(j + 1) * rank].iter().zip(v).map(|(a, b)| a * b).sum::<f64>();
    for _ in 0..count.min(d.len() / rank).min(rank) {
        let left = (0..d.len() / rank).filter(|j| !chosen.contains(j)).map(|j| (along(j, &rest).abs(), j));
        let Some((_, next)) = left.max_by(|a, b| a.0.total_cmp(&b.0)) else { break };
        chosen.push(next);
        let k = chosen.len();
        let gram = Mat::from_fn(k, k, |a, b| {
            along(chosen[a], &d[chosen[b] * rank..(chosen[b] + 1) * rank]) + if a == b { 1e-12 } else { 0.0 }
        });
        let right = Mat::from_fn(k, 1, |a, _| along(chosen[a], row));
        let Ok(llt) = gram.llt(Side::Lower) else { break };
        let solved = llt.solve(&right);
        values = (0..k).map(|a| solved[(a, 0)]).collect::<Vec<f64>>();
        let code: Sparse = chosen.iter().copied().zip(values.iter().copied()).collect();
        rest = row.iter().zip(rebuilt(d, rank, &code)).map(|(a, b)| a - b).collect();
    }
    chosen.into_iter().zip(values).collect()
}

fn rebuilt(d: &[f64], rank: usize, code: &Sparse) -> Vec<f64> {
    let mut y = vec![0.0; rank];
    for (j, a) in code {
        y.iter_mut().zip(&d[j * rank..(j + 1) * rank]).for_each(|(y, d)| *y += a * d);
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atoms::zoo::Case;

    #[test]
    fn directions_that_were_planted_are_found_again() {
        let planted = Case::Rays.plant(0);
        let size = Size { rows: 8, coefficients: 4 };
        let both = baselines(planted.fit_rows(), planted.heldout_rows(), planted.width, size).unwrap();
        let ceiling = planted.ceiling();
        assert!(both.topk > ceiling - 0.1 && both.topk < ceiling + 0.05, "{both:?} of {ceiling}");
        assert!(both.pca < both.topk, "{both:?}");
    }
}
