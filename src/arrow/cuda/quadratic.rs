use super::operator::Operator;
use super::{CudaPool, HostSlabs, Layout, Leased};
use crate::arrow::frame::FrameError;
use crate::arrow::ground::{Attempt, Ground, Sight};
use crate::arrow::{Budget, Failure, NewtonError, Quadratic, Ridge, Telemetry, Vector};
use crate::device::cuda::{Args, Buffer, Grid, Kernel, Pinned};
use crate::device::{self, DeviceError};
use crate::ops::quadratic_try::{self, SCALARS, THREADS};

/// A quadratic on a card: H, b, point, gradient and step stay there. A try brings nine numbers down and sends nothing;
/// another ridge factors the slabs that lie there. The point comes down at the end.
pub(in crate::arrow) struct OnCard {
    frame: Leased,
    operator: Operator,
    take_step: Kernel,
    survey: Kernel,
    vectors: Vectors,
    scalars: Buffer<f64>,
    seen: Pinned<f64>,
    /// At the point, and at the candidate that was tried last.
    here: Sight,
    next: Sight,
    /// Whether the gradient is still that of the point before.
    moved: bool,
    /// The ridge of the frame.
    built: Option<Ridge>,
    shape: (usize, usize),
    telemetry: Telemetry,
    /// What the frame had counted before the run.
    before: device::Telemetry,
}

/// All Σ d_i + p long, rows first.
struct Vectors {
    b: Buffer<f64>,
    diagonal: Buffer<f64>,
    z: Buffer<f64>,
    candidate: Buffer<f64>,
    /// `−∇φ = b − Hz` at the point, which is what a frame solves for, and at the candidate.
    descent: Buffer<f64>,
    next: Buffer<f64>,
    step: Buffer<f64>,
    product: Buffer<f64>,
}

/// How many those are.
const VECTORS: u64 = 8;

impl OnCard {
    /// Sends H, b, its diagonal and the start, and evaluates φ there.
    pub fn start(
        pool: &CudaPool,
        quadratic: &Quadratic,
        z: &Vector,
        budget: Budget,
    ) -> Result<Self, FrameError> {
        let (system, layout) = (&quadratic.hessian, Layout::of(&quadratic.hessian));
        let (m, p) = (layout.unknowns(), layout.border());
        let parts = layout.factors().map_or(0, |(_, r)| layout.rows().count() * r) as u64;
        let beside = 8 * (VECTORS * (m + p) as u64 + parts);
        let frame = pool.lease(&layout, budget, beside, |frame| frame.send(HostSlabs::of(system)))?;
        [&quadratic.rhs, z].into_iter().try_for_each(|vector| frame.check(vector))?;
        let (cuda, stream) = (frame.cuda(), &frame.queue.stream);
        let up = |vector: &Vector| Buffer::from_slice(stream, &vector.values().collect::<Vec<f64>>());
        let zeros = || -> Result<Buffer<f64>, DeviceError> {
            let buffer = Buffer::new(cuda, m + p)?;
            buffer.fill_bytes(stream, 0)?;
            Ok(buffer)
        };
        let vectors = Vectors {
            b: up(&quadratic.rhs)?,
            diagonal: up(&system.diagonal())?,
            z: up(z)?,
            candidate: zeros()?,
            descent: zeros()?,
            next: zeros()?,
            step: zeros()?,
            product: zeros()?,
        };
        let source = quadratic_try::source();
        let mut run = Self {
            operator: Operator::new(cuda, &layout)?,
            take_step: Kernel::new(cuda, &source, "take_step", 0)?,
            survey: Kernel::new(cuda, &source, "survey", 0)?,
            vectors,
            scalars: Buffer::new(cuda, SCALARS)?,
            seen: Pinned::new(cuda, SCALARS)?,
            here: Sight::default(),
            next: Sight::default(),
            moved: true,
            built: None,
            shape: (m, p),
            telemetry: Telemetry::default(),
            before: frame.telemetry() - frame.built(),
            frame,
        };
        // The step is zero: the candidate is the start.
        run.look(Ridge::None)?;
        run.advance();
        run.turn()?;
        Ok(run)
    }

