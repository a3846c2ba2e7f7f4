//! The matrix that every elimination ends with.

mod solve;

use super::{Queue, Tuning};
use crate::arrow::frame::Method;
use crate::arrow::vector::largest;
use crate::device::cuda::{Args, Buffer, Graph, Grid, Kernel, Pinned, Solver};
use crate::device::{DeviceError, Telemetry};
use crate::ops::cholesky::NonPositivePivot;
use crate::ops::spd_inverse::{self, Form, LEAF, SpdInverse, TILE, Work, half_len, half_tiles};

pub(super) use solve::Columns;

/// 1-norm condition of the scaled matrix up to which a product with the explicit inverse needs no correction: its
/// residual is about κ·ε, and 1e-14 is asked for.
const PLAIN: f64 = 30.0;
/// Up to here one correction is enough: it squares κ·ε times a factor that grows with the order (measured below 1e3).
const ONE_CORRECTION: f64 = 1e5;
/// Up to here two are. Beyond, inverses by halves lose what corrections could build on: triangular solves instead.
const TWO_CORRECTIONS: f64 = 1e7;

/// No pivot failed: what `status` is filled with, byte by byte.
pub(super) const FINE: i32 = 0x7f7f_7f7f;

/// One factorisation or inversion.
pub(super) const FACTORISATION: Telemetry =
    Telemetry { factorisations: 1, bytes_up: 0, bytes_down: 0, launches: 0, handles: 0, contexts: 0 };

/// What is left once the other unknowns are eliminated: a symmetric positive definite matrix of order q, inverted by
/// halves, or factored where its condition asks for that.
///
/// | buffer | numbers | holds |
/// |---|---|---|
/// | `matrix` | q x q | S⁻¹, both triangles, or chol(S) |
/// | `half` · `half_inverse` | q(q + 64)/2 each | S and S⁻¹, tiles of the lower triangle |
pub(super) struct Core {
    order: usize,
    kernels: Kernels,
    inverse: SpdInverse,
    pub matrix: Buffer<f64>,
    half: Buffer<f64>,
    half_inverse: Buffer<f64>,
    scratch: Buffer<f64>,
    scale: Buffer<f64>,
    pivots: Buffer<f64>,
    status: Buffer<i32>,
    norms: Buffer<f64>,
    sums: Buffer<f64>,
    /// Right-hand side of one solve, its result, and what a correction starts from.
    pub v: Buffer<f64>,
    pub x: Buffer<f64>,
    rest: Buffer<f64>,
    status_seen: Pinned<i32>,
    norms_seen: Pinned<f64>,
    inversion: Option<Graph>,
    cholesky: Option<Cholesky>,
    pub method: Method,
    pub corrections: u32,
    pub condition: f64,
}

/// A matrix that is no inverse's: the pivot that failed, and the largest diagonal entry of S.
pub(super) enum CoreError {
    Pivot(NonPositivePivot, f64),
    Device(DeviceError),
}

impl From<DeviceError> for CoreError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// C beside the product: where its numbers lie, what they are, and the two numbers of its ridge.
#[derive(Clone, Copy)]
pub(super) struct Diagonal {
    pub address: u64,
    pub form: Form,
    pub ridge: (f64, f64),
}

impl Core {
    pub fn new(queue: &Queue, order: usize, tuning: Tuning) -> Result<Self, DeviceError> {
        let cuda = queue.stream.cuda();
        let numbers = |len| Buffer::<f64>::new(cuda, len);
        let tiles = order.div_ceil(TILE);
        Ok(Self {
            order,
            kernels: Kernels::new(queue)?,
            inverse: SpdInverse::new(&queue.stream, tuning.leaf)?,
            matrix: numbers(order * order)?,
            half: numbers(half_len(order))?,
            half_inverse: numbers(half_len(order))?,
            scratch: numbers(tuning.scratch_len(order))?,
            scale: numbers(order)?,
            pivots: numbers(order)?,
            status: Buffer::new(cuda, 1)?,
            norms: numbers(2)?,
            sums: numbers(tiles * tiles * TILE)?,
            v: numbers(order)?,
            x: numbers(order)?,
            rest: numbers(order)?,
            status_seen: Pinned::new(cuda, 1)?,
            norms_seen: Pinned::new(cuda, 2)?,
            inversion: None,
            cholesky: None,
            method: Method::ExplicitInverse,
            corrections: 0,
            condition: f64::NAN,
        })
    }

    pub fn order(&self) -> usize {
        self.order
    }

    pub fn tiles(&self) -> usize {
        half_tiles(self.order)
    }

    /// Records the inversion, hundreds of small launches on buffers of its own, once.
    pub fn record(&mut self, queue: &Queue) -> Result<(), DeviceError> {
        if self.inversion.is_none() {
            self.inversion = Some(queue.stream.capture(|| self.queue_inversion(queue))?);
        }
        Ok(())
    }

