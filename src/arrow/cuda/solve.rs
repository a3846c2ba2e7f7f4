use super::CudaFrame;
use super::parts::COLUMNS;
use crate::arrow::Vector;
use crate::arrow::frame::{FrameError, Method};
use crate::device::cuda::{Args, Buffer, Grid, Op, Triangle};
use crate::device::{DeviceError, Telemetry};
use crate::ops::spd_inverse::TILE;

/// Border from which a row block is worth 512 threads instead of 256.
const WIDE_BORDER: usize = 4096;

impl CudaFrame {
    /// The step of one right-hand side.
    ///
    /// # Errors
    /// A right-hand side of another shape; whatever the device says.
    pub fn solve(&mut self, rhs: &Vector) -> Result<Vector, FrameError> {
        self.check(rhs)?;
        let m = self.layout.unknowns();
        self.rhs[..m].copy_from_slice(&rhs.row);
        self.rhs[m..].copy_from_slice(&rhs.border);
        let step = self.solve_in_place()?;
        Ok(Vector { row: step[..m].to_vec(), border: step[m..].to_vec() })
    }

    /// The right-hand side that [`Self::solve_in_place`] reads: pinned, rows first, then the border.
    pub fn rhs_mut(&mut self) -> &mut [f64] {
        &mut self.rhs
    }

    /// The step of the right-hand side in [`Self::rhs_mut`], rows first: one replay of a graph, nothing copied twice.
    ///
    /// # Errors
    /// A frame that is not factored; whatever the device says.
    pub fn solve_in_place(&mut self) -> Result<&[f64], FrameError> {
        self.ready()?;
        if self.about.method == Method::TriangularSolves {
            let queued = self.queue_triangular();
            // The step is pinned and ours: nothing may still write to it when this returns.
            let waited = self.stream.wait();
            queued.and(waited)?;
        } else {
            if self.graph.is_none() {
                self.graph = Some(self.stream.capture(|| self.queue_solve())?);
            }
            if let Some(graph) = &self.graph {
                graph.replay(&self.stream)?;
            }
            self.stream.wait()?;
        }
        // Kernels read and write pinned memory themselves.
        let bytes = (self.rhs.len() * size_of::<f64>()) as u64;
        self.stream.count(Telemetry { bytes_up: bytes, bytes_down: bytes, ..Telemetry::default() });
        Ok(&self.step)
    }

    fn queue_solve(&self) -> Result<(), DeviceError> {
        self.queue_reduction(&self.v)?;
        self.multiply(&self.half_inverse, &self.v)?;
        let corrections = self.about.corrections;
        self.sum_tiles(None, 1.0, &self.x, corrections == 0)?;
        for k in 0..corrections {
            self.multiply(&self.half, &self.x)?;
            self.sum_tiles(Some(&self.v), -1.0, &self.rest, false)?;
            self.multiply(&self.half_inverse, &self.rest)?;
            self.sum_tiles(Some(&self.x), 1.0, &self.x, k + 1 == corrections)?;
        }
        self.queue_back_substitution(true)
    }

    fn queue_triangular(&self) -> Result<(), DeviceError> {
        let (m, p) = (self.layout.unknowns(), self.layout.border());
        self.queue_reduction(&self.x)?;
        let (factor, x) = ((self.matrix.address(), p), (self.x.address(), p));
        // SAFETY: a factor of order p and one right-hand side.
        unsafe {
            self.blas.trsm(Triangle::Lower, Op::None, (p, 1), factor, x)?;
            self.blas.trsm(Triangle::Lower, Op::Transposed, (p, 1), factor, x)?;
        }
        // SAFETY: `solve_in_place` waits before it hands the step out.
        unsafe { self.x.queue_download(&self.stream, &self.step, m, p)? };
        self.queue_back_substitution(false)
    }

