//! The start of a path for all candidates of a batch: latents, rotation towards signs, signs and magnitudes;
//! [`compress::gauge`] has the formulas.
//!
//! [`compress::gauge`]: crate::compress::gauge

use super::job::{Job, column};
use super::metric::update;
use crate::device::arena::{Arena, View};
use crate::ops::dots::{Dots, row_dots};
use crate::ops::gauge_rows::{GaugeRows, gauge_rows};
use crate::ops::gemm::gemm;
use crate::ops::polar_batch::{Polar, polar_batch};
use crate::ops::rank_one_batch::{RankOne, rank_one_batch};
use crate::ops::scale::{Scale, scale};

/// Where a path starts from: the weight it is to explain, and the leading left singular vectors of `weight·L`.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// m x n
    pub weight: View,
    /// m x r
    pub left: View,
    /// σ^½ and σ^−½ (0 where σ is), r each
    pub root: usize,
    pub inverse_root: usize,
}

/// Starts the next path of each candidate, in what is tried. A candidate whose rotation is singular to working
/// precision gets its status raised.
pub fn start_path(arena: &mut Arena, jobs: &mut [&mut Job], starts: &[Start], steps: usize) {
    let p = jobs.first().map_or(0, |j| j.active);
    jobs.iter_mut().for_each(|job| {
        job.active += 1;
        arena.write(job.scratch.status, &[0.0]);
    });
    let jobs: Vec<&Job> = jobs.iter().map(|j| &**j).collect();
    latents(arena, &jobs, starts);
    rotate(arena, &jobs, steps);
    signs_and_magnitudes(arena, &jobs, p);
    update(arena, &jobs, p);
}

/// U' (m x r) and V' (n x r).
pub fn latent_views(job: &Job) -> (View, View) {
    (job.path(job.scratch.left[0], 0), job.scratch.right[0])
}

pub fn rotated_views(job: &Job) -> (View, View) {
    (job.path(job.scratch.left[1], 0), job.scratch.right[1])
}

/// `U' = left·Σ^½`, `V' = Wᵀ·left·Σ^−½`.
pub fn latents(arena: &mut Arena, jobs: &[&Job], starts: &[Start]) {
    let both = || jobs.iter().zip(starts);
    let products =
        |(j, start): (&&Job, &Start)| j.product(start.weight, start.left, latent_views(j).1).a_transposed();
    gemm(arena, &both().map(products).collect::<Vec<_>>());
    let scaled = |(j, start): (&&Job, &Start)| {
        let (u, v) = latent_views(j);
        [Scale::new(start.left, u).cols(start.root), Scale::new(v, v).cols(start.inverse_root)]
    };
    scale(arena, &both().flat_map(scaled).collect::<Vec<_>>());
}

/// `U' ← U'Q`, `V' ← V'Q`, with `steps` times `Q ← polar(Zᵀ diag(w²) sign(ZQ))` from Q = I. The mean of w² is left out:
/// a polar factor does not depend on it.
pub fn rotate(arena: &mut Arena, jobs: &[&Job], steps: usize) {
    if steps == 0 {
        let copies = |j: &&Job| {
            let ((u, v), (ru, rv)) = (latent_views(j), rotated_views(j));
            [Scale::new(u, ru), Scale::new(v, rv)]
        };
        return scale(arena, &jobs.iter().flat_map(copies).collect::<Vec<_>>());
    }
    let rows = |j: &&Job| {
        let (u, v) = latent_views(j);
        let [(z_u, z_v), (w_u, w_v)] = [0, 1].map(|k| halves(j, j.scratch.stack[k]));
        [
            GaugeRows { a: u, weights: None, normalised: z_u, weighted: w_u },
            GaugeRows { a: v, weights: Some(j.site.diagonal), normalised: z_v, weighted: w_v },
        ]
    };
    gauge_rows(arena, &jobs.iter().flat_map(rows).collect::<Vec<_>>());
    let first: Vec<_> =
        jobs.iter().map(|j| Scale::new(j.scratch.stack[0], j.scratch.stack[2]).sign()).collect();
    scale(arena, &first);
    pull(arena, jobs);
    arena.repeat(steps - 1, |arena| {
        let signs = |j: &&Job| j.product(j.scratch.stack[0], j.scratch.small[0], j.scratch.stack[2]).sign();
        gemm(arena, &jobs.iter().map(signs).collect::<Vec<_>>());
        pull(arena, jobs);
    });
    let rotated = |j: &&Job| {
        let ((u, v), (ru, rv)) = (latent_views(j), rotated_views(j));
        [j.product(u, j.scratch.small[0], ru), j.product(v, j.scratch.small[0], rv)]
    };
    gemm(arena, &jobs.iter().flat_map(rotated).collect::<Vec<_>>());
}

/// `Q ← polar(Zᵀ diag(w²) S)`.
fn pull(arena: &mut Arena, jobs: &[&Job]) {
    let pulls = |j: &&Job| {
        let [_, weighted, signs] = j.scratch.stack;
        j.product(weighted, signs, j.scratch.small[1]).a_transposed().b_signs()
    };
    gemm(arena, &jobs.iter().map(pulls).collect::<Vec<_>>());
    let polars = |j: &&Job| {
        let [x, a, y, m] = j.scratch.small;
        Polar { a, x, y, m, done: j.scratch.done, status: j.scratch.status, parts: j.parts }
    };
    polar_batch(arena, &jobs.iter().map(polars).collect::<Vec<_>>());
}

/// The first m and the last n rows.
fn halves(job: &Job, stack: View) -> (View, View) {
    let (m, n) = (job.shape.m, job.shape.n);
    (stack.part((0, 0), (m, stack.cols)), stack.part((m, 0), (n, stack.cols)))
}

/// U = sign U', V = sign V', `|U'| ≈ h λᵤᵀ`, `|V'| ≈ g λᵥᵀ`, l = λᵤ∘λᵥ of path `p`.
pub fn signs_and_magnitudes(arena: &mut Arena, jobs: &[&Job], p: usize) {
    let fits = |j: &&Job| {
        let (u, v) = rotated_views(j);
        let [lambda_u, lambda_v, next_u, next_v, _] = j.scratch.vectors;
        [
            RankOne { a: u, x: j.h(p), lambda: lambda_u, next: next_u },
            RankOne { a: v, x: j.g(p), lambda: lambda_v, next: next_v },
        ]
    };
    rank_one_batch(arena, &jobs.iter().flat_map(fits).collect::<Vec<_>>());
    let products = |j: &&Job| {
        let [lambda_u, lambda_v, ..] = j.scratch.vectors;
        let r = j.shape.rank;
        Dots { a: column(lambda_u, r), b: column(lambda_v, r), out: j.l(p) }
    };
    row_dots(arena, &jobs.iter().map(products).collect::<Vec<_>>());
    let signs = |j: &&Job| {
        let (u, v) = rotated_views(j);
        [Scale::new(u, j.path(j.tried.u, p)).sign(), Scale::new(v, j.path(j.tried.v, p)).sign()]
    };
    scale(arena, &jobs.iter().flat_map(signs).collect::<Vec<_>>());
}
