use super::Queue;
use super::core::{FACTORISATION, FINE};
use crate::arrow::frame::FrameError;
use crate::arrow::rows::not_positive;
use crate::arrow::{Block, Blocks, Ridge};
use crate::device::DeviceError;
use crate::device::cuda::{Args, Buffer, Grid, Kernel, Pinned};
use crate::ops::cholesky::NonPositivePivot;
use crate::ops::row_factor;

/// The row blocks on the device, and their factors `L_i = chol(D_i + ridge)`.
pub(super) struct Rows {
    blocks: Blocks,
    offsets: Buffer<i32>,
    starts: Buffer<i32>,
    /// The block of each unknown.
    pub block_of: Buffer<i32>,
    pub l: Buffer<f64>,
    pivots: Buffer<f64>,
    status: Buffer<i32>,
    status_seen: Pinned<i32>,
    factor: Kernel,
    couple: Kernel,
    forward: Kernel,
    backward: Kernel,
}

impl Rows {
    pub fn new(queue: &Queue, blocks: &Blocks) -> Result<Self, DeviceError> {
        let (stream, cuda) = (&queue.stream, queue.stream.cuda());
        let to_i32 = |values: &[usize]| values.iter().map(|v| *v as i32).collect::<Vec<_>>();
        let block_of: Vec<usize> = (0..blocks.unknowns()).map(|s| blocks.block_of(s)).collect();
        let source = row_factor::source(blocks.largest_dim());
        let kernel = |name| Kernel::new(cuda, &source, name, 0);
        Ok(Self {
            offsets: Buffer::from_slice(stream, &to_i32(blocks.offsets()))?,
            starts: Buffer::from_slice(stream, &to_i32(blocks.starts()))?,
            block_of: Buffer::from_slice(stream, &to_i32(&block_of))?,
            l: Buffer::new(cuda, blocks.numbers())?,
            pivots: Buffer::new(cuda, blocks.unknowns())?,
            status: Buffer::new(cuda, 1)?,
            status_seen: Pinned::new(cuda, 1)?,
            factor: kernel("factor_rows")?,
            couple: kernel("couple_rows")?,
            forward: kernel("forward_rows")?,
            backward: kernel("backward_rows")?,
            blocks: blocks.clone(),
        })
    }

    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Adds the addresses of offsets and starts, which many kernels take in this order.
    pub fn arguments(&self, args: Args) -> Args {
        args.pointer(self.offsets.address()).pointer(self.starts.address())
    }

    pub fn offsets(&self) -> u64 {
        self.offsets.address()
    }

    /// Queues L.
    pub fn queue_factor(&self, queue: &Queue, d: &Buffer<f64>, ridge: Ridge) -> Result<(), DeviceError> {
        self.status.fill_bytes(&queue.stream, FINE.to_ne_bytes()[0])?;
        let (absolute, relative) = on_row(ridge);
        let mut args = self
            .arguments(Args::new().pointer(d.address()))
            .double(absolute)
            .double(relative)
            .int(self.blocks.count())
            .pointer(self.l.address())
            .pointer(self.pivots.address())
            .pointer(self.status.address());
        let grid = Grid { blocks: (self.blocks.count().div_ceil(4), 1), threads: 128 };
        // SAFETY: arguments in the kernel's order, buffers made for these blocks; whoever queues this waits for the
        // stream, also after an error, and then looks at the status in `settle`.
        unsafe {
            self.factor.launch(&queue.stream, grid, &mut args)?;
            self.status.queue_download(&queue.stream, &self.status_seen, 0, 1)
        }
    }

    /// Queues `to = L⁻¹·from`, a slab with `width` numbers for each unknown; rows of `to` are `pitch` apart.
    pub fn queue_couple(
        &self,
        queue: &Queue,
        from: &Buffer<f64>,
        (width, pitch): (usize, usize),
        to: &Buffer<f64>,
    ) -> Result<(), DeviceError> {
        let mut args = self
            .arguments(Args::new().pointer(from.address()).pointer(self.l.address()))
            .int(self.blocks.count())
            .int(width)
            .int(pitch)
            .pointer(to.address());
        let grid = Grid { blocks: (pitch.div_ceil(128), self.blocks.count().min(65_535)), threads: 128 };
        // SAFETY: as above.
        unsafe { self.couple.launch(&queue.stream, grid, &mut args) }
    }

