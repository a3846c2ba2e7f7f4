use super::parts::Slabs;
use super::{CudaFrame, DeviceSlabs};
use crate::arrow::frame::{FrameError, Method};
use crate::arrow::rows::not_positive;
use crate::arrow::{Block, Ridge};
use crate::device::cuda::{Args, Buffer, Grid, Op, Solver, Stream};
use crate::device::{DeviceError, Telemetry};
use crate::ops::cholesky::NonPositivePivot;
use crate::ops::spd_inverse::{Work, half_tiles};

/// 1-norm condition of the scaled Schur complement up to which a product with the explicit inverse needs no
/// correction: its residual is about κ·ε, and 1e-14 is asked for.
const PLAIN: f64 = 30.0;
/// Up to here one correction is enough: it squares κ·ε times a factor that grows with the order (measured below 1e3).
const ONE_CORRECTION: f64 = 1e5;
/// Up to here two are. Beyond, inverses by halves lose what corrections could build on: triangular solves instead.
const TWO_CORRECTIONS: f64 = 1e7;

/// No pivot failed: what `status` is filled with, byte by byte.
const FINE: i32 = 0x7f7f_7f7f;

/// One factorisation or inversion of a border.
const FACTORISATION: Telemetry =
    Telemetry { factorisations: 1, bytes_up: 0, bytes_down: 0, launches: 0, handles: 0, contexts: 0 };

impl CudaFrame {
    /// Factors `H + ridge`. Slabs on the device are only read.
    ///
    /// ```text
    ///     L_i = chol(D_i + ρ)    Y_i = L_i⁻¹B_i    S = C + ρ − ΣY_iᵀY_i    S⁻¹ by halves of S scaled to ones
    /// ```
    ///
    /// The 1-norm condition of the scaled S is known from both norms, and decides between the explicit inverse with 0, 1 or
    /// 2 corrections and triangular solves.
    ///
    /// # Errors
    /// Slabs of another shape; a block that is not positive definite; whatever the device says.
    pub fn factor(&mut self, slabs: Slabs<'_>, ridge: Ridge) -> Result<(), FrameError> {
        slabs.check(&self.layout)?;
        if !ridge.is_valid() {
            return Err(FrameError::Ridge { ridge });
        }
        self.factored = false;
        self.graph = None;
        if self.inversion.is_none() {
            self.inversion = Some(self.stream.capture(|| self.queue_inversion())?);
        }
        self.about.ridge = ridge;
        self.about.condition = f64::NAN;
        match slabs {
            Slabs::Device(slabs) => {
                let queued = self.queue(slabs, ridge, false);
                let waited = self.stream.wait();
                queued.and(waited)?;
            }
            Slabs::Host { row_hessian, cross, border } => {
                let upload = match self.upload.take() {
                    Some(upload) => upload,
                    None => DeviceSlabs::new(self.cuda(), &self.layout)?,
                };
                // The border travels on a second stream while the rows are eliminated.
                let sent = (|| {
                    // SAFETY: both streams are waited for below, whatever fails here.
                    unsafe {
                        upload.row_hessian.queue_upload(&self.stream, row_hessian)?;
                        upload.cross.queue_upload(&self.stream, cross)?;
                        upload.border.queue_upload(&self.copies, border)?;
                    }
                    self.copied.record(&self.copies)?;
                    self.queue(&upload, ridge, true)
                })();
                // Nothing may still read the caller's slabs when this returns.
                let waits = [self.copies.wait(), self.stream.wait()];
                self.upload = Some(upload);
                sent?;
                waits.into_iter().collect::<Result<(), _>>()?;
            }
        }
        self.stream.count(FACTORISATION);
        self.choose(ridge)?;
        self.factored = true;
        Ok(())
    }

    /// Queues everything up to the inverse and its norms.
    fn queue(&self, slabs: &DeviceSlabs, ridge: Ridge, border_follows: bool) -> Result<(), DeviceError> {
        self.status.fill_bytes(&self.stream, FINE.to_ne_bytes()[0])?;
        self.eliminate_rows(slabs, ridge)?;
        if border_follows {
            self.stream.wait_for(&self.copied)?;
        }
        self.assemble(slabs, ridge)?;
        if let Some(inversion) = &self.inversion {
            inversion.replay(&self.stream)?;
        }
        self.half_tiles(None, &self.half_inverse, 1)?;
        // SAFETY: `factor` looks at them only after it waited for the stream, and waits also after an error.
        unsafe {
            self.status.queue_download(&self.stream, &self.status_seen, 0, 2)?;
            self.norms.queue_download(&self.stream, &self.norms_seen, 0, 2)?;
            self.scale.queue_download(&self.stream, &self.scale_seen, 0, self.scale.len())?;
            self.pivots.queue_download(&self.stream, &self.pivots_seen, 0, self.pivots.len())
        }
    }

