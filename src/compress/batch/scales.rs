//! Alternating exact least squares for the scales of all candidates of a batch; [`compress::scales`] has the formulas.
//!
//! [`compress::scales`]: crate::compress::scales

use super::job::Job;
use super::metric::{lambda_grams, lambdas, update};
use crate::device::arena::{Arena, View};
use crate::ops::dots::{Dots, col_dots, row_dots};
use crate::ops::gemm::gemm;
use crate::ops::pair_solve::{PairSolve, Unknown, pair_solve};
use crate::ops::scale::{Scale, scale};
use crate::ops::spd_factor::{SpdFactor, SpdSolve, spd_factor, spd_solve_batch};

/// `sweeps` rounds of l, h, and g of each started path, of what is tried. A system that cannot be solved leaves its
/// scales as they are. The metric is up to date before and after.
pub fn scale_sweeps(arena: &mut Arena, jobs: &[&Job], sweeps: usize) {
    for _ in 0..sweeps {
        fit_l(arena, jobs);
        fit_h(arena, jobs);
        for p in 0..2 {
            let started: Vec<_> = jobs.iter().copied().filter(|j| p < j.active).collect();
            fit_g(arena, &started, p);
        }
    }
}

pub fn fit_l<'a>(arena: &mut Arena, jobs: &[&'a Job]) {
    let hu = |j: &&'a Job| {
        let job = *j;
        (0..j.active).map(move |p| {
            Scale::new(job.path(job.tried.u, p), job.path(job.scratch.left[0], p)).rows(job.h(p))
        })
    };
    scale(arena, &jobs.iter().flat_map(hu).collect::<Vec<_>>());
    let systems = |j: &&Job| {
        let a = j.all(j.scratch.left[0]);
        let system = factor(j, j.width()).a;
        j.product(a, a, system).a_transposed().hadamard(j.square(j.tried.bhb)).lower()
    };
    gemm(arena, &jobs.iter().map(systems).collect::<Vec<_>>());
    let rhs =
        |j: &&Job| Dots { a: j.all(j.scratch.left[0]), b: j.all(j.tried.wb), out: j.scratch.vectors[0] };
    col_dots(arena, &jobs.iter().map(rhs).collect::<Vec<_>>());
    solve(arena, jobs, |j| (j.width(), j.tried.l));
}

pub fn fit_h<'a>(arena: &mut Arena, jobs: &[&'a Job]) {
    let ul = |j: &&'a Job| {
        let job = *j;
        (0..j.active).map(move |p| {
            Scale::new(job.path(job.tried.u, p), job.path(job.scratch.left[0], p)).cols(job.l(p))
        })
    };
    scale(arena, &jobs.iter().flat_map(ul).collect::<Vec<_>>());
    let two: Vec<_> = jobs.iter().copied().filter(|j| j.active == 2).collect();
    // M_0·(BᵀH̃B)_0c side by side, and its products with M_c, row by row; then the same of M_1 alone.
    let first =
        |j: &&Job| j.product(j.path(j.scratch.left[0], 0), j.band(j.tried.bhb, 0), j.all(j.scratch.left[1]));
    gemm(arena, &jobs.iter().map(first).collect::<Vec<_>>());
    let dots = |j: &&'a Job| {
        let [m, t, v] = [j.scratch.left[0], j.scratch.left[1], j.tried.wb];
        let job = *j;
        (0..j.active).flat_map(move |p| {
            [
                Dots { a: job.path(v, p), b: job.path(m, p), out: job.scratch.vectors[p] },
                Dots { a: job.path(t, p), b: job.path(m, p), out: job.scratch.vectors[2 + p] },
            ]
        })
    };
    row_dots(arena, &jobs.iter().flat_map(dots).collect::<Vec<_>>());
    let second = |j: &&Job| {
        j.product(j.path(j.scratch.left[0], 1), j.block(j.tried.bhb, 1, 1), j.path(j.scratch.left[1], 1))
    };
    gemm(arena, &two.iter().map(second).collect::<Vec<_>>());
    let last = |j: &&Job| Dots {
        a: j.path(j.scratch.left[1], 1),
        b: j.path(j.scratch.left[0], 1),
        out: j.scratch.vectors[4],
    };
    row_dots(arena, &two.iter().map(last).collect::<Vec<_>>());
    let systems = |j: &&Job| {
        let [rhs0, rhs1, g00, g01, g11] = j.scratch.vectors;
        PairSolve {
            rows: j.shape.m,
            first: Unknown { rhs: rhs0, diagonal: g00, x: j.h(0) },
            second: (j.active == 2).then(|| (Unknown { rhs: rhs1, diagonal: g11, x: j.h(1) }, g01)),
        }
    };
    pair_solve(arena, &jobs.iter().map(systems).collect::<Vec<_>>());
}

