use faer::{Mat, get_global_parallelism};
use serde::{Deserialize, Serialize};

use super::factors::Path;
use super::metric::{Metric, Problem, latent_target};
use super::scales::scale_sweeps;
use crate::ops::column_search::{ColumnSearch, column_search};
use crate::ops::row_flips::row_flips;

/// What the refinement did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefineInfo {
    pub row_flips: usize,
    pub column_flips: usize,
    /// Steps whose result was kept, and steps that did not lower the error and were undone.
    pub kept: usize,
    pub undone: usize,
}

/// How much refinement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefineParams {
    pub sweeps: usize,
    /// Scale sweeps after each step.
    pub scale_sweeps: usize,
}

/// Discrete steps on the signs, `sweeps` times over paths x {row flips, column search}, each followed by scale
/// sweeps; a step stays only when err(·; H̃) fell.
pub fn refine(
    problem: &Problem<'_>,
    paths: &mut Vec<Path>,
    metric: &mut Metric,
    params: RefineParams,
) -> RefineInfo {
    let mut info = RefineInfo::default();
    let mut error = metric.error(problem, paths);
    for _ in 0..params.sweeps {
        for p in 0..paths.len() {
            for step in [flip_rows, search_columns] {
                let mut candidate = paths.clone();
                let counted = step(problem, &mut candidate, metric, p);
                let mut candidate_metric = Metric::of(problem, &candidate);
                scale_sweeps(problem, &mut candidate, &mut candidate_metric, params.scale_sweeps);
                let reached = candidate_metric.error(problem, &candidate);
                if reached < error {
                    (error, *paths, *metric) = (reached, candidate, candidate_metric);
                    info.row_flips += counted.row_flips;
                    info.column_flips += counted.column_flips;
                    info.kept += 1;
                } else {
                    info.undone += 1;
                }
            }
        }
    }
    info
}

/// Row flips of path `p` (output side): `Q = diag(l)(gsᵀH̃gs)diag(l)`, `c_i = l ∘ (W_¬p H̃ gs)(i,:)`, gs = diag(g)V.
pub fn flip_rows(_: &Problem<'_>, paths: &mut [Path], metric: &Metric, p: usize) -> RefineInfo {
    let l = &paths[p].l;
    let q = Mat::from_fn(l.len(), l.len(), |j, k| l[j] * metric.bhb[p][p][(j, k)] * l[k]);
    let target = metric.target(paths, p);
    let c = Mat::from_fn(target.nrows(), l.len(), |i, k| l[k] * target[(i, k)]);
    let path = &mut paths[p];
    let row_flips = row_flips(path.u.as_mut(), &path.h, q.as_ref(), c.as_ref());
    RefineInfo { row_flips, ..RefineInfo::default() }
}

/// Column search of path `p` (input side), in the order of falling diag H̃.
pub fn search_columns(problem: &Problem<'_>, paths: &mut [Path], _: &Metric, p: usize) -> RefineInfo {
    let order = &problem.context.order;
    let (n, r) = (order.len(), paths[p].rank());
    let lambda = paths[p].lambda();
    let target = latent_target(problem, paths, &lambda, p);
    let mut b = Mat::from_fn(r, n, |k, j| target[(k, order[j])]);
    let mut signs = Mat::from_fn(r, n, |k, j| paths[p].v[(order[j], k)]);
    let k = lambda.transpose() * &lambda;
    let search = ColumnSearch { k: k.as_ref(), r_transposed: problem.context.r_transposed.as_ref() };
    let (scales, column_flips) = column_search(search, b.as_mut(), &mut signs, get_global_parallelism());
    let path = &mut paths[p];
    for (j, &column) in order.iter().enumerate() {
        path.g[column] = scales[j];
        for k in 0..r {
            path.v[(column, k)] = signs[(k, j)];
        }
    }
    RefineInfo { column_flips, ..RefineInfo::default() }
}
