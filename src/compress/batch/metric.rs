//! The products of the factors with the metric, for all candidates of a batch; [`compress::metric`] has the formulas.
//!
//! [`compress::metric`]: crate::compress::metric

use super::job::{Job, SUMS};
use crate::device::DeviceError;
use crate::device::arena::{Arena, View};
use crate::ops::dots::{Dots, PARTS, inner, total};
use crate::ops::gemm::gemm;
use crate::ops::scale::{Scale, scale};

/// `Λ_p = diag(h_p) U_p diag(l_p)` of all started paths of what is tried.
pub fn lambdas(arena: &mut Arena, jobs: &[&Job]) {
    let items: Vec<_> = (jobs.iter())
        .flat_map(|j| {
            let one =
                |p| Scale::new(j.path(j.tried.u, p), j.path(j.scratch.lambda, p)).rows(j.h(p)).cols(j.l(p));
            (0..j.active).map(one)
        })
        .collect();
    scale(arena, &items);
}

/// `Λ_pᵀ Λ` (r x all): the rows of path `p` of ΛᵀΛ.
pub fn lambda_grams(arena: &mut Arena, jobs: &[&Job], p: usize) {
    let one = |j: &&Job| {
        let lambda = j.scratch.lambda;
        j.product(j.path(lambda, p), j.all(lambda), j.band(j.scratch.gram, p)).a_transposed()
    };
    gemm(arena, &jobs.iter().map(one).collect::<Vec<_>>());
}

/// Brings B, H̃B, WH̃B and BᵀH̃B up to date after g or V of path `p` changed.
pub fn update<'a>(arena: &mut Arena, jobs: &[&'a Job], p: usize) {
    let scaled = |j: &&Job| Scale::new(j.path(j.tried.v, p), j.path(j.tried.b, p)).rows(j.g(p));
    scale(arena, &jobs.iter().map(scaled).collect::<Vec<_>>());
    let products = |j: &&Job| {
        let b = j.path(j.tried.b, p);
        [j.product(j.site.damped, b, j.path(j.tried.hb, p)), j.product(j.weighted, b, j.path(j.tried.wb, p))]
    };
    gemm(arena, &jobs.iter().flat_map(products).collect::<Vec<_>>());
    let squares = |j: &&'a Job| {
        let (job, s) = (*j, j.tried);
        let own = j.product(j.path(s.b, p), j.all(s.hb), j.band(s.bhb, p)).a_transposed();
        let others = j.others(p).map(move |c| {
            job.product(job.path(s.b, c), job.path(s.hb, p), job.block(s.bhb, c, p)).a_transposed()
        });
        std::iter::once(own).chain(others)
    };
    gemm(arena, &jobs.iter().flat_map(squares).collect::<Vec<_>>());
}

/// `err(Ŵ; H̃)` of what is tried, from factor-sized products alone; one read-back for all candidates. Λ is up to date
/// afterwards.
pub fn errors(arena: &mut Arena, jobs: &[&Job]) -> Result<Vec<f64>, DeviceError> {
    lambdas(arena, jobs);
    let grams = |j: &&Job| {
        let lambda = j.all(j.scratch.lambda);
        j.product(lambda, lambda, j.square(j.scratch.gram)).a_transposed()
    };
    gemm(arena, &jobs.iter().map(grams).collect::<Vec<_>>());
    let sums = |j: &&Job| {
        [
            Dots { a: j.all(j.tried.wb), b: j.all(j.scratch.lambda), out: j.sum(0) },
            Dots { a: j.square(j.scratch.gram), b: j.square(j.tried.bhb), out: j.sum(1) },
        ]
    };
    inner(arena, &jobs.iter().flat_map(sums).collect::<Vec<_>>());
    let read = read_sums(arena, jobs)?;
    Ok(jobs.iter().zip(read).map(|(job, [cross, square])| job.energy - 2.0 * cross + square).collect())
}