    /// The inverse by halves: hundreds of small launches on buffers of the frame alone, so they are recorded once.
    fn queue_inversion(&self) -> Result<(), DeviceError> {
        let work = Work {
            matrix: &self.matrix,
            order: self.layout.border(),
            scratch: &self.scratch,
            pivots: &self.pivots,
            // Leaves report pivots by their index in `pivots`.
            first_pivot: self.layout.unknowns(),
            status: self.status.at(1),
        };
        // SAFETY: the buffers were made for this order and leaf.
        unsafe { self.inverse.invert(&self.stream, &self.blas, &work) }
    }

    /// L and Y.
    fn eliminate_rows(&self, slabs: &DeviceSlabs, ridge: Ridge) -> Result<(), DeviceError> {
        let (n, p, pitch) = (self.layout.blocks(), self.layout.border(), self.layout.pitch());
        let (absolute, relative) = on_row(ridge);
        let rows = |args: Args| args.pointer(self.offsets.address()).pointer(self.starts.address());
        let mut factor = rows(Args::new().pointer(slabs.row_hessian.address()))
            .double(absolute)
            .double(relative)
            .int(n)
            .pointer(self.l.address())
            .pointer(self.pivots.address())
            .pointer(self.status.address());
        let grid = Grid { blocks: (n.div_ceil(4), 1), threads: 128 };
        let mut couple = rows(Args::new().pointer(slabs.cross.address()).pointer(self.l.address()))
            .int(n)
            .int(p)
            .int(pitch)
            .pointer(self.y.address());
        let columns = Grid { blocks: (pitch.div_ceil(128), n.min(65_535)), threads: 128 };
        // SAFETY: arguments in the kernels' order; buffers made for this layout.
        unsafe {
            self.kernels.factor_rows.launch(&self.stream, grid, &mut factor)?;
            self.kernels.couple_rows.launch(&self.stream, columns, &mut couple)
        }
    }

    /// S, scaled in `matrix`, plain in `half`, and its 1-norm.
    fn assemble(&self, slabs: &DeviceSlabs, ridge: Ridge) -> Result<(), DeviceError> {
        let (m, p, pitch) = (self.layout.unknowns(), self.layout.border(), self.layout.pitch());
        let panel = p.div_ceil(self.tuning.panels).next_multiple_of(128);
        let ops = (Op::None, Op::Transposed);
        for at in (0..p).step_by(panel) {
            let y = (self.y.at(at), pitch);
            let shape = (p - at, panel.min(p - at), m);
            // SAFETY: the panel lies inside Y and the matrix.
            unsafe { self.blas.gemm(ops, shape, (-1.0, 0.0), y, y, (self.matrix.at(at + at * p), p))? };
        }
        let (absolute, relative) = on_border(ridge);
        let mut scale = Args::new()
            .pointer(slabs.border.address())
            .pointer(self.matrix.address())
            .int(p)
            .double(absolute)
            .double(relative)
            .pointer(self.scale.address());
        let grid = Grid { blocks: (p.div_ceil(256), 1), threads: 256 };
        // SAFETY: as above.
        unsafe { self.kernels.border_scale.launch(&self.stream, grid, &mut scale)? };
        self.half_tiles(Some((slabs, ridge)), &self.half, 0)
    }

    /// In (with slabs) or out of the scaled matrix, and the norm of the scaled one.
    fn half_tiles(
        &self,
        assemble: Option<(&DeviceSlabs, Ridge)>,
        half: &Buffer<f64>,
        norm: usize,
    ) -> Result<(), DeviceError> {
        let p = self.layout.border();
        let (absolute, relative) = assemble.map_or((0.0, 0.0), |(_, ridge)| on_border(ridge));
        let mut tiles = Args::new()
            .int(usize::from(assemble.is_some()))
            .pointer(assemble.map_or(0, |(slabs, _)| slabs.border.address()))
            .pointer(self.matrix.address())
            .pointer(self.scale.address())
            .int(p)
            .double(absolute)
            .double(relative)
            .pointer(half.address())
            .pointer(self.sums.address());
        let mut largest = Args::new().pointer(self.sums.address()).int(p).pointer(self.norms.at(norm));
        // SAFETY: as above.
        unsafe {
            let grid = Grid { blocks: (self.tiles(), 1), threads: 256 };
            self.kernels.half_tiles.launch(&self.stream, grid, &mut tiles)?;
            let grid = Grid { blocks: (1, 1), threads: 1024 };
            self.kernels.norm_one.launch(&self.stream, grid, &mut largest)
        }
    }

