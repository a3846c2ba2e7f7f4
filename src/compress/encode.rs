use faer::{Mat, MatRef};
use serde::{Deserialize, Serialize};

use super::context::Context;
use super::factors::Path;
use super::gauge::{rotate_to_signs, signs_and_magnitudes};
use super::latents::{Spectrum, SpectrumError};
use super::metric::{Metric, Problem};
use super::refine::{RefineInfo, RefineParams, refine};
use super::scales::scale_sweeps;

/// How a tensor is encoded once its rank is known. [`Params::nvg`] is the training-free encoder,
/// [`Params::dual_svid`] the data-free baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Params {
    /// Steps of the gauge rotation (weighted ITQ).
    pub gauge_steps: usize,
    /// Scale sweeps after the first path started.
    pub scale_sweeps: usize,
    /// Scale sweeps after the second path started.
    pub joint_scale_sweeps: usize,
    pub refine: RefineParams,
}

impl Params {
    pub fn nvg() -> Self {
        Self {
            gauge_steps: 50,
            scale_sweeps: 3,
            joint_scale_sweeps: 6,
            refine: RefineParams { sweeps: 2, scale_sweeps: 3 },
        }
    }

    /// Latents, signs and magnitudes alone; meant for the metric H̃ = I.
    pub fn dual_svid() -> Self {
        Self {
            gauge_steps: 0,
            scale_sweeps: 0,
            joint_scale_sweeps: 0,
            refine: RefineParams { sweeps: 0, scale_sweeps: 0 },
        }
    }
}

/// A fitted tensor in f64, before rounding.
pub struct Fit {
    pub paths: Vec<Path>,
    /// err(Ŵ; H̃)
    pub error: f64,
    pub refine: RefineInfo,
    pub svd_fallbacks: usize,
}

impl Fit {
    /// Ŵ, m x n.
    pub fn product(&self) -> Mat<f64> {
        product(&self.paths)
    }
}

/// Fits `count` paths (1 or 2) of rank `rank` to the problem.
///
/// `spectrum` is that of the whole weight; the second path starts from the latents of what the first leaves.
pub fn fit_paths(
    problem: &Problem<'_>,
    spectrum: &Spectrum,
    count: usize,
    rank: usize,
    params: &Params,
) -> Result<Fit, SpectrumError> {
    let mut svd_fallbacks = 0;
    let mut start = |weight: MatRef<'_, f64>, spectrum: &Spectrum| {
        let mut latents = spectrum.latents(weight, rank);
        let diagonal = diagonal(problem.context);
        svd_fallbacks += rotate_to_signs(&mut latents, &diagonal, params.gauge_steps).svd_fallbacks;
        signs_and_magnitudes(&latents)
    };
    let mut paths = vec![start(problem.weight.as_ref(), spectrum)];
    let mut metric = Metric::of(problem, &paths);
    scale_sweeps(problem, &mut paths, &mut metric, params.scale_sweeps);
    if count == 2 {
        let residual = &problem.weight - paths[0].product();
        let weighted = &residual * &problem.context.damped;
        let rest = Spectrum::of(residual.as_ref(), weighted.as_ref(), problem.context)?;
        paths.push(start(residual.as_ref(), &rest));
        metric = Metric::of(problem, &paths);
        scale_sweeps(problem, &mut paths, &mut metric, params.joint_scale_sweeps);
    }
    let refined = refine(problem, &mut paths, &mut metric, params.refine);
    let error = metric.error(problem, &paths);
    Ok(Fit { paths, error, refine: refined, svd_fallbacks })
}

/// `Σ_p diag(h_p) U_p diag(l_p) V_pᵀ diag(g_p)`.
pub fn product(paths: &[Path]) -> Mat<f64> {
    let mut sum = paths[0].product();
    for path in &paths[1..] {
        sum += path.product();
    }
    sum
}

fn diagonal(context: &Context) -> Vec<f64> {
    (0..context.width()).map(|j| context.damped[(j, j)]).collect()
}
