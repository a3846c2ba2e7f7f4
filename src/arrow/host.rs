use std::sync::Arc;

use faer::linalg::triangular_solve::{solve_lower_triangular_in_place, solve_upper_triangular_in_place};
use faer::{Accum, Mat, MatMut, MatRef, Par};
use rayon::prelude::*;

use super::condition::{Conditioned, corrections, estimate};
use super::frame::{About, Coupling, Elimination, FrameError, Method};
use super::memory::{self, Budget};
use super::rows::{RowFactors, not_positive};
use super::structured::Capacitance;
use super::vector::largest;
use super::{Block, Border, Cross, Path, Ridge, System, Vector};
use crate::ops::cholesky::cholesky;
use crate::ops::matmul::rows;
use crate::ops::syrk::symmetric_product;
use crate::ops::triangular;

/// The frame of the host path: f64, blocked, parallel, the same bits for any number of threads.
pub(super) struct HostFrame {
    system: Arc<System>,
    ridge: Ridge,
    rows: RowFactors,
    core: Core,
    condition: f64,
    corrections: u32,
}

/// What is factored once the other unknowns are eliminated.
enum Core {
    Schur { y: Cross, s: Factor },
    Capacitance(Capacitance),
}

impl HostFrame {
    pub(super) fn build(system: &Arc<System>, ridge: Ridge, budget: Budget) -> Result<Self, FrameError> {
        let needed = memory::host_frame_bytes(system);
        let (m, p) = (system.unknowns(), system.border());
        budget.check(needed, &format!("{m} row and {p} border unknowns"), memory::host_available)?;
        let rows = RowFactors::build(system, ridge)?;
        let core = if memory::uses_capacitance(system) {
            Core::Capacitance(Capacitance::build(system, &rows, ridge)?)
        } else {
            schur(system, &rows, ridge)?
        };
        let mut frame = Self { system: system.clone(), ridge, rows, core, condition: 1.0, corrections: 0 };
        frame.condition = estimate(&frame);
        frame.corrections = corrections(frame.condition);
        Ok(frame)
    }

    pub(super) fn solve_many(&self, rhs: &[Vector]) -> Vec<Vector> {
        let mut steps = self.solve_raw(rhs);
        for _ in 0..self.corrections {
            let rest: Vec<Vector> = rhs.iter().zip(&steps).map(|(rhs, step)| self.rest(rhs, step)).collect();
            for (step, correction) in steps.iter_mut().zip(self.solve_raw(&rest)) {
                step.add_scaled(1.0, &correction);
            }
        }
        steps
    }

    pub(super) fn log_det(&self) -> f64 {
        let core = match &self.core {
            Core::Schur { s, .. } => s.log_det(),
            Core::Capacitance(capacitance) => capacitance.log_det(),
        };
        self.rows.log_det() + core
    }

    pub(super) fn about(&self) -> About {
        About {
            path: Path::Host,
            elimination: match &self.core {
                Core::Schur { .. } => Elimination::Rows,
                Core::Capacitance(_) => Elimination::Border,
            },
            coupling: match self.coupling() {
                Cross::Dense(_) => Coupling::Dense,
                Cross::Factored { .. } => Coupling::Factored,
            },
            method: Method::TriangularSolves,
            corrections: self.corrections,
            condition: self.condition,
            ridge: self.ridge,
        }
    }

    fn coupling(&self) -> &Cross {
        match &self.core {
            Core::Schur { y, .. } => y,
            Core::Capacitance(capacitance) => capacitance.coupling(),
        }
    }

    /// Cholesky factorisations behind the frame: the row blocks count as one.
    pub(super) fn factorisations(&self) -> u64 {
        1 + match &self.core {
            Core::Schur { .. } => 1,
            Core::Capacitance(capacitance) => capacitance.factorisations(),
        }
    }

    /// `b − (H + ridge)·δ`.
    fn rest(&self, rhs: &Vector, step: &Vector) -> Vector {
        let mut rest = self.system.apply_ridged(self.ridge, step);
        rest.row.iter_mut().zip(&rhs.row).for_each(|(y, b)| *y = b - *y);
        rest.border.iter_mut().zip(&rhs.border).for_each(|(y, b)| *y = b - *y);
        rest
    }

    /// Without corrections:
    /// `u = L⁻¹b_t`, `S δβ = b_β − Yᵀu`, `δt = L⁻ᵀ(u − Y δβ)`.
    fn solve_raw(&self, rhs: &[Vector]) -> Vec<Vector> {
        if let [rhs] = rhs {
            return vec![self.solve_one(rhs)];
        }
        let column = |part: fn(&Vector) -> &Vec<f64>| {
            Mat::from_fn(rhs.first().map_or(0, |v| part(v).len()), rhs.len(), |i, k| part(&rhs[k])[i])
        };
        let (mut t, mut beta) = (column(|v| &v.row), column(|v| &v.border));
        self.rows.forward_many(&mut t);
        match &self.core {
            Core::Schur { y, s } => {
                y.multiply_transposed_many(self.rows.offsets(), -1.0, &t, &mut beta);
                s.solve(beta.as_mut());
                y.multiply_many(self.rows.offsets(), -1.0, &beta, &mut t);
            }
            Core::Capacitance(capacitance) => capacitance.solve_many(self.rows.offsets(), &mut t, &mut beta),
        }
        self.rows.backward_many(&mut t);
        let step = |k| Vector { row: t.col_as_slice(k).to_vec(), border: beta.col_as_slice(k).to_vec() };
        (0..rhs.len()).map(step).collect()
    }

