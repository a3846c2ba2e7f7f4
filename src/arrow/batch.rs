use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::system::are_mirrored;
use super::{Block, Border, Cross, Rows, System, SystemError, Vector};
use crate::ops::cholesky::{backward_small, cholesky_small, forward_small};

/// Largest border of a batched system.
pub const LARGEST_BORDER: usize = 32;
/// Largest row block of a batched system.
pub const LARGEST_ROW: usize = 3;

/// Systems of one task: some 100 µs of work.
const SYSTEMS_PER_TASK: usize = 16;

/// Many small systems of one d and p, each with its own number of row blocks (ragged), one behind the other.
///
/// | symbol | field | shape, N = `offsets[A]` |
/// |---|---|---|
/// | A systems | `offsets`: first row block of each, N at the end | A + 1 |
/// | D | `row_hessian` | N x d x d |
/// | B | `row_cross` | N x d x p |
/// | C | `border_hessian` | A x p x p |
/// | b_t, b_β | `row_rhs`, `border_rhs` | N x d, A x p |
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    pub dim: usize,
    pub border: usize,
    pub offsets: Vec<usize>,
    pub row_hessian: Vec<f64>,
    pub row_cross: Vec<f64>,
    pub border_hessian: Vec<f64>,
    pub row_rhs: Vec<f64>,
    pub border_rhs: Vec<f64>,
}

/// The steps of a batch; those of systems that failed are zero.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchSolution {
    /// N x d.
    pub row: Vec<f64>,
    /// A x p.
    pub border: Vec<f64>,
    /// A.
    pub log_det: Vec<f64>,
    /// A.
    pub status: Vec<Status>,
}

/// What became of one system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Status {
    Solved,
    /// Add a ridge larger than the pivot is below zero.
    NotPositiveDefinite {
        block: Block,
        index: usize,
        pivot: f64,
    },
    NonFinite,
    Asymmetric {
        block: Block,
    },
}

/// Why slabs do not make a batch.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BatchError {
    #[error(
        "row blocks of {dim} and a border of {border} are asked for; a batch takes 1 to {LARGEST_ROW} and 1 to {LARGEST_BORDER}, solve larger systems one by one"
    )]
    Size { dim: usize, border: usize },
    #[error("`offsets` must begin with 0 and rise: entry {index} is {got}")]
    Offsets { index: usize, got: usize },
    #[error("`{slab}` has {got} numbers where {expected} are expected")]
    Length { slab: &'static str, got: usize, expected: usize },
    #[error("system {index}: {source}")]
    System { index: usize, source: SystemError },
}

impl BatchSolution {
    /// The step of system `k`.
    ///
    /// # Panics
    /// When there is no system `k` in `batch`.
    pub fn step(&self, batch: &Batch, k: usize) -> Vector {
        let (d, p) = (batch.dim, batch.border);
        let row = self.row[batch.offsets[k] * d..batch.offsets[k + 1] * d].to_vec();
        Vector { row, border: self.border[k * p..(k + 1) * p].to_vec() }
    }
}

