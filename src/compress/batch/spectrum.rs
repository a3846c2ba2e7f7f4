use faer::{Mat, MatRef, Side};
use rayon::prelude::*;

use super::job::Job;
use super::metric::{lambdas, residuals};
use super::site::Site;
use super::{SiteInput, Task};
use crate::compress::context::ContextError;
use crate::compress::latents::{Spectrum, SpectrumError};
use crate::device::DeviceError;
use crate::device::arena::{Arena, View};

/// H̃ of one input in f64 and, where a weight that reads it is taller than wide, a factor F of it, `H̃ = F·Fᵀ`.
pub struct Metric64 {
    pub damped: Mat<f64>,
    pub factor: Option<Mat<f64>>,
}

impl Metric64 {
    /// Those of all sites; one whose Gram has no factor in f64 gets an error. Sites in error get nothing.
    pub fn of(
        sites: &[Site],
        inputs: &[SiteInput<'_>],
        tasks: &[Task<'_>],
        errors: &mut [Option<ContextError>],
    ) -> Vec<Self> {
        let one = |s: usize| {
            let (site, n) = (&sites[s], sites[s].n);
            let (Some(grams), Some(_)) = (inputs[s].grams, inputs[s].damping) else {
                return Ok(Self { damped: Mat::identity(n, n), factor: Some(Mat::identity(n, n)) });
            };
            let gram = &grams.fit;
            let shift = site.damping * (0..n).map(|j| gram[(j, j)]).sum::<f64>() / n as f64;
            let damped = Mat::from_fn(n, n, |i, j| gram[(i, j)] + if i == j { shift } else { 0.0 });
            let tall = tasks.iter().any(|task| task.site == s && task.rows > n);
            let factor = tall.then(|| damped.llt(Side::Lower).map(|llt| llt.L().to_owned()));
            match factor.transpose() {
                Ok(factor) => Ok(Self { damped, factor }),
                Err(_) => Err(ContextError::NotPositiveDefinite { tries: site.tries, damping: site.damping }),
            }
        };
        let built: Vec<_> = (0..sites.len())
            .into_par_iter()
            .map(|s| if errors[s].is_none() { one(s).map_err(Some) } else { Err(None) })
            .collect();
        let mut metrics = Vec::new();
        for (s, built) in built.into_iter().enumerate() {
            metrics.push(built.unwrap_or_else(|error| {
                errors[s] = error.or(errors[s].take());
                Self { damped: Mat::zeros(0, 0), factor: None }
            }));
        }
        metrics
    }
}

/// Writes the leading left singular vectors, as many as `left` has columns, and the roots of their singular values.
pub fn write_spectrum(arena: &mut Arena, spectrum: &Spectrum, left: View, root: usize, inverse_root: usize) {
    let (m, r) = (left.rows, left.cols);
    let vectors = spectrum.left();
    let values: Vec<f32> = (0..m * r).map(|k| vectors[(k / r, k % r)] as f32).collect();
    arena.write(left.at, &values);
    let roots = spectrum.roots(r);
    arena.write(root, &roots.iter().map(|(root, _)| *root as f32).collect::<Vec<_>>());
    arena.write(inverse_root, &roots.iter().map(|(_, inverse)| *inverse as f32).collect::<Vec<_>>());
}

/// Spectra of weights in f64 on the host: an eigenvalue is good to ε of the largest, and the directions that f32 would
/// mix are those that the rank cuts between.
pub fn spectra(jobs: &[(Mat<f64>, &Metric64)]) -> Vec<Result<Spectrum, SpectrumError>> {
    jobs.par_iter().map(|(weight, metric)| spectrum(weight.as_ref(), metric)).collect()
}

fn spectrum(weight: MatRef<'_, f64>, metric: &Metric64) -> Result<Spectrum, SpectrumError> {
    match &metric.factor {
        Some(factor) if weight.nrows() > weight.ncols() => Spectrum::tall((weight * factor).as_ref()),
        _ => Spectrum::wide(weight, (weight * &metric.damped).as_ref()),
    }
}

/// What the started paths of each candidate leave of its weight, on the device (`scratch.residual`) and here in f64.
pub fn residuals_on_host(arena: &mut Arena, jobs: &[&Job]) -> Result<Vec<Mat<f64>>, DeviceError> {
    lambdas(arena, jobs);
    residuals(arena, jobs);
    jobs.iter()
        .map(|job| {
            let (m, n) = (job.shape.m, job.shape.n);
            let values = arena.read(job.scratch.residual.at, m * n)?;
            Ok(Mat::from_fn(m, n, |i, j| f64::from(values[i * n + j])))
        })
        .collect()
}