    fn solve_one(&self, rhs: &Vector) -> Vector {
        let Vector { mut row, mut border } = rhs.clone();
        self.rows.forward(&mut row);
        match &self.core {
            Core::Schur { y, s } => {
                y.multiply_transposed(self.rows.offsets(), -1.0, &row, &mut border);
                s.solve_one(&mut border);
                y.multiply(self.rows.offsets(), -1.0, &border, &mut row);
            }
            Core::Capacitance(capacitance) => {
                capacitance.solve_one(self.rows.offsets(), &mut row, &mut border);
            }
        }
        self.rows.backward(&mut row);
        Vector { row, border }
    }
}

impl Conditioned for HostFrame {
    fn diagonal(&self) -> Vector {
        let mut h = self.system.diagonal();
        h.row.iter_mut().for_each(|h| *h += self.ridge.on_row(*h));
        h.border.iter_mut().for_each(|h| *h += self.ridge.on_border(*h));
        h
    }

    fn smallest_pivot(&self) -> f64 {
        let h = self.diagonal();
        let share = |(l, h): (f64, &f64)| l * l / h;
        match &self.core {
            Core::Schur { s, .. } => {
                let rows = self.rows.pivots().zip(&h.row).map(share).fold(1.0, f64::min);
                s.pivots().zip(&h.border).map(share).fold(rows, f64::min)
            }
            // With the border first, the rows' Schur complement is L·K·Lᵀ.
            Core::Capacitance(capacitance) => {
                let border = capacitance.border_share();
                let both = self.rows.pivots().zip(capacitance.pivots()).map(|(l, k)| l * k);
                both.zip(&h.row).map(share).fold(border, f64::min)
            }
        }
    }

    fn solve(&self, rhs: &Vector) -> Vector {
        self.solve_one(rhs)
    }

    fn apply(&self, z: &Vector) -> Vector {
        self.system.apply_ridged(self.ridge, z)
    }
}

/// `S = C + ridge − YᵀY`, factored.
fn schur(system: &System, factors: &RowFactors, ridge: Ridge) -> Result<Core, FrameError> {
    let (m, p) = (system.unknowns(), system.border());
    let y = factors.couple(system.cross(), p);
    let mut s = match system.border_hessian() {
        Border::Dense(c) => c.clone(),
        structured => structured.to_dense(p),
    };
    let height = largest(s.iter().step_by(p + 1).copied());
    for entry in s.iter_mut().step_by(p + 1) {
        *entry += ridge.on_border(*entry);
    }
    let dense;
    let slab = match &y {
        Cross::Dense(y) => y,
        factored => {
            dense = factored.to_dense(factors.offsets(), p);
            &dense
        }
    };
    let y_slab = rows(slab, m, p);
    let target = MatMut::from_column_major_slice_mut(&mut s, p, p);
    symmetric_product(target, Accum::Add, y_slab.transpose(), y_slab, -1.0, Par::rayon(0));
    let s = Factor::build(s, p).map_err(|e| not_positive(Block::Border, e, height))?;
    Ok(Core::Schur { y, s })
}

/// Right-hand sides of one task: wide enough for the product's full speed, and two tasks for 64 of them.
const COLUMNS_PER_TASK: usize = 32;

/// A Cholesky factor, column-major, lower triangle.
pub(super) struct Factor {
    l: Vec<f64>,
    n: usize,
}

impl Factor {
    pub(super) fn build(mut a: Vec<f64>, n: usize) -> Result<Self, crate::ops::cholesky::NonPositivePivot> {
        cholesky(MatMut::from_column_major_slice_mut(&mut a, n, n), Par::rayon(0))?;
        Ok(Self { l: a, n })
    }

    fn lower(&self) -> MatRef<'_, f64> {
        MatRef::from_column_major_slice(&self.l, self.n, self.n)
    }

    /// `X ← L⁻¹X`, some columns at a time: which ones are solved together does not depend on the threads.
    pub(super) fn forward(&self, x: MatMut<'_, f64>) {
        let solve = |x: MatMut<'_, f64>| solve_lower_triangular_in_place(self.lower(), x, Par::Seq);
        x.par_col_chunks_mut(COLUMNS_PER_TASK).for_each(solve);
    }

    /// `X ← L⁻ᵀX`.
    pub(super) fn backward(&self, x: MatMut<'_, f64>) {
        let solve =
            |x: MatMut<'_, f64>| solve_upper_triangular_in_place(self.lower().transpose(), x, Par::Seq);
        x.par_col_chunks_mut(COLUMNS_PER_TASK).for_each(solve);
    }

    /// `X ← (L·Lᵀ)⁻¹X`.
    pub(super) fn solve(&self, mut x: MatMut<'_, f64>) {
        self.forward(x.as_mut());
        self.backward(x);
    }

    pub(super) fn solve_one(&self, x: &mut [f64]) {
        triangular::forward(&self.l, x);
        triangular::backward(&self.l, x);
    }

    pub(super) fn pivots(&self) -> impl Iterator<Item = f64> + '_ {
        self.l.iter().step_by(self.n + 1).copied()
    }

    /// The smallest squared pivot over its diagonal entry `Σ_j l_kj²`.
    pub(super) fn smallest_share(&self) -> f64 {
        let share = |k: usize| {
            let row = (0..=k).map(|j| self.l[j * self.n + k].powi(2)).sum::<f64>();
            self.l[k * (self.n + 1)].powi(2) / row
        };
        (0..self.n).map(share).fold(1.0, f64::min)
    }

    /// The factor mirrored: element (max, min) of L at both places.
    #[cfg(feature = "cuda")]
    pub(super) fn mirrored(&self) -> Vec<f64> {
        let mut whole = self.l.clone();
        crate::ops::syrk::mirror_lower(MatMut::from_column_major_slice_mut(&mut whole, self.n, self.n));
        whole
    }

    pub(super) fn log_det(&self) -> f64 {
        self.pivots().map(|l| 2.0 * l.ln()).sum()
    }
}
