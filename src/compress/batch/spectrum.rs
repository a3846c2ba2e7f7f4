use faer::{Mat, MatRef, Side};
use rayon::prelude::*;

use super::site::Site;
use super::{SiteInput, Task};
use crate::compress::context::ContextError;
use crate::compress::latents::{Spectrum, SpectrumError};
use crate::device::DeviceError;
use crate::device::arena::{Arena, View};
#[cfg(feature = "cuda")]
use crate::ops::spectrum::SpectrumItem;

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

/// A weight in the arena, and where its leading left singular vectors (m x r) and the roots of its singular values go.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub weight: View,
    /// Which of the batch's sites it reads
    pub site: usize,
    pub left: View,
    pub root: usize,
    pub inverse_root: usize,
}

/// Finds the spectra of all requests in f64: an eigenvalue is good to ε of the largest, and the directions that f32
/// would mix are those that the rank cuts between. On a card by its libraries, elsewhere on the host.
pub fn spectra(
    arena: &mut Arena,
    sites: &[Site],
    metrics: &[Metric64],
    requests: &[Request],
) -> Result<Vec<Result<(), SpectrumError>>, DeviceError> {
    #[cfg(feature = "cuda")]
    if let Some(card) = arena.card() {
        let items: Vec<_> = (requests.iter())
            .map(|r| SpectrumItem { weight: r.weight, damped: sites[r.site].damped, left: r.left })
            .collect();
        let found = crate::ops::spectrum::spectra(card?, &items)?;
        let written = requests.iter().zip(found).map(|(request, sigma)| {
            let error = SpectrumError { rows: request.weight.rows, cols: request.weight.cols };
            write_roots(arena, request, &Spectrum::roots_of(&sigma.ok_or(error)?));
            Ok(())
        });
        return Ok(written.collect());
    }
    let mut weights = Vec::new();
    for request in requests {
        let values = arena.read(request.weight.at, request.weight.len())?;
        let (m, n) = (request.weight.rows, request.weight.cols);
        weights.push((Mat::from_fn(m, n, |i, j| f64::from(values[i * n + j])), &metrics[request.site]));
    }
    debug_assert_eq!(sites.len(), metrics.len());
    let found: Vec<_> =
        weights.par_iter().map(|(weight, metric)| spectrum(weight.as_ref(), metric)).collect();
    let written = requests.iter().zip(found).map(|(request, spectrum)| {
        let spectrum = spectrum?;
        let (left, vectors) = (request.left, spectrum.left());
        let values: Vec<f32> =
            (0..left.len()).map(|k| vectors[(k / left.cols, k % left.cols)] as f32).collect();
        arena.write(left.at, &values);
        write_roots(arena, request, &spectrum.roots(left.cols));
        Ok(())
    });
    Ok(written.collect())
}

fn write_roots(arena: &mut Arena, request: &Request, roots: &[(f64, f64)]) {
    arena.write(request.root, &roots.iter().map(|(root, _)| *root as f32).collect::<Vec<_>>());
    arena.write(request.inverse_root, &roots.iter().map(|(_, inverse)| *inverse as f32).collect::<Vec<_>>());
}

fn spectrum(weight: MatRef<'_, f64>, metric: &Metric64) -> Result<Spectrum, SpectrumError> {
    match &metric.factor {
        Some(factor) if weight.nrows() > weight.ncols() => Spectrum::tall((weight * factor).as_ref()),
        _ => Spectrum::wide(weight, (weight * &metric.damped).as_ref()),
    }
}