    /// Reads the verdict and settles the method.
    fn choose(&mut self, ridge: Ridge) -> Result<(), FrameError> {
        let [row_status, border_status] = [self.status_seen[0], self.status_seen[1]];
        if row_status != FINE {
            return Err(self.row_failure(row_status as usize, ridge));
        }
        let condition = self.norms_seen[0] * self.norms_seen[1];
        self.about.condition = condition;
        self.about.method = Method::ExplicitInverse;
        self.about.corrections = match condition {
            c if c <= PLAIN => 0,
            c if c <= ONE_CORRECTION => 1,
            c if c <= TWO_CORRECTIONS => 2,
            _ => return self.factor_border(border_status),
        };
        if border_status != FINE { self.factor_border(border_status) } else { Ok(()) }
    }

    /// chol(S) in place of the inverse. A border that only the inverse by halves found indefinite is decided here.
    fn factor_border(&mut self, border_status: i32) -> Result<(), FrameError> {
        let p = self.layout.border();
        self.about.method = Method::TriangularSolves;
        self.about.corrections = 0;
        let cholesky = match self.cholesky.take() {
            Some(cholesky) => cholesky,
            None => Cholesky::new(&self.stream, p)?,
        };
        let Cholesky { solver, scratch, info } = self.cholesky.insert(cholesky);
        let mut whole = Args::new().pointer(self.half.address()).pointer(self.matrix.address()).int(p);
        // SAFETY: as above.
        unsafe {
            let grid = Grid { blocks: (half_tiles(p), 1), threads: 256 };
            self.kernels.whole_from_half.launch(&self.stream, grid, &mut whole)?;
            solver.potrf(p, (self.matrix.address(), p), scratch, info)?;
        }
        let failed = info.to_vec(&self.stream, 1)?[0];
        self.stream.count(FACTORISATION);
        if failed == 0 {
            return self.read_pivots();
        }
        let scale = &self.scale_seen;
        let (index, pivot) = if border_status == FINE {
            (failed as usize - 1, 0.0)
        } else {
            let at = border_status as usize;
            let index = at - self.layout.unknowns();
            (index, self.pivots_seen[at] / scale[index].powi(2))
        };
        let largest = scale.iter().fold(0.0_f64, |most, s| most.max(s.powi(-2)));
        Err(not_positive(Block::Border, NonPositivePivot { index, pivot }, largest))
    }

    /// The squared pivots of chol(S), for the determinant.
    fn read_pivots(&self) -> Result<(), FrameError> {
        let (m, p) = (self.layout.unknowns(), self.layout.border());
        let mut args = Args::new().pointer(self.matrix.address()).int(p).pointer(self.pivots.at(m));
        let grid = Grid { blocks: (p.div_ceil(256), 1), threads: 256 };
        // SAFETY: as above.
        unsafe { self.kernels.squared_diagonal.launch(&self.stream, grid, &mut args)? };
        // SAFETY: waited for right here.
        let queued = unsafe { self.pivots.queue_download(&self.stream, &self.pivots_seen, 0, m + p) };
        let waited = self.stream.wait();
        Ok(queued.and(waited)?)
    }

    fn row_failure(&self, at: usize, ridge: Ridge) -> FrameError {
        let block = self.layout.offsets().partition_point(|first| *first <= at) - 1;
        let index = at - self.layout.offsets()[block];
        // The first pivot of a block is its first diagonal entry: a scale for the suggested ridge.
        let first = self.pivots_seen[at - index] - ridge.on_row(0.0);
        not_positive(Block::Row(block), NonPositivePivot { index, pivot: self.pivots_seen[at] }, first.abs())
    }
}

/// cuSOLVER's Cholesky, made when a border first asks for triangular solves.
pub(super) struct Cholesky {
    solver: Solver,
    scratch: Buffer<f64>,
    info: Buffer<i32>,
}

impl Cholesky {
    fn new(stream: &Stream, p: usize) -> Result<Self, DeviceError> {
        let solver = Solver::new(stream)?;
        let scratch = Buffer::new(stream.cuda(), solver.potrf_scratch(p)?)?;
        Ok(Self { solver, scratch, info: Buffer::new(stream.cuda(), 1)? })
    }
}

/// A ridge as the two numbers that kernels add: `h + absolute + relative·h`.
fn on_row(ridge: Ridge) -> (f64, f64) {
    match ridge {
        Ridge::None => (0.0, 0.0),
        Ridge::Absolute { row, .. } => (row, 0.0),
        Ridge::Relative(rho) => (0.0, rho),
    }
}

fn on_border(ridge: Ridge) -> (f64, f64) {
    match ridge {
        Ridge::None => (0.0, 0.0),
        Ridge::Absolute { border, .. } => (border, 0.0),
        Ridge::Relative(rho) => (0.0, rho),
    }
}