    fn queue_inversion(&self, queue: &Queue) -> Result<(), DeviceError> {
        let work = Work {
            matrix: &self.matrix,
            order: self.order,
            scratch: &self.scratch,
            pivots: &self.pivots,
            first_pivot: 0,
            status: self.status.address(),
        };
        // SAFETY: the buffers were made for this order and leaf.
        unsafe { self.inverse.invert(&queue.stream, &queue.blas, &work) }
    }

    /// Queues all of it: `matrix` holds the lower triangle of −YᵀY, and S is `C + ridge − YᵀY`.
    pub fn queue(&self, queue: &Queue, c: Diagonal) -> Result<(), DeviceError> {
        self.status.fill_bytes(&queue.stream, FINE.to_ne_bytes()[0])?;
        let (form, basis, part) = c.form.arguments(self.order);
        let mut scale = Args::new()
            .pointer(c.address)
            .int(form)
            .int(basis)
            .int(part)
            .pointer(self.matrix.address())
            .int(self.order)
            .double(c.ridge.0)
            .double(c.ridge.1)
            .pointer(self.scale.address());
        let grid = Grid { blocks: (self.order.div_ceil(256), 1), threads: 256 };
        // SAFETY: arguments in the kernel's order; buffers made for this order.
        unsafe { self.kernels.border_scale.launch(&queue.stream, grid, &mut scale)? };
        self.half_tiles(queue, Some(c), 0)?;
        if let Some(inversion) = &self.inversion {
            inversion.replay(&queue.stream)?;
        }
        self.half_tiles(queue, None, 1)?;
        // SAFETY: whoever queues this waits for the stream, also after an error, and then looks at them in `settle`.
        unsafe {
            self.status.queue_download(&queue.stream, &self.status_seen, 0, 1)?;
            self.norms.queue_download(&queue.stream, &self.norms_seen, 0, 2)
        }
    }

    /// In (with C) or out of the scaled matrix, and the norm of the scaled one.
    fn half_tiles(&self, queue: &Queue, assemble: Option<Diagonal>, norm: usize) -> Result<(), DeviceError> {
        let c = assemble.unwrap_or(Diagonal { address: 0, form: Form::Identity, ridge: (0.0, 0.0) });
        let (form, basis, part) = c.form.arguments(self.order);
        let half = if assemble.is_some() { &self.half } else { &self.half_inverse };
        let mut tiles = Args::new()
            .int(usize::from(assemble.is_some()))
            .pointer(c.address)
            .int(form)
            .int(basis)
            .int(part)
            .pointer(self.matrix.address())
            .pointer(self.scale.address())
            .int(self.order)
            .double(c.ridge.0)
            .double(c.ridge.1)
            .pointer(half.address())
            .pointer(self.sums.address());
        let mut largest =
            Args::new().pointer(self.sums.address()).int(self.order).pointer(self.norms.at(norm));
        // SAFETY: as above.
        unsafe {
            let grid = Grid { blocks: (self.tiles(), 1), threads: 256 };
            self.kernels.half_tiles.launch(&queue.stream, grid, &mut tiles)?;
            let grid = Grid { blocks: (1, 1), threads: 1024 };
            self.kernels.norm_one.launch(&queue.stream, grid, &mut largest)
        }
    }

    /// Reads the verdict, once the stream was waited for, and chooses the method.
    pub fn settle(&mut self, queue: &Queue) -> Result<(), CoreError> {
        queue.stream.count(FACTORISATION);
        let status = self.status_seen[0];
        self.condition = self.norms_seen[0] * self.norms_seen[1];
        self.method = Method::ExplicitInverse;
        self.corrections = match self.condition {
            c if c <= PLAIN => 0,
            c if c <= ONE_CORRECTION => 1,
            c if c <= TWO_CORRECTIONS => 2,
            _ => return self.factor(queue, status),
        };
        if status == FINE { Ok(()) } else { self.factor(queue, status) }
    }

