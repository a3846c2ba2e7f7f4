use crate::arrow::frame::FrameError;
use crate::arrow::Ridge;
use crate::device::cuda::{Args, Buffer, Cuda, Grid, Kernel, Stream};
use crate::ops::arrow_batch::{LARGEST_BORDER, LARGEST_DIM, source};

/// Row blocks that one block of threads takes at a time, where shared memory allows.
const CHUNK: usize = 64;
/// Shared memory that a chunk may take, in bytes: several blocks of threads then share a multiprocessor.
const CHUNK_BYTES: usize = 40 << 10;

/// Host slabs of many small systems, one after another.
#[derive(Clone, Copy, Debug)]
pub struct BatchSlabs<'a> {
    /// d, the same for all: at most 3.
    pub dim: usize,
    /// p, the same for all: at most 32.
    pub border: usize,
    /// First row block of each system, and their number at the end.
    pub offsets: &'a [usize],
    pub row_hessian: &'a [f64],
    pub cross: &'a [f64],
    pub border_hessian: &'a [f64],
    pub row_rhs: &'a [f64],
    pub border_rhs: &'a [f64],
}

/// Thousands of small systems on the device, solved in one launch.
pub struct SmallBatch {
    stream: Stream,
    kernel: Kernel,
    systems: usize,
    border: usize,
    chunk: usize,
    offsets: Buffer<i32>,
    slabs: [Buffer<f64>; 5],
    row_step: Buffer<f64>,
    border_step: Buffer<f64>,
    status: Buffer<i32>,
}

impl SmallBatch {
    /// Sends the systems up.
    ///
    /// # Errors
    /// Slabs of the wrong length, a block or border that is too large; whatever the device says.
    pub fn new(cuda: &Cuda, slabs: &BatchSlabs<'_>) -> Result<Self, FrameError> {
        let BatchSlabs { dim, border, offsets, .. } = *slabs;
        let systems = offsets.len().saturating_sub(1);
        let rows = offsets.last().copied().unwrap_or(0);
        let lengths = [
            ("row_hessian", slabs.row_hessian.len(), rows * dim * dim),
            ("row_cross", slabs.cross.len(), rows * dim * border),
            ("border_hessian", slabs.border_hessian.len(), systems * border * border),
            ("row_rhs", slabs.row_rhs.len(), rows * dim),
            ("border_rhs", slabs.border_rhs.len(), systems * border),
            ("row dimension of a batched system", dim.clamp(1, LARGEST_DIM), dim),
            ("border of a batched system", border.clamp(1, LARGEST_BORDER), border),
        ];
        for (slab, got, expected) in lengths {
            if got != expected {
                return Err(FrameError::Length { slab, got, expected });
            }
        }
        let stream = Stream::new(cuda)?;
        let row_bytes = 8 * (dim * (border + 1) + dim * (dim + 1) / 2);
        let chunk = (CHUNK_BYTES / row_bytes).clamp(1, CHUNK);
        let shared = chunk * row_bytes + 8 * border * (border + 1);
        let offsets: Vec<i32> = offsets.iter().map(|o| *o as i32).collect();
        let up = |values: &[f64]| Buffer::from_slice(&stream, values);
        Ok(Self {
            kernel: Kernel::new(cuda, &source(dim), "solve_batch", shared)?,
            systems,
            border,
            chunk,
            offsets: Buffer::from_slice(&stream, &offsets)?,
            slabs: [
                up(slabs.row_hessian)?,
                up(slabs.cross)?,
                up(slabs.border_hessian)?,
                up(slabs.row_rhs)?,
                up(slabs.border_rhs)?,
            ],
            row_step: Buffer::new(cuda, rows * dim)?,
            border_step: Buffer::new(cuda, systems * border)?,
            status: Buffer::new(cuda, systems)?,
            stream,
        })
    }

    /// Solves all systems and waits. Cost: one launch.
    ///
    /// # Errors
    /// Whatever the device says. A system that is not positive definite is told by its status.
    pub fn solve(&self, ridge: Ridge) -> Result<(), FrameError> {
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
            .pointer(self.status.address());
        let grid = Grid { blocks: (self.systems, 1), threads: 128 };
        // SAFETY: arguments in the kernel's order; buffers made for these systems.
        unsafe { self.kernel.launch(&self.stream, grid, &mut args)? };
        Ok(self.stream.wait()?)
    }

    /// Steps of the rows and of the borders, and a status a system: 0; `1 + i` where row block i of it is not positive
    /// definite; `−(1 + j)` where pivot j of its border is not. A failed system's step is zero.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn steps(&self) -> Result<(Vec<f64>, Vec<f64>, Vec<i32>), FrameError> {
        let down = |buffer: &Buffer<f64>| buffer.to_vec(&self.stream, buffer.len());
        Ok((
            down(&self.row_step)?,
            down(&self.border_step)?,
            self.status.to_vec(&self.stream, self.systems)?,
        ))
    }
}