impl Batch {
    /// A.
    pub fn systems(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// System `k` and its right-hand side, on their own.
    ///
    /// # Errors
    /// Slabs that do not fit the offsets, or a system that is not valid by itself.
    ///
    /// # Panics
    /// When there is no system `k`.
    pub fn system(&self, k: usize) -> Result<(System, Vector), BatchError> {
        self.check()?;
        let (d, p) = (self.dim, self.border);
        let at = self.offsets[k]..self.offsets[k + 1];
        let rows = |slab: &[f64], width: usize| slab[at.start * width..at.end * width].to_vec();
        let border = self.border_hessian[k * p * p..(k + 1) * p * p].to_vec();
        let (row_hessian, cross) =
            (rows(&self.row_hessian, d * d), Cross::Dense(rows(&self.row_cross, d * p)));
        let shape = Rows::Uniform { count: at.len(), dim: d };
        let system = System::new(shape, p, row_hessian, cross, Border::Dense(border))
            .map_err(|source| BatchError::System { index: k, source })?;
        let border_rhs = self.border_rhs[k * p..(k + 1) * p].to_vec();
        Ok((system, Vector { row: rows(&self.row_rhs, d), border: border_rhs }))
    }

    /// Solves every system: `δ = H⁻¹b` each, with a status each; a system that fails leaves its neighbours alone.
    ///
    /// Parallel over systems, plain loops inside one: a system fits into the first caches. The bits do not depend on
    /// threads or neighbours.
    ///
    /// # Errors
    /// Slabs whose lengths do not fit the offsets. A bad system is a [`Status`].
    pub fn solve(&self) -> Result<BatchSolution, BatchError> {
        self.check()?;
        let (d, p, systems) = (self.dim, self.border, self.systems());
        let mut solution = BatchSolution {
            row: vec![0.0; self.offsets[systems] * d],
            border: vec![0.0; systems * p],
            log_det: vec![0.0; systems],
            status: vec![Status::Solved; systems],
        };
        let BatchSolution { row, border, log_det, status } = &mut solution;
        let mut rest = &mut row[..];
        let mut tasks = Vec::new();
        for first in (0..systems).step_by(SYSTEMS_PER_TASK) {
            let range = first..(first + SYSTEMS_PER_TASK).min(systems);
            let (part, tail) = rest.split_at_mut((self.offsets[range.end] - self.offsets[first]) * d);
            tasks.push((range, part));
            rest = tail;
        }
        let outputs = border
            .par_chunks_mut(SYSTEMS_PER_TASK * p)
            .zip(log_det.par_chunks_mut(SYSTEMS_PER_TASK))
            .zip(status.par_chunks_mut(SYSTEMS_PER_TASK));
        let arch = pulp::Arch::new();
        tasks.into_par_iter().zip(outputs).for_each(|((range, row), ((border, log_det), status))| {
            arch.dispatch(Task { batch: self, range, row, border, log_det, status });
        });
        Ok(solution)
    }

    /// Whether the numbers of system `k` make one: finite, and symmetric blocks.
    #[cfg(feature = "cuda")]
    pub(super) fn check_numbers(&self, k: usize) -> Status {
        self.one(k).check(self.border).err().unwrap_or(Status::Solved)
    }

    #[inline(always)]
    fn one(&self, k: usize) -> One<'_> {
        let (d, p) = (self.dim, self.border);
        let rows = self.offsets[k]..self.offsets[k + 1];
        One {
            d,
            row_hessian: &self.row_hessian[rows.start * d * d..rows.end * d * d],
            row_cross: &self.row_cross[rows.start * d * p..rows.end * d * p],
            border_hessian: &self.border_hessian[k * p * p..(k + 1) * p * p],
            row_rhs: &self.row_rhs[rows.start * d..rows.end * d],
            border_rhs: &self.border_rhs[k * p..(k + 1) * p],
        }
    }

    /// Whether the slabs fit together.
    ///
    /// # Errors
    /// Which does not.
    pub fn check(&self) -> Result<(), BatchError> {
        let (d, p) = (self.dim, self.border);
        if !(1..=LARGEST_ROW).contains(&d) || !(1..=LARGEST_BORDER).contains(&p) {
            return Err(BatchError::Size { dim: d, border: p });
        }
        match self.offsets.first() {
            Some(0) => {}
            first => return Err(BatchError::Offsets { index: 0, got: first.map_or(0, |o| *o) }),
        }
        if let Some(at) = self.offsets.windows(2).position(|at| at[1] <= at[0]) {
            return Err(BatchError::Offsets { index: at + 1, got: self.offsets[at + 1] });
        }
        let (systems, rows) = (self.systems(), self.offsets[self.systems()]);
        for (slab, values, count, width) in [
            ("row_hessian", &self.row_hessian, rows, d * d),
            ("row_cross", &self.row_cross, rows, d * p),
            ("border_hessian", &self.border_hessian, systems, p * p),
            ("row_rhs", &self.row_rhs, rows, d),
            ("border_rhs", &self.border_rhs, systems, p),
        ] {
            let (got, expected) = (values.len(), count.saturating_mul(width));
            if got != expected {
                return Err(BatchError::Length { slab, got, expected });
            }
        }
        Ok(())
    }
}