    /// Queues `to = L⁻¹·from` for `count` vectors.
    pub fn queue_forward(&self, queue: &Queue, from: u64, to: u64, count: usize) -> Result<(), DeviceError> {
        self.substitute(&self.forward, queue, [from, to], count)
    }

    /// Queues `to = L⁻ᵀ·from` for `count` vectors.
    pub fn queue_backward(&self, queue: &Queue, from: u64, to: u64, count: usize) -> Result<(), DeviceError> {
        self.substitute(&self.backward, queue, [from, to], count)
    }

    fn substitute(
        &self,
        kernel: &Kernel,
        queue: &Queue,
        [from, to]: [u64; 2],
        count: usize,
    ) -> Result<(), DeviceError> {
        let (n, m) = (self.blocks.count(), self.blocks.unknowns());
        let mut args =
            self.arguments(Args::new().pointer(self.l.address())).int(n).int(m).pointer(from).pointer(to);
        let grid = Grid { blocks: (n.div_ceil(128), count), threads: 128 };
        // SAFETY: as above; in place, each thread works on its own block.
        unsafe { kernel.launch(&queue.stream, grid, &mut args) }
    }

    /// Reads the verdict, once the stream was waited for.
    pub fn settle(&self, queue: &Queue, ridge: Ridge) -> Result<(), FrameError> {
        queue.stream.count(FACTORISATION);
        let status = self.status_seen[0];
        if status == FINE {
            return Ok(());
        }
        let at = status as usize;
        let pivots = self.pivots.to_vec(&queue.stream, at + 1)?;
        let block = self.blocks.block_of(at);
        let index = at - self.blocks.offsets()[block];
        let failed = NonPositivePivot { index, pivot: pivots[at] };
        Err(not_positive(Block::Row(block), failed, height(pivots[at - index], ridge)))
    }

    /// A pivot k of the capacitance that failed: in `L·K·Lᵀ`, what the border leaves of the rows, it is `l²·k`.
    pub fn too_strong(&self, queue: &Queue, failed: NonPositivePivot, ridge: Ridge) -> FrameError {
        let at = failed.index;
        let pivots = match self.pivots.to_vec(&queue.stream, at + 1) {
            Ok(pivots) => pivots,
            Err(error) => return error.into(),
        };
        let block = self.blocks.block_of(at);
        let index = at - self.blocks.offsets()[block];
        let failed = NonPositivePivot { index, pivot: pivots[at] * failed.pivot };
        not_positive(Block::Row(block), failed, height(pivots[at - index], ridge))
    }

    /// `2 Σ log diag L_i`.
    pub fn log_det(&self, queue: &Queue) -> Result<f64, DeviceError> {
        let pivots = self.pivots.to_vec(&queue.stream, self.blocks.unknowns())?;
        Ok(pivots.iter().map(|pivot| pivot.ln()).sum())
    }
}

/// A scale for the suggested ridge: the first pivot of a block is its first diagonal entry.
fn height(first: f64, ridge: Ridge) -> f64 {
    (first - ridge.on_row(0.0)).abs()
}

/// A ridge as the two numbers that kernels add: `h + absolute + relative·|h|`.
pub(super) fn on_row(ridge: Ridge) -> (f64, f64) {
    match ridge {
        Ridge::None => (0.0, 0.0),
        Ridge::Absolute { row, .. } => (row, 0.0),
        Ridge::Relative(rho) => (0.0, rho),
    }
}

/// The same for the border.
pub(super) fn on_border(ridge: Ridge) -> (f64, f64) {
    match ridge {
        Ridge::None => (0.0, 0.0),
        Ridge::Absolute { border, .. } => (border, 0.0),
        Ridge::Relative(rho) => (0.0, rho),
    }
}