    /// chol(S) in place of the inverse. A matrix that only the inverse by halves found indefinite is decided here.
    fn factor(&mut self, queue: &Queue, status: i32) -> Result<(), CoreError> {
        self.method = Method::TriangularSolves;
        self.corrections = 0;
        // The pivots of the inversion give way to those of the factor.
        let first = (status != FINE).then_some(status as usize);
        let pivot = first.map(|at| self.pivot(queue, at)).transpose()?;
        let cholesky = match self.cholesky.take() {
            Some(cholesky) => cholesky,
            None => Cholesky::new(queue, self.order)?,
        };
        let Cholesky { solver, scratch, info } = self.cholesky.insert(cholesky);
        let (matrix, order) = ((self.matrix.address(), self.order), self.order);
        let mut whole = Args::new().pointer(self.half.address()).pointer(matrix.0).int(order);
        // SAFETY: as above.
        unsafe {
            let grid = Grid { blocks: (half_tiles(order), 1), threads: 256 };
            self.kernels.whole_from_half.launch(&queue.stream, grid, &mut whole)?;
            solver.potrf(order, matrix, (scratch.address(), scratch.len()), info.address())?;
        }
        let failed = info.to_vec(&queue.stream, 1)?[0];
        queue.stream.count(FACTORISATION);
        // What the factor leaves at a pivot that failed is not its value; no more than rounding is known of it.
        let failed = match failed {
            0 => self.square_pivots(queue)?.map(|index| (index, f64::NAN)),
            failed => Some((failed as usize - 1, 0.0)),
        };
        let Some((failed, value)) = failed else { return Ok(()) };
        let scale = self.scale.to_vec(&queue.stream, order)?;
        let height = largest(scale.iter().map(|s| s.powi(-2)));
        let failed = match (first, pivot) {
            (Some(index), Some(pivot)) => NonPositivePivot { index, pivot: pivot / scale[index].powi(2) },
            _ => NonPositivePivot { index: failed, pivot: value },
        };
        Err(CoreError::Pivot(failed, height))
    }

    fn pivot(&self, queue: &Queue, at: usize) -> Result<f64, DeviceError> {
        Ok(self.pivots.to_vec(&queue.stream, at + 1)?[at])
    }

    /// The squared pivots of chol(S), for the determinant; the first that is not positive and finite.
    fn square_pivots(&self, queue: &Queue) -> Result<Option<usize>, DeviceError> {
        self.status.fill_bytes(&queue.stream, FINE.to_ne_bytes()[0])?;
        let mut args = Args::new()
            .pointer(self.matrix.address())
            .int(self.order)
            .pointer(self.pivots.address())
            .pointer(self.status.address());
        let grid = Grid { blocks: (self.order.div_ceil(256), 1), threads: 256 };
        // SAFETY: as above.
        unsafe { self.kernels.squared_diagonal.launch(&queue.stream, grid, &mut args)? };
        let status = self.status.to_vec(&queue.stream, 1)?[0];
        Ok((status != FINE).then_some(status as usize))
    }

    /// `log det S`: the inverse's pivots belong to the matrix scaled to a diagonal of ones.
    pub fn log_det(&self, queue: &Queue) -> Result<f64, DeviceError> {
        let pivots: f64 = self.pivots.to_vec(&queue.stream, self.order)?.iter().map(|pivot| pivot.ln()).sum();
        if self.method == Method::TriangularSolves {
            return Ok(pivots);
        }
        let scale: f64 = self.scale.to_vec(&queue.stream, self.order)?.iter().map(|scale| scale.ln()).sum();
        Ok(pivots - 2.0 * scale)
    }
}

/// cuSOLVER's Cholesky, made when a matrix first asks for triangular solves.
struct Cholesky {
    solver: Solver,
    scratch: Buffer<f64>,
    info: Buffer<i32>,
}

impl Cholesky {
    fn new(queue: &Queue, order: usize) -> Result<Self, DeviceError> {
        let solver = Solver::new(&queue.stream)?;
        let scratch = Buffer::new(queue.stream.cuda(), solver.potrf_scratch(order)?)?;
        Ok(Self { solver, scratch, info: Buffer::new(queue.stream.cuda(), 1)? })
    }
}

struct Kernels {
    border_scale: Kernel,
    half_tiles: Kernel,
    whole_from_half: Kernel,
    panel_from_half: Kernel,
    squared_diagonal: Kernel,
    norm_one: Kernel,
    multiply_half: Kernel,
    sum_tiles: Kernel,
}

impl Kernels {
    fn new(queue: &Queue) -> Result<Self, DeviceError> {
        // The products know no row block: the smallest will do.
        let (inverse, solve) = (spd_inverse::source(LEAF), crate::ops::arrow_solve::source(1));
        let kernel = |source, name| Kernel::new(queue.stream.cuda(), source, name, 0);
        Ok(Self {
            border_scale: kernel(&inverse, "border_scale")?,
            half_tiles: kernel(&inverse, "half_tiles")?,
            whole_from_half: kernel(&inverse, "whole_from_half")?,
            panel_from_half: kernel(&inverse, "panel_from_half")?,
            squared_diagonal: kernel(&inverse, "squared_diagonal")?,
            norm_one: kernel(&inverse, "norm_one")?,
            multiply_half: kernel(&solve, "multiply_half")?,
            sum_tiles: kernel(&solve, "sum_tiles")?,
        })
    }
}
