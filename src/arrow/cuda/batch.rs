use rayon::prelude::*;

use crate::arrow::frame::FrameError;
use crate::arrow::{Batch, BatchError, BatchSolution, Block, Ridge, Status};
use crate::device::DeviceError;
use crate::device::cuda::{Args, Buffer, Cuda, Grid, Kernel, Stream};
use crate::ops::arrow_batch::source;

/// Row blocks that one block of threads takes at a time, where shared memory allows.
const CHUNK: usize = 128;
/// Shared memory that a chunk may take, in bytes: several blocks of threads then share a multiprocessor.
const CHUNK_BYTES: usize = 40 << 10;

/// Thousands of small systems on the device, solved in one launch.
pub struct SmallBatch {
    stream: Stream,
    kernel: Kernel,
    dim: usize,
    border: usize,
    systems: usize,
    chunk: usize,
    offsets: Buffer<i32>,
    slabs: [Buffer<f64>; 5],
    row_step: Buffer<f64>,
    border_step: Buffer<f64>,
    status: Buffer<i32>,
    pivots: Buffer<f64>,
    log_det: Buffer<f64>,
    /// Systems whose numbers make none, as the host told.
    refused: Vec<(usize, Status)>,
    offsets_seen: Vec<usize>,
}

/// Why a batch is not on the device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SmallBatchError {
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl SmallBatch {
    /// Checks the systems' slabs as the host does and sends them up. A system that is refused (NaN, infinity, a block
    /// that is not symmetric) is told by its status.
    ///
    /// # Errors
    /// Slabs of the wrong length, a block or border that is too large; whatever the device says.
    pub fn new(cuda: &Cuda, batch: &Batch) -> Result<Self, SmallBatchError> {
        batch.check()?;
        let (dim, border, systems) = (batch.dim, batch.border, batch.systems());
        let rows = batch.offsets.last().copied().unwrap_or(0);
        let stream = Stream::new(cuda)?;
        let row_bytes = 8 * (dim * (border + 1) + dim * (dim + 1) / 2);
        let chunk = (CHUNK_BYTES / row_bytes).clamp(1, CHUNK);
        let shared = chunk * row_bytes + 8 * border * (border + 1);
        let offsets: Vec<i32> = batch.offsets.iter().map(|o| *o as i32).collect();
        let up = |values: &[f64]| Buffer::from_slice(&stream, values);
        let refused = (0..systems).into_par_iter().map(|k| (k, batch.check_numbers(k)));
        Ok(Self {
            refused: refused.filter(|(_, status)| *status != Status::Solved).collect(),
            offsets_seen: batch.offsets.clone(),
            kernel: Kernel::new(cuda, &source(dim), "solve_batch", shared)?,
            dim,
            border,
            systems,
            chunk,
            offsets: Buffer::from_slice(&stream, &offsets)?,
            slabs: [
                up(&batch.row_hessian)?,
                up(&batch.row_cross)?,
                up(&batch.border_hessian)?,
                up(&batch.row_rhs)?,
                up(&batch.border_rhs)?,
            ],
            row_step: Buffer::new(cuda, rows * dim)?,
            border_step: Buffer::new(cuda, systems * border)?,
            status: Buffer::new(cuda, systems)?,
            pivots: Buffer::new(cuda, systems)?,
            log_det: Buffer::new(cuda, systems)?,
            stream,
        })
    }

    /// Solves all systems and waits. Cost: one launch.
    ///
    /// # Errors
    /// A ridge that is no ridge; whatever the device says. A system that is not positive definite is told by its
    /// status.
    pub fn solve(&self, ridge: Ridge) -> Result<(), FrameError> {
        if !ridge.is_valid() {
            return Err(FrameError::Ridge { ridge });
        }
        if self.systems == 0 {
            return Ok(());
        }
        let (row, border, relative) = match ridge {
            Ridge::None => (0.0, 0.0, 0.0),
            Ridge::Absolute { row, border } => (row, border, 0.0),
            Ridge::Relative(rho) => (0.0, 0.0, rho),
        };
        let slabs = self.slabs.iter().fold(Args::new(), |args, slab| args.pointer(slab.address()));
        let mut args = slabs
            .pointer(self.offsets.address())
            .int(self.border)
            .int(self.chunk)
            .double(row)
            .double(border)
            .double(relative)
            .pointer(self.row_step.address())
            .pointer(self.border_step.address())
            .pointer(self.status.address())
            .pointer(self.pivots.address())
            .pointer(self.log_det.address());
        let grid = Grid { blocks: (self.systems, 1), threads: 128 };
        // SAFETY: arguments in the kernel's order; buffers made for these systems.
        unsafe { self.kernel.launch(&self.stream, grid, &mut args)? };
        Ok(self.stream.wait()?)
    }

    /// The steps of the last [`Self::solve`], brought to the host.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn steps(&self) -> Result<BatchSolution, FrameError> {
        let down = |buffer: &Buffer<f64>| buffer.to_vec(&self.stream, buffer.len());
        let codes = self.status.to_vec(&self.stream, self.systems)?;
        let status = codes.iter().zip(down(&self.pivots)?).map(|(code, pivot)| self.status_of(*code, pivot));
        let mut solution = BatchSolution {
            row: down(&self.row_step)?,
            border: down(&self.border_step)?,
            log_det: down(&self.log_det)?,
            status: status.collect(),
        };
        for (k, status) in &self.refused {
            let rows = self.offsets_seen[*k] * self.dim..self.offsets_seen[k + 1] * self.dim;
            solution.row[rows].fill(0.0);
            solution.border[k * self.border..(k + 1) * self.border].fill(0.0);
            (solution.log_det[*k], solution.status[*k]) = (0.0, *status);
        }
        Ok(solution)
    }

    /// 0; the lowest number where the step is not finite; `1 + r` where the pivot of row unknown r is not positive; `−(1 + j)` where pivot j of the border is not.
    fn status_of(&self, code: i32, pivot: f64) -> Status {
        let at = code.unsigned_abs() as usize;
        match code {
            0 => Status::Solved,
            i32::MIN => Status::NonFinite,
            1.. => {
                let (block, index) = ((at - 1) / self.dim, (at - 1) % self.dim);
                Status::NotPositiveDefinite { block: Block::Row(block), index, pivot }
            }
            _ => Status::NotPositiveDefinite { block: Block::Border, index: at - 1, pivot },
        }
    }
}
