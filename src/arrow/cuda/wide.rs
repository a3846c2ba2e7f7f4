use super::CudaFrame;
use crate::arrow::Vector;
use crate::arrow::frame::{FrameError, Method};
use crate::device::DeviceError;
use crate::device::cuda::{Args, Buffer, Cuda, Event, Grid, Op, Pinned, Triangle};

/// Buffers for several right-hand sides at once.
pub(super) struct Wide {
    count: usize,
    rhs: Pinned<f64>,
    step: Pinned<f64>,
    rows: Buffer<f64>,
    border: Buffer<f64>,
    x: Buffer<f64>,
    ready: Event,
}

impl Wide {
    fn new(cuda: &Cuda, count: usize, m: usize, p: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            count,
            rhs: Pinned::new(cuda, count * (m + p))?,
            step: Pinned::new(cuda, count * (m + p))?,
            rows: Buffer::new(cuda, count * m)?,
            border: Buffer::new(cuda, count * p)?,
            x: Buffer::new(cuda, count * p)?,
            ready: Event::new(cuda)?,
        })
    }
}

impl CudaFrame {
    /// The steps of several right-hand sides in one wide solve. Where the frame makes corrections, they are solved one
    /// by one: corrections are fused into the solve of one right-hand side.
    ///
    /// # Errors
    /// A right-hand side of another shape; a frame that is not factored; whatever the device says.
    pub fn solve_many(&mut self, rhs: &[Vector]) -> Result<Vec<Vector>, FrameError> {
        self.ready()?;
        rhs.iter().try_for_each(|rhs| self.check(rhs))?;
        let (m, p) = (self.layout.unknowns(), self.layout.border());
        if self.about.corrections > 0 || rhs.len() < 2 {
            return rhs.iter().map(|rhs| self.solve(rhs)).collect();
        }
        let (rows, border) = self.wide_rhs_mut(rhs.len())?;
        for (rhs, (row, beta)) in rhs.iter().zip(rows.chunks_exact_mut(m).zip(border.chunks_exact_mut(p))) {
            row.copy_from_slice(&rhs.row);
            beta.copy_from_slice(&rhs.border);
        }
        let (rows, border) = self.solve_wide()?;
        let steps = rows.chunks_exact(m).zip(border.chunks_exact(p));
        Ok(steps.map(|(row, border)| Vector { row: row.to_vec(), border: border.to_vec() }).collect())
    }

    /// The right-hand sides that [`Self::solve_wide`] reads, pinned: `count` x Σ d_i, and `count` x p.
    ///
    /// # Errors
    /// Too little memory; whatever the device says.
    pub fn wide_rhs_mut(&mut self, count: usize) -> Result<(&mut [f64], &mut [f64]), FrameError> {
        let (m, p) = (self.layout.unknowns(), self.layout.border());
        let wide = match self.wide.take().filter(|wide| wide.count == count) {
            Some(wide) => wide,
            None => Wide::new(self.cuda(), count, m, p)?,
        };
        Ok(self.wide.insert(wide).rhs.split_at_mut(count * m))
    }

    /// The steps of what [`Self::wide_rhs_mut`] holds, without corrections: `count` x Σ d_i, and `count` x p.
    ///
    /// ```text
    ///     U = L⁻¹b    V = b_β − YᵀU    X = S⁻¹V    T = L⁻ᵀ(U − Y·X)
    /// ```
    ///
    /// # Errors
    /// A frame that is not factored; whatever the device says.
    pub fn solve_wide(&mut self) -> Result<(&[f64], &[f64]), FrameError> {
        self.ready()?;
        let m = self.layout.unknowns();
        let Some(wide) = &self.wide else { return Ok((&[], &[])) };
        let queued = self.queue_wide(wide);
        // Nothing may still use the pinned memory when this returns.
        let waits = [self.stream.wait(), self.copies.wait()];
        queued?;
        waits.into_iter().collect::<Result<(), _>>()?;
        Ok(wide.step.split_at(wide.count * m))
    }

    fn queue_wide(&self, wide: &Wide) -> Result<(), DeviceError> {
        let (m, p, k) = (self.layout.unknowns(), self.layout.border(), wide.count);
        let (row_rhs, border_rhs) = wide.rhs.split_at(k * m);
        // SAFETY: `solve_wide` waits for both streams, whatever fails here.
        unsafe {
            wide.rows.queue_upload(&self.stream, row_rhs)?;
            wide.border.queue_upload(&self.copies, border_rhs)?;
        }
        wide.ready.record(&self.copies)?;
        self.on_rows(&self.kernels.forward_rows, wide)?;
        self.stream.wait_for(&wide.ready)?;
        let y = (self.y.address(), self.layout.pitch());
        let (rows, v, matrix) =
            ((wide.rows.address(), m), (wide.border.address(), p), (self.matrix.address(), p));
        let (none, transposed) = (Op::None, Op::Transposed);
        // SAFETY: shapes as in the formulas; the buffers were made for them.
        let x = unsafe {
            self.blas.gemm((none, none), (p, k, m), (-1.0, 1.0), y, rows, v)?;
            if self.about.method == Method::TriangularSolves {
                self.blas.trsm(Triangle::Lower, none, (p, k), matrix, v)?;
                self.blas.trsm(Triangle::Lower, transposed, (p, k), matrix, v)?;
                &wide.border
            } else {
                self.blas.gemm((none, none), (p, k, p), (1.0, 0.0), matrix, v, (wide.x.address(), p))?;
                &wide.x
            }
        };
        // The border goes down while the rows are finished.
        wide.ready.record(&self.stream)?;
        self.copies.wait_for(&wide.ready)?;
        // SAFETY: as above.
        unsafe { x.queue_download(&self.copies, &wide.step, k * m, k * p)? };
        // SAFETY: as above.
        unsafe {
            let shape = (m, k, p);
            self.blas.gemm((transposed, none), shape, (-1.0, 1.0), y, (x.address(), p), rows)?;
        }
        self.on_rows(&self.kernels.backward_rows, wide)?;
        // SAFETY: as above.
        unsafe { wide.rows.queue_download(&self.stream, &wide.step, 0, k * m) }
    }

    fn on_rows(&self, kernel: &crate::device::cuda::Kernel, wide: &Wide) -> Result<(), DeviceError> {
        let (n, m) = (self.layout.blocks(), self.layout.unknowns());
        let mut args = self
            .rows(Args::new().pointer(self.l.address()))
            .int(n)
            .int(m)
            .pointer(wide.rows.address())
            .pointer(wide.rows.address());
        let grid = Grid { blocks: (n.div_ceil(128), wide.count), threads: 128 };
        // SAFETY: arguments in the kernel's order; in place, each thread on its own block.
        unsafe { kernel.launch(&self.stream, grid, &mut args) }
    }
}
