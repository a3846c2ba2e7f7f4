use crate::arrow::frame::FrameError;
use crate::device::DeviceError;
use crate::device::cuda::{Buffer, Cuda, Kernel, Stream};
use crate::ops::spd_inverse::{LEAF, TILE, half_len, scratch_len};
use crate::ops::{arrow_solve, row_factor, spd_inverse};

/// Columns that one block of `reduce_rows` owns.
pub(super) const COLUMNS: usize = 512;

/// The shape of a system: where its row blocks begin, and its border.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    offsets: Vec<usize>,
    starts: Vec<usize>,
    border: usize,
}

impl Layout {
    /// `offsets`: the first unknown of each row block, and their number at the end.
    pub fn new(offsets: Vec<usize>, border: usize) -> Self {
        let mut starts = vec![0];
        for at in offsets.windows(2) {
            let dim = at[1] - at[0];
            starts.push(starts[starts.len() - 1] + dim * dim);
        }
        Self { offsets, starts, border }
    }

    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Where each D_i begins.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// n.
    pub fn blocks(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Σ d_i.
    pub fn unknowns(&self) -> usize {
        self.offsets[self.blocks()]
    }

    /// p.
    pub fn border(&self) -> usize {
        self.border
    }

    /// Σ d_i².
    pub fn row_numbers(&self) -> usize {
        self.starts[self.blocks()]
    }

    /// Numbers from one row of Y to the next: p rounded up to even, so that rows are read two numbers at a time.
    pub fn pitch(&self) -> usize {
        self.border.next_multiple_of(2)
    }

    /// The largest d_i.
    pub fn largest_dim(&self) -> usize {
        self.offsets.windows(2).map(|at| at[1] - at[0]).max().unwrap_or(1)
    }

    /// Row blocks of one part of the first reduction, and the number of parts: about `wanted` blocks of threads in all,
    /// and no part larger than its shared memory.
    pub(super) fn parts(&self, wanted: usize) -> (usize, usize) {
        let columns = self.pitch().div_ceil(COLUMNS);
        let per_part = (self.blocks() * columns).div_ceil(wanted);
        let per_part = per_part.clamp(1, arrow_solve::CHUNK_ROWS / self.largest_dim());
        (per_part, self.blocks().div_ceil(per_part))
    }

    /// Device memory of a frame, slabs sent from the host included, in bytes.
    pub fn bytes(&self, tuning: Tuning) -> u64 {
        let (m, p) = (self.unknowns() as u64, self.border as u64);
        let tiles = self.border.div_ceil(TILE) as u64;
        let frame = p * p + 2 * half_len(self.border) as u64 + scratch_len(self.border, tuning.leaf) as u64;
        let slabs = p * p + m * p + self.row_numbers() as u64;
        let rows = m * self.pitch() as u64 * 2 + self.row_numbers() as u64;
        8 * (frame + slabs + rows + tiles * tiles * TILE as u64) + WORKSPACES
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} row and {} border unknowns", self.unknowns(), self.border)
    }
}

/// Library workspaces and small buffers, in bytes.
const WORKSPACES: u64 = 64 << 20;

/// What changes the speed of a frame and never its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Order of the leaves of the inversion: a multiple of 32.
    pub leaf: usize,
    /// Bytes of Y and S⁻¹ that solves try to keep in the L2 cache from one to the next.
    pub kept_bytes: usize,
    /// Column panels of the product YᵀY: half of it is skipped but for the panels' corners.
    pub panels: usize,
    /// Blocks of threads a multiprocessor in the first reduction of a solve.
    pub reducers: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { leaf: LEAF, kept_bytes: 24 << 20, panels: 4, reducers: 3 }
    }
}

/// Slabs of a system that lie on the device: D_i one after another, B (Σ d_i x p), C (p x p), all row-major.
pub struct DeviceSlabs {
    pub row_hessian: Buffer<f64>,
    pub cross: Buffer<f64>,
    pub border: Buffer<f64>,
}

