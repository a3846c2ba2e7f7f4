use faer::{Accum, Mat, get_global_parallelism};

use super::factors::Path;
use super::metric::{Metric, Problem};
use crate::ops::spd_solve::{RELATIVE_RIDGE, spd_solve};
use crate::ops::syrk::symmetric_product;

/// `sweeps` rounds of exact least squares for l, then h, then g of each path; the error never rises.
///
/// A system that cannot be solved leaves its scales as they are. `metric` is up to date before and after.
pub fn scale_sweeps(problem: &Problem<'_>, paths: &mut [Path], metric: &mut Metric, sweeps: usize) {
    for _ in 0..sweeps {
        fit_l(paths, metric);
        fit_h(paths, metric);
        for p in 0..paths.len() {
            fit_g(problem, paths, metric, p);
        }
    }
}

/// l of all paths at once: `(AᵀA ∘ BᵀH̃B) l = diag(Aᵀ W H̃ B)` with `A = [diag(h_p) U_p]`, a (Pr) x (Pr) system.
pub fn fit_l(paths: &mut [Path], metric: &Metric) {
    let r = paths[0].rank();
    let a: Vec<_> = paths.iter().map(Path::hu).collect();
    let mut system = Mat::zeros(paths.len() * r, paths.len() * r);
    let mut rhs = Vec::with_capacity(paths.len() * r);
    for p in 0..paths.len() {
        for c in 0..=p {
            let gram = a[p].transpose() * &a[c];
            let mut part = system.as_mut().submatrix_mut(p * r, c * r, r, r);
            for k in 0..r {
                for j in 0..r {
                    part[(j, k)] = gram[(j, k)] * metric.bhb[p][c][(j, k)];
                }
            }
        }
        rhs.extend((0..r).map(|k| dot(a[p].col(k).iter(), metric.wb[p].col(k).iter())));
    }
    if let Some(l) = spd_solve(system, &rhs) {
        for (path, l) in paths.iter_mut().zip(l.chunks_exact(r)) {
            path.l.copy_from_slice(l);
        }
    }
}

/// h, one system of P x P for each row i: `G_ac(i) = M_a(i,:)(B_aᵀH̃B_c)M_c(i,:)ᵀ`,
/// `rhs_a(i) = (W H̃ B_a)(i,:)·M_a(i,:)`, `M_p = U_p diag(l_p)`.
pub fn fit_h(paths: &mut [Path], metric: &Metric) {
    let left: Vec<_> = paths.iter().map(Path::ul).collect();
    let count = paths.len();
    let rhs: Vec<Vec<f64>> = (0..count).map(|a| row_dots(&metric.wb[a], &left[a])).collect();
    let gram = |a: usize, c: usize| row_dots(&(&left[a] * &metric.bhb[a][c]), &left[c]);
    let first = gram(0, 0);
    if count == 1 {
        for (i, h) in paths[0].h.iter_mut().enumerate() {
            let fitted = rhs[0][i] / (first[i] * (1.0 + RELATIVE_RIDGE));
            if fitted.is_finite() {
                *h = fitted;
            }
        }
        return;
    }
    let (cross, second) = (gram(0, 1), gram(1, 1));
    for i in 0..first.len() {
        let ridge = RELATIVE_RIDGE * 0.5 * (first[i] + second[i]);
        let (a, b, d) = (first[i] + ridge, cross[i], second[i] + ridge);
        let determinant = a * d - b * b;
        let x = (d * rhs[0][i] - b * rhs[1][i]) / determinant;
        let y = (a * rhs[1][i] - b * rhs[0][i]) / determinant;
        if determinant > 0.0 && x.is_finite() && y.is_finite() {
            paths[0].h[i] = x;
            paths[1].h[i] = y;
        }
    }
}

/// g of path `p`: `(V K Vᵀ ∘ H̃) g = rhs`, `K = ΛᵀΛ`, `rhs_j = Σ_i (ΛVᵀ)_ij (W_¬p H̃)_ij`, an n x n system.
pub fn fit_g(problem: &Problem<'_>, paths: &mut [Path], metric: &mut Metric, p: usize) {
    let (path, n) = (&paths[p], paths[p].g.len());
    let lambda = path.lambda();
    // Λᵀ W_¬p H̃, r x n
    let mut target = lambda.transpose() * &problem.weighted;
    for c in (0..paths.len()).filter(|&c| c != p) {
        target -= (lambda.transpose() * paths[c].lambda()) * metric.hb[c].transpose();
    }
    let rhs: Vec<f64> = (0..n).map(|j| dot(path.v.row(j).iter(), target.col(j).iter())).collect();
    let vk = &path.v * (lambda.transpose() * &lambda);
    let mut system = Mat::zeros(n, n);
    let par = get_global_parallelism();
    symmetric_product(system.as_mut(), Accum::Replace, vk.as_ref(), path.v.transpose(), 1.0, par);
    for j in 0..n {
        let metric = problem.context.damped.col(j).subrows(j, n - j);
        let column = system.col_mut(j).subrows_mut(j, n - j);
        column.iter_mut().zip(metric.iter()).for_each(|(s, h)| *s *= h);
    }
    if let Some(g) = spd_solve(system, &rhs) {
        paths[p].g = g;
        metric.update(problem, &paths[p], p);
    }
}

fn row_dots(a: &Mat<f64>, b: &Mat<f64>) -> Vec<f64> {
    let mut sums = vec![0.0; a.nrows()];
    for k in 0..a.ncols() {
        for (sum, (a, b)) in sums.iter_mut().zip(a.col(k).iter().zip(b.col(k).iter())) {
            *sum += a * b;
        }
    }
    sums
}

fn dot<'a>(a: impl Iterator<Item = &'a f64>, b: impl Iterator<Item = &'a f64>) -> f64 {
    a.zip(b).map(|(a, b)| a * b).sum()
}