/// The sums of all candidates, with one read.
pub fn read_sums(arena: &mut Arena, jobs: &[&Job]) -> Result<Vec<[f64; SUMS]>, DeviceError> {
    let Some(first) = jobs.iter().map(|j| j.sums).min() else { return Ok(Vec::new()) };
    let last = jobs.iter().map(|j| j.sums).max().unwrap_or(first);
    let values = arena.read(first, last - first + SUMS * PARTS)?;
    let sum = |job: &&Job, k: usize| {
        let at = job.sum(k) - first;
        total(&values[at..at + PARTS])
    };
    Ok(jobs.iter().map(|job| [sum(job, 0), sum(job, 1)]).collect())
}

/// `W H̃` of the weights, and err(0; H̃) = ⟨W H̃, W⟩.
pub fn weigh(arena: &mut Arena, jobs: &mut [&mut Job]) -> Result<(), DeviceError> {
    let product = |j: &Job| j.product(j.weight, j.site.damped, j.weighted);
    // Candidates of one weight share the product, and stand side by side.
    let mut products: Vec<_> = jobs.iter().map(|j| (j.weighted.at, product(j))).collect();
    products.dedup_by_key(|(at, _)| *at);
    gemm(arena, &products.into_iter().map(|(_, product)| product).collect::<Vec<_>>());
    let energies: Vec<_> = jobs.iter().map(|j| Dots { a: j.weighted, b: j.weight, out: j.sum(0) }).collect();
    inner(arena, &energies);
    let read = read_sums(arena, &jobs.iter().map(|j| &**j).collect::<Vec<_>>())?;
    jobs.iter_mut().zip(read).for_each(|(job, [energy, _])| job.energy = energy);
    Ok(())
}

/// `residual ← W − Ŵ` of the started paths of what is tried; Λ and B must be up to date.
pub fn residuals(arena: &mut Arena, jobs: &[&Job]) {
    let copies: Vec<_> = jobs.iter().map(|j| Scale::new(j.weight, j.scratch.residual)).collect();
    scale(arena, &copies);
    let products = |j: &&Job| {
        let (lambda, b) = (j.all(j.scratch.lambda), j.all(j.tried.b));
        j.product(lambda, b, j.scratch.residual).b_transposed().alpha(-1.0).beta(1.0)
    };
    gemm(arena, &jobs.iter().map(products).collect::<Vec<_>>());
}

/// `sqrt(err(Ŵ; A)/err(0; A))` in the Gram that `gram` names, from the residuals; NaN where the weight has no energy.
pub fn relative_errors(
    arena: &mut Arena,
    jobs: &[&Job],
    gram: impl Fn(&Job) -> View,
) -> Result<Vec<f64>, DeviceError> {
    for (k, of) in [(0, false), (1, true)] {
        let a = |j: &Job| if of { j.weight } else { j.scratch.residual };
        let products: Vec<_> = jobs.iter().map(|j| j.product(a(j), gram(j), j.scratch.product)).collect();
        gemm(arena, &products);
        let sums: Vec<_> =
            jobs.iter().map(|j| Dots { a: j.scratch.product, b: a(j), out: j.sum(k) }).collect();
        inner(arena, &sums);
    }
    let ratio = |[error, energy]: [f64; SUMS]| match error.max(0.0) {
        0.0 => 0.0,
        error => (error / energy).sqrt(),
    };
    Ok(read_sums(arena, jobs)?.into_iter().map(ratio).collect())
}

/// `‖W − Ŵ‖ / ‖W‖`, Frobenius, from the residuals.
pub fn weight_errors(arena: &mut Arena, jobs: &[&Job]) -> Result<Vec<f64>, DeviceError> {
    let sums = |j: &&Job| {
        let (residual, weight) = (j.scratch.residual, j.weight);
        [Dots { a: residual, b: residual, out: j.sum(0) }, Dots { a: weight, b: weight, out: j.sum(1) }]
    };
    inner(arena, &jobs.iter().flat_map(sums).collect::<Vec<_>>());
    Ok(read_sums(arena, jobs)?.into_iter().map(|[error, energy]| (error / energy).sqrt()).collect())
}