    /// The candidate of the present step, and everything that the host decides by.
    fn look(&mut self, ridge: Ridge) -> Result<Look, FrameError> {
        let queued = self.queue_look(ridge);
        // The scalars are pinned and ours: nothing may still write to them when this returns.
        let waited = self.frame.queue.stream.wait();
        queued.and(waited.map_err(FrameError::from))?;
        let s = &self.seen;
        let norm = |most: f64, squares: f64| {
            if most == 0.0 || !most.is_finite() { most } else { most * squares.sqrt() }
        };
        self.next =
            Sight { value: 0.5 * s[0] - s[1], gradient_norm: norm(s[5], s[6]), point_norm: norm(s[7], s[8]) };
        Ok(Look { predicted: 0.5 * (s[2] + s[3]), finite: s[4] == 0.0 })
    }

    fn queue_look(&self, ridge: Ridge) -> Result<(), FrameError> {
        let (v, stream, (m, p)) = (&self.vectors, &self.frame.queue.stream, self.shape);
        let mut take = Args::new()
            .pointer(v.z.address())
            .pointer(v.step.address())
            .int(m + p)
            .pointer(v.candidate.address());
        let grid = Grid { blocks: ((m + p).div_ceil(256), 1), threads: 256 };
        // SAFETY: arguments in the kernel's order; vectors of this length.
        unsafe { self.take_step.launch(stream, grid, &mut take)? };
        self.frame.queue_apply(&self.operator, &v.candidate, &v.product)?;
        let (row, border, relative) = match ridge {
            Ridge::None => (0.0, 0.0, 0.0),
            Ridge::Absolute { row, border } => (row, border, 0.0),
            Ridge::Relative(rho) => (0.0, 0.0, rho),
        };
        let vectors = [&v.candidate, &v.product, &v.b, &v.step, &v.descent, &v.diagonal];
        let mut survey = vectors
            .into_iter()
            .fold(Args::new(), |args, vector| args.pointer(vector.address()))
            .int(m)
            .int(m + p)
            .double(row)
            .double(border)
            .double(relative)
            .pointer(v.next.address())
            .pointer(self.scalars.address());
        // SAFETY: as above; `look` waits before it reads the scalars.
        unsafe {
            self.survey.launch(stream, Grid { blocks: (1, 1), threads: THREADS }, &mut survey)?;
            Ok(self.scalars.queue_download(stream, &self.seen, 0, SCALARS)?)
        }
    }

    /// The gradient of the point, after a move.
    fn turn(&mut self) -> Result<(), FrameError> {
        if std::mem::take(&mut self.moved) {
            self.vectors.descent.copy_from(&self.frame.queue.stream, &self.vectors.next)?;
            self.here.gradient_norm = self.next.gradient_norm;
        }
        Ok(())
    }
}

struct Look {
    predicted: f64,
    finite: bool,
}

impl Ground for OnCard {
    fn here(&self) -> Sight {
        self.here
    }

    fn attempt(&mut self, ridge: Ridge) -> Result<Attempt, NewtonError> {
        if self.built != Some(ridge) {
            self.built = None;
            match self.frame.refactor(ridge) {
                Ok(()) => self.telemetry.frames += 1,
                Err(FrameError::NotPositiveDefinite { block, index, pivot, .. }) => {
                    return Ok(Attempt::NotPositiveDefinite(Failure { block, index, pivot, ridge }));
                }
                Err(error) => return Err(error.into()),
            }
            self.built = Some(ridge);
        }
        let Vectors { descent, step, .. } = &self.vectors;
        self.frame.queue_between(descent, step)?;
        let Look { predicted, finite } = self.look(ridge)?;
        if !finite {
            return Ok(Attempt::Overflow);
        }
        self.telemetry.solves += 1;
        Ok(Attempt::Candidate { value: self.next.value, predicted })
    }

    fn advance(&mut self) {
        // Candidate and point change their names; the step is taken from the point anew.
        let v = &mut self.vectors;
        std::mem::swap(&mut v.z, &mut v.candidate);
        self.here = Sight { gradient_norm: self.here.gradient_norm, ..self.next };
        self.moved = true;
    }

    fn refresh_gradient(&mut self, _: u32) -> Result<(), NewtonError> {
        Ok(self.turn()?)
    }

    fn linearise(&mut self, _: u32) -> Result<(), NewtonError> {
        Ok(self.turn()?)
    }

    fn end(self: Box<Self>) -> Result<(Vector, Telemetry), NewtonError> {
        let (stream, (m, p)) = (&self.frame.queue.stream, self.shape);
        let mut row = self.vectors.z.to_vec(stream, m + p).map_err(FrameError::from)?;
        let border = row.split_off(m);
        let counts = self.frame.telemetry() - self.before;
        Ok((Vector { row, border }, Telemetry { counts, ..self.telemetry }))
    }
}