    /// u, and `v = b_β − ΣY_iᵀu_i`.
    fn queue_reduction(&self, v: &Buffer<f64>) -> Result<(), DeviceError> {
        let (n, p, pitch) = (self.layout.blocks(), self.layout.border(), self.layout.pitch());
        let (per_part, parts) =
            self.layout.parts(self.tuning.reducers * self.cuda().multiprocessors() as usize);
        let mut reduce = self
            .rows(Args::new().pointer(self.y.address()).pointer(self.l.address()))
            .pointer(self.rhs.address())
            .int(n)
            .int(pitch)
            .int(per_part)
            .int(self.kept().0)
            .pointer(self.u.address())
            .pointer(self.parts.address());
        let border_rhs = self.rhs.address() + (self.layout.unknowns() * size_of::<f64>()) as u64;
        let mut sum = Args::new()
            .pointer(self.parts.address())
            .pointer(border_rhs)
            .int(parts)
            .int(p)
            .int(pitch)
            .pointer(v.address());
        // SAFETY: arguments in the kernels' order; buffers made for this layout.
        unsafe {
            let grid = Grid { blocks: (pitch.div_ceil(COLUMNS), parts), threads: 256 };
            self.kernels.reduce_rows.launch(&self.stream, grid, &mut reduce)?;
            let grid = Grid { blocks: (p.div_ceil(32), 1), threads: 256 };
            self.kernels.sum_parts.launch_chained(&self.stream, grid, &mut sum)
        }
    }

    fn multiply(&self, half: &Buffer<f64>, x: &Buffer<f64>) -> Result<(), DeviceError> {
        let mut args = Args::new()
            .pointer(half.address())
            .pointer(x.address())
            .int(self.layout.border())
            .int(self.kept().1)
            .pointer(self.sums.address());
        let grid = Grid { blocks: (self.tiles(), 1), threads: 256 };
        // SAFETY: as above.
        unsafe { self.kernels.multiply_half.launch_chained(&self.stream, grid, &mut args) }
    }

    /// `y = base + beta·(the product)`; the last one also goes to the pinned step.
    fn sum_tiles(
        &self,
        base: Option<&Buffer<f64>>,
        beta: f64,
        y: &Buffer<f64>,
        last: bool,
    ) -> Result<(), DeviceError> {
        let p = self.layout.border();
        let step = self.step.address() + (self.layout.unknowns() * size_of::<f64>()) as u64;
        let mut args = Args::new()
            .pointer(self.sums.address())
            .pointer(base.map_or(0, Buffer::address))
            .double(1.0)
            .double(beta)
            .int(p)
            .pointer(y.address())
            .pointer(if last { step } else { 0 });
        let grid = Grid { blocks: (p.div_ceil(TILE), 1), threads: 256 };
        // SAFETY: as above.
        unsafe { self.kernels.sum_tiles.launch_chained(&self.stream, grid, &mut args) }
    }

    fn queue_back_substitution(&self, chained: bool) -> Result<(), DeviceError> {
        let (n, p) = (self.layout.blocks(), self.layout.border());
        let mut args = self
            .rows(Args::new().pointer(self.y.address()).pointer(self.l.address()))
            .pointer(self.u.address())
            .pointer(self.x.address())
            .int(n)
            .int(p)
            .int(self.layout.pitch())
            .int(self.kept().0)
            .pointer(self.step.address());
        let threads = if p >= WIDE_BORDER { 512 } else { 256 };
        let (kernel, grid) = (&self.kernels.back_substitute, Grid { blocks: (n, 1), threads });
        // SAFETY: as above.
        unsafe {
            if chained {
                kernel.launch_chained(&self.stream, grid, &mut args)
            } else {
                kernel.launch(&self.stream, grid, &mut args)
            }
        }
    }

    /// Rows of Y and tiles of S⁻¹ to keep in the cache: the smaller of the two first.
    fn kept(&self) -> (usize, usize) {
        let budget = self.tuning.kept_bytes;
        let (row, rows) = (self.layout.pitch() * size_of::<f64>(), self.layout.unknowns());
        let (tile, tiles) = (TILE * TILE * size_of::<f64>(), self.tiles());
        if row * rows <= tile * tiles {
            let kept = rows.min(budget / row);
            (kept, tiles.min((budget - kept * row) / tile))
        } else {
            let kept = tiles.min(budget / tile);
            (rows.min((budget - kept * tile) / row), kept)
        }
    }

    pub(super) fn rows(&self, args: Args) -> Args {
        args.pointer(self.offsets.address()).pointer(self.starts.address())
    }
}
