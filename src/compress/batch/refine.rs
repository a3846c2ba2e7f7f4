//! Discrete steps on the signs of all candidates of a batch; [`compress::refine`] has the formulas.
//!
//! [`compress::refine`]: crate::compress::refine

use super::job::{Job, column};
use super::metric::{errors, lambda_grams, lambdas, update};
use super::report::{self, Clock};
use super::scales::{scale_sweeps, subtract_others};
use crate::compress::refine::RefineParams;
use crate::device::DeviceError;
use crate::device::arena::Arena;
use crate::ops::column_search_batch::{ColumnSearchItem, column_search_batch};
use crate::ops::gather::{Gather, Order, gather};
use crate::ops::gemm::gemm;
use crate::ops::row_flips::{RowFlips, row_flips_batch};
use crate::ops::scale::{Scale, scale};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Rows,
    Columns,
}

/// `sweeps` times over paths x {row flips, column search}, each followed by scale sweeps; a step stays only when
/// err(·; H̃) fell. What is tried becomes what is kept first.
pub fn refine(
    arena: &mut Arena,
    jobs: &mut [&mut Job],
    params: RefineParams,
    clock: &mut Clock,
) -> Result<(), DeviceError> {
    let reached = errors(arena, &jobs.iter().map(|j| &**j).collect::<Vec<_>>())?;
    for (job, error) in jobs.iter_mut().zip(reached) {
        job.error = error;
        keep(job);
    }
    for _ in 0..params.sweeps {
        for p in 0..2 {
            for step in [Step::Rows, Step::Columns] {
                let mut active: Vec<&mut Job> =
                    jobs.iter_mut().filter(|j| p < j.active).map(|j| &mut **j).collect();
                try_step(arena, &mut active, (p, step), params.scale_sweeps, clock)?;
            }
        }
    }
    Ok(())
}

fn keep(job: &mut Job) {
    std::mem::swap(&mut job.kept, &mut job.tried);
}

fn try_step(
    arena: &mut Arena,
    jobs: &mut [&mut Job],
    (p, step): (usize, Step),
    sweeps: usize,
    clock: &mut Clock,
) -> Result<(), DeviceError> {
    let shared: Vec<&Job> = jobs.iter().map(|j| &**j).collect();
    let copies: Vec<_> = shared.iter().map(|j| Scale::new(j.kept.whole(), j.tried.whole())).collect();
    scale(arena, &copies);
    match step {
        Step::Rows => {
            flip_rows(arena, &shared, p);
            clock.lap(arena, report::Step::RowFlips)?;
        }
        Step::Columns => {
            search_columns(arena, &shared, p);
            clock.lap(arena, report::Step::ColumnSearch)?;
        }
    }
    scale_sweeps(arena, &shared, sweeps);
    let reached = errors(arena, &shared)?;
    clock.lap(arena, report::Step::Scales)?;
    let flips = read_flips(arena, &shared, step)?;
    for ((job, reached), flips) in jobs.iter_mut().zip(reached).zip(flips) {
        settle(job, step, reached, flips);
    }
    Ok(())
}

/// Keeps a step that lowered the error. One that has no flips or no finite error fails the candidate: its error becomes
/// NaN, below which no later step gets, and which [`judge`](mod@super::judge) reports.
pub fn settle(job: &mut Job, step: Step, reached: f64, flips: Option<usize>) {
    match flips {
        Some(flips) if reached < job.error => {
            job.error = reached;
            keep(job);
            job.info.kept += 1;
            match step {
                Step::Rows => job.info.row_flips += flips,
                Step::Columns => job.info.column_flips += flips,
            }
        }
        Some(_) if reached.is_finite() => job.info.undone += 1,
        _ => job.error = f64::NAN,
    }
}

/// The flips of a step; nothing for a candidate whose loops were cut short.
pub fn read_flips(arena: &mut Arena, jobs: &[&Job], step: Step) -> Result<Vec<Option<usize>>, DeviceError> {
    let len = |job: &Job| if step == Step::Rows { job.shape.m } else { job.shape.n };
    let Some(first) = jobs.iter().map(|j| j.flips).min() else { return Ok(Vec::new()) };
    let end = jobs.iter().map(|j| j.flips + len(j)).max().unwrap_or(first);
    let values = arena.read(first, end - first)?;
    let count = |job: &&Job| {
        let flips = &values[job.flips - first..][..len(job)];
        flips.iter().all(|flips| flips.is_finite()).then(|| flips.iter().map(|flips| *flips as usize).sum())
    };
    Ok(jobs.iter().map(count).collect())
}