/// Where the slabs of a system are.
#[derive(Clone, Copy)]
pub enum Slabs<'a> {
    /// On the host. Copies run at full speed from pinned memory (see
    /// [`Registered`](crate::device::cuda::Registered)).
    Host {
        row_hessian: &'a [f64],
        cross: &'a [f64],
        border: &'a [f64],
    },
    Device(&'a DeviceSlabs),
}

impl DeviceSlabs {
    pub(super) fn new(cuda: &Cuda, layout: &Layout) -> Result<Self, DeviceError> {
        let (m, p) = (layout.unknowns(), layout.border());
        Ok(Self {
            row_hessian: Buffer::new(cuda, layout.row_numbers())?,
            cross: Buffer::new(cuda, m * p)?,
            border: Buffer::new(cuda, p * p)?,
        })
    }

    /// Sends slabs up and waits.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn from_host(
        stream: &Stream,
        row_hessian: &[f64],
        cross: &[f64],
        border: &[f64],
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            row_hessian: Buffer::from_slice(stream, row_hessian)?,
            cross: Buffer::from_slice(stream, cross)?,
            border: Buffer::from_slice(stream, border)?,
        })
    }
}

impl Slabs<'_> {
    pub(super) fn check(&self, layout: &Layout) -> Result<(), FrameError> {
        let (m, p) = (layout.unknowns(), layout.border());
        let lengths = match self {
            Slabs::Host { row_hessian, cross, border } => [row_hessian.len(), cross.len(), border.len()],
            Slabs::Device(slabs) => [slabs.row_hessian.len(), slabs.cross.len(), slabs.border.len()],
        };
        let names = ["row_hessian", "row_cross", "border_hessian"];
        for ((slab, got), expected) in
            names.into_iter().zip(lengths).zip([layout.row_numbers(), m * p, p * p])
        {
            if got != expected {
                return Err(FrameError::Length { slab, got, expected });
            }
        }
        Ok(())
    }
}

/// The kernels of a frame, compiled for its largest row block.
pub(super) struct Kernels {
    pub factor_rows: Kernel,
    pub couple_rows: Kernel,
    pub forward_rows: Kernel,
    pub backward_rows: Kernel,
    pub border_scale: Kernel,
    pub half_tiles: Kernel,
    pub whole_from_half: Kernel,
    pub squared_diagonal: Kernel,
    pub norm_one: Kernel,
    pub reduce_rows: Kernel,
    pub sum_parts: Kernel,
    pub multiply_half: Kernel,
    pub sum_tiles: Kernel,
    pub back_substitute: Kernel,
}

impl Kernels {
    pub fn new(cuda: &Cuda, dim: usize) -> Result<Self, DeviceError> {
        let (rows, solve) = (row_factor::source(dim), arrow_solve::source(dim));
        let inverse = spd_inverse::source(LEAF);
        let kernel = |source, name| Kernel::new(cuda, source, name, 0);
        Ok(Self {
            factor_rows: kernel(&rows, "factor_rows")?,
            couple_rows: kernel(&rows, "couple_rows")?,
            forward_rows: kernel(&rows, "forward_rows")?,
            backward_rows: kernel(&rows, "backward_rows")?,
            border_scale: kernel(&inverse, "border_scale")?,
            half_tiles: kernel(&inverse, "half_tiles")?,
            whole_from_half: kernel(&inverse, "whole_from_half")?,
            squared_diagonal: kernel(&inverse, "squared_diagonal")?,
            norm_one: kernel(&inverse, "norm_one")?,
            reduce_rows: kernel(&solve, "reduce_rows")?,
            sum_parts: kernel(&solve, "sum_parts")?,
            multiply_half: kernel(&solve, "multiply_half")?,
            sum_tiles: kernel(&solve, "sum_tiles")?,
            back_substitute: kernel(&solve, "back_substitute")?,
        })
    }
}