/// Some systems; a struct and not a closure, so that the loops are surely compiled for the CPU's vectors.
struct Task<'a> {
    batch: &'a Batch,
    range: Range<usize>,
    row: &'a mut [f64],
    border: &'a mut [f64],
    log_det: &'a mut [f64],
    status: &'a mut [Status],
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        // The border is padded to a width that the compiler knows: the inner loops become plain vector code.
        match self.batch.border {
            ..=4 => self.run::<4>(),
            5..=8 => self.run::<8>(),
            9..=16 => self.run::<16>(),
            _ => self.run::<LARGEST_BORDER>(),
        }
    }
}

impl Task<'_> {
    #[inline(always)]
    fn run<const P: usize>(self) {
        let Self { batch, range, mut row, border, log_det, status } = self;
        let (d, p) = (batch.dim, batch.border);
        let mut factors = Vec::new();
        for (k, system) in range.enumerate() {
            let rows = batch.offsets[system]..batch.offsets[system + 1];
            let one = batch.one(system);
            let (step, tail) = std::mem::take(&mut row).split_at_mut(rows.len() * d);
            row = tail;
            let beta = &mut border[k * p..(k + 1) * p];
            match one.solve::<P>(&mut factors, step, beta) {
                Ok(value) => log_det[k] = value,
                Err(failed) => {
                    status[k] = failed;
                    step.fill(0.0);
                    beta.fill(0.0);
                }
            }
        }
    }
}

struct One<'a> {
    d: usize,
    row_hessian: &'a [f64],
    row_cross: &'a [f64],
    border_hessian: &'a [f64],
    row_rhs: &'a [f64],
    border_rhs: &'a [f64],
}