/// Row flips of path `p`: `Q = diag(l)(BᵀH̃B)_pp diag(l)`, `C = (WH̃B_p − Σ_c Λ_c (BᵀH̃B)_cp) diag(l)`.
pub fn flip_rows<'a>(arena: &mut Arena, jobs: &[&'a Job], p: usize) {
    lambdas(arena, jobs);
    let copies = |j: &&Job| {
        let q = Scale::new(j.block(j.tried.bhb, p, p), j.scratch.small[0]).rows(j.l(p)).cols(j.l(p));
        [q, Scale::new(j.path(j.tried.wb, p), j.path(j.scratch.left[0], p))]
    };
    scale(arena, &jobs.iter().flat_map(copies).collect::<Vec<_>>());
    let explained = |j: &&'a Job| {
        let job = *j;
        j.others(p).map(move |c| {
            let (lambda, metric) = (job.path(job.scratch.lambda, c), job.block(job.tried.bhb, c, p));
            job.product(lambda, metric, job.path(job.scratch.left[0], p)).alpha(-1.0).beta(1.0)
        })
    };
    gemm(arena, &jobs.iter().flat_map(explained).collect::<Vec<_>>());
    let scaled = |j: &&Job| {
        let c = j.path(j.scratch.left[0], p);
        Scale::new(c, c).cols(j.l(p))
    };
    scale(arena, &jobs.iter().map(scaled).collect::<Vec<_>>());
    let products = |j: &&Job| {
        j.product(j.path(j.tried.u, p), j.scratch.small[0], j.path(j.scratch.left[1], p)).a_signs()
    };
    gemm(arena, &jobs.iter().map(products).collect::<Vec<_>>());
    let items = |j: &&Job| RowFlips {
        signs: j.path(j.tried.u, p),
        scale: j.h(p),
        q: j.scratch.small[0],
        sq: j.path(j.scratch.left[1], p),
        c: j.path(j.scratch.left[0], p),
        flips: j.flips,
    };
    row_flips_batch(arena, &jobs.iter().map(items).collect::<Vec<_>>());
}

/// Column search of path `p`, in the order of falling diag H̃, towards `(Λ_pᵀ W_¬p)ᵀ` (n x r).
pub fn search_columns(arena: &mut Arena, jobs: &[&Job], p: usize) {
    lambdas(arena, jobs);
    lambda_grams(arena, jobs, p);
    let targets =
        |j: &&Job| j.product(j.weight, j.path(j.scratch.lambda, p), j.scratch.right[0]).a_transposed();
    gemm(arena, &jobs.iter().map(targets).collect::<Vec<_>>());
    subtract_others(arena, jobs, p, |j| j.tried.b);
    let ordered = |j: &&Job| {
        let (rows, cols, order) = (Some(j.site.order), None, Order::Straight);
        [
            Gather { a: j.scratch.right[0], out: j.scratch.right[1], rows, cols, order },
            Gather { a: j.path(j.tried.v, p), out: j.scratch.right[2], rows, cols, order },
        ]
    };
    gather(arena, &jobs.iter().flat_map(ordered).collect::<Vec<_>>());
    let items = |j: &&Job| ColumnSearchItem {
        signs: j.scratch.right[2],
        b: j.scratch.right[1],
        k: j.block(j.scratch.gram, p, p),
        r_transposed: j.site.r_transposed,
        scale: j.scratch.vectors[0],
        flips: j.flips,
        ks: j.scratch.right[3],
        errors: j.scratch.errors,
        parts: j.parts,
    };
    column_search_batch(arena, &jobs.iter().map(items).collect::<Vec<_>>());
    let back = |j: &&Job| {
        let (rows, cols, order) = (Some(j.site.position), None, Order::Straight);
        let n = j.shape.n;
        [
            Gather { a: j.scratch.right[2], out: j.path(j.tried.v, p), rows, cols, order },
            Gather { a: column(j.scratch.vectors[0], n), out: column(j.g(p), n), rows, cols, order },
        ]
    };
    gather(arena, &jobs.iter().flat_map(back).collect::<Vec<_>>());
    update(arena, jobs, p);
}