pub fn fit_g(arena: &mut Arena, jobs: &[&Job], p: usize) {
    lambdas(arena, jobs);
    lambda_grams(arena, jobs, p);
    // (Λ_pᵀ W_¬p H̃)ᵀ, n x r
    let target =
        |j: &&Job| j.product(j.weighted, j.path(j.scratch.lambda, p), j.scratch.right[0]).a_transposed();
    let products = |j: &&Job| {
        let k = j.block(j.scratch.gram, p, p);
        [target(j), j.product(j.path(j.tried.v, p), k, j.scratch.right[1]).a_signs()]
    };
    gemm(arena, &jobs.iter().flat_map(products).collect::<Vec<_>>());
    subtract_others(arena, jobs, p, |j| j.tried.hb);
    let systems = |j: &&Job| {
        let system = factor(j, j.shape.n).a;
        let v = j.path(j.tried.v, p);
        j.product(j.scratch.right[1], v, system).b_transposed().b_signs().hadamard(j.site.damped).lower()
    };
    gemm(arena, &jobs.iter().map(systems).collect::<Vec<_>>());
    let rhs = |j: &&Job| Dots { a: j.path(j.tried.v, p), b: j.scratch.right[0], out: j.scratch.vectors[0] };
    row_dots(arena, &jobs.iter().map(rhs).collect::<Vec<_>>());
    solve(arena, jobs, |j| (j.shape.n, j.g(p)));
    update(arena, jobs, p);
}

/// `right[0] −= X_c (Λ_pᵀΛ_c)ᵀ` for the other paths: what they explain already.
pub fn subtract_others<'a>(arena: &mut Arena, jobs: &[&'a Job], p: usize, x: impl Fn(&Job) -> View) {
    let x = &x;
    let products = |j: &&'a Job| {
        let (job, x) = (*j, x(j));
        j.others(p).map(move |c| {
            let gram = job.block(job.scratch.gram, p, c);
            job.product(job.path(x, c), gram, job.scratch.right[0]).b_transposed().alpha(-1.0).beta(1.0)
        })
    };
    gemm(arena, &jobs.iter().flat_map(products).collect::<Vec<_>>());
}

/// Solves the system of each candidate (order and unknowns from `what`) with the right-hand side in its first vector.
fn solve(arena: &mut Arena, jobs: &[&Job], what: impl Fn(&Job) -> (usize, usize)) {
    let factors: Vec<_> = jobs.iter().map(|j| factor(j, what(j).0)).collect();
    spd_factor(arena, &factors);
    let solves: Vec<_> = (jobs.iter().zip(&factors))
        .map(|(j, factor)| {
            let [b, work, ..] = j.scratch.vectors;
            SpdSolve { factor: *factor, b, x: what(j).1, work }
        })
        .collect();
    spd_solve_batch(arena, &solves);
}

/// The candidate's system, in an order that it has room for.
fn factor(job: &Job, order: usize) -> SpdFactor {
    SpdFactor { a: View::new(job.scratch.system.at, order, order), parts: job.parts, ..job.scratch.factor }
}