impl One<'_> {
    /// The log-determinant; the step goes to `t` and `beta`. `factors` is room for the L_i.
    #[inline(always)]
    fn solve<const P: usize>(
        &self,
        factors: &mut Vec<f64>,
        t: &mut [f64],
        beta: &mut [f64],
    ) -> Result<f64, Status> {
        let (d, p) = (self.d, beta.len());
        self.check(p)?;
        factors.clear();
        factors.extend_from_slice(self.row_hessian);
        let mut s = [[0.0; P]; P];
        for (s, c) in s.iter_mut().zip(self.border_hessian.chunks_exact(p)) {
            s[..p].copy_from_slice(c);
        }
        let mut rhs = [0.0; P];
        rhs[..p].copy_from_slice(self.border_rhs);
        let mut product = 1.0;
        let mut log_det = 0.0;
        let blocks = factors.chunks_exact_mut(d * d).zip(self.row_cross.chunks_exact(d * p));
        for (i, (l, b)) in blocks.enumerate() {
            let not_positive = |e: crate::ops::cholesky::NonPositivePivot| Status::NotPositiveDefinite {
                block: Block::Row(i),
                index: e.index,
                pivot: e.pivot,
            };
            cholesky_small(l, d).map_err(not_positive)?;
            let u = &mut t[i * d..(i + 1) * d];
            u.copy_from_slice(&self.row_rhs[i * d..(i + 1) * d]);
            forward_small(l, u);
            eliminate(l, b, u, p, &mut s, &mut rhs);
            // One logarithm for some blocks: their pivots' product stays far from overflow.
            product *= (0..d).map(|k| l[k * d + k]).product::<f64>();
            if !(1e-100..1e100).contains(&product) || i % 8 == 7 {
                log_det += 2.0 * product.ln();
                product = 1.0;
            }
        }
        log_det += 2.0 * product.ln();
        let mut dense = [0.0; LARGEST_BORDER * LARGEST_BORDER];
        let dense = &mut dense[..p * p];
        dense.chunks_exact_mut(p).zip(&s).for_each(|(row, s)| row.copy_from_slice(&s[..p]));
        cholesky_small(dense, p).map_err(|e| Status::NotPositiveDefinite {
            block: Block::Border,
            index: e.index,
            pivot: e.pivot,
        })?;
        log_det += (0..p).map(|k| 2.0 * dense[k * p + k].ln()).sum::<f64>();
        beta.copy_from_slice(&rhs[..p]);
        forward_small(dense, beta);
        backward_small(dense, beta);
        let blocks = factors.chunks_exact(d * d).zip(self.row_cross.chunks_exact(d * p));
        for (i, (l, b)) in blocks.enumerate() {
            // u − Yδβ = u − L⁻¹(Bδβ): Y was not kept.
            let mut w = [0.0; LARGEST_ROW];
            let w = &mut w[..d];
            w.iter_mut().zip(b.chunks_exact(p)).for_each(|(w, b)| {
                *w = b.iter().zip(&*beta).map(|(b, x)| b * x).sum();
            });
            forward_small(l, w);
            let step = &mut t[i * d..(i + 1) * d];
            step.iter_mut().zip(&*w).for_each(|(u, w)| *u -= w);
            backward_small(l, step);
        }
        let finite = t.iter().chain(&*beta).all(|v| v.is_finite());
        if finite { Ok(log_det) } else { Err(Status::NonFinite) }
    }

    #[inline(always)]
    fn check(&self, p: usize) -> Result<(), Status> {
        let slabs = [self.row_hessian, self.row_cross, self.border_hessian, self.row_rhs, self.border_rhs];
        if slabs.iter().any(|slab| slab.iter().map(|v| v * 0.0).sum::<f64>() != 0.0) {
            return Err(Status::NonFinite);
        }
        for (i, block) in self.row_hessian.chunks_exact(self.d * self.d).enumerate() {
            if !is_symmetric(block, self.d) {
                return Err(Status::Asymmetric { block: Block::Row(i) });
            }
        }
        if is_symmetric(self.border_hessian, p) {
            Ok(())
        } else {
            Err(Status::Asymmetric { block: Block::Border })
        }
    }
}

/// `Y = L⁻¹B`, `S ← S − YᵀY`, `rhs ← rhs − Yᵀu`.
#[inline(always)]
fn eliminate<const P: usize>(
    l: &[f64],
    b: &[f64],
    u: &[f64],
    p: usize,
    s: &mut [[f64; P]; P],
    rhs: &mut [f64; P],
) {
    let d = u.len();
    let mut y = [[0.0; P]; LARGEST_ROW];
    for i in 0..d {
        let (before, rest) = y.split_at_mut(i);
        let row = &mut rest[0];
        row[..p].copy_from_slice(&b[i * p..(i + 1) * p]);
        for (k, before) in before.iter().enumerate() {
            let factor = l[i * d + k];
            row.iter_mut().zip(before).for_each(|(r, b)| *r -= factor * b);
        }
        let inverse = 1.0 / l[i * d + i];
        row.iter_mut().for_each(|r| *r *= inverse);
    }
    for (y, u) in y.iter().zip(u) {
        for (s, factor) in s.iter_mut().zip(y) {
            s.iter_mut().zip(y).for_each(|(s, y)| *s -= factor * y);
        }
        rhs.iter_mut().zip(y).for_each(|(r, y)| *r -= u * y);
    }
}

#[inline(always)]
fn is_symmetric(a: &[f64], n: usize) -> bool {
    let mut symmetric = true;
    for i in 1..n {
        for j in 0..i {
            symmetric &= are_mirrored(a[i * n + j], a[j * n + i], a[i * n + i], a[j * n + j]);
        }
    }
    symmetric
}
