//! The frame on an NVIDIA card: slabs go up once, right-hand sides and steps travel through pinned memory.

mod batch;
mod build;
mod lane;
mod parts;
mod pool;
mod solve;
mod wide;

use std::sync::Arc;

use super::frame::{About, Elimination, FrameError, Method};
use super::{Budget, Path, Ridge, System, Telemetry, Vector};
use crate::device::cuda::{Blas, Buffer, Cuda, Event, Graph, Pinned, Stream};
use crate::ops::spd_inverse::{SpdInverse, TILE, half_len, half_tiles, scratch_len};

pub use batch::{SmallBatch, SmallBatchError};
pub use lane::Lane;
pub use parts::{DeviceSlabs, Layout, Slabs, Tuning};
pub use pool::CudaPool;
pub(super) use pool::Leased;

use build::Cholesky;
use parts::Kernels;
use wide::Wide;

/// Everything of `(H + ridge)⁻¹` on one card, with its own stream, handles and buffers; built by [`Self::factor`] as
/// often as wanted without a new allocation.
///
/// | buffer | numbers | holds |
/// |---|---|---|
/// | `l` | Σ d_i² | L_i |
/// | `y` | Σ d_i x pitch | Y_i |
/// | `matrix` | p x p | S⁻¹, both triangles, or chol(S) |
/// | `half` · `half_inverse` | p(p + 64)/2 each | S and S⁻¹, tiles of the lower triangle |
pub struct CudaFrame {
    stream: Stream,
    copies: Stream,
    copied: Event,
    blas: Blas,
    kernels: Kernels,
    inverse: SpdInverse,
    layout: Layout,
    tuning: Tuning,
    offsets: Buffer<i32>,
    starts: Buffer<i32>,
    l: Buffer<f64>,
    y: Buffer<f64>,
    matrix: Buffer<f64>,
    half: Buffer<f64>,
    half_inverse: Buffer<f64>,
    scratch: Buffer<f64>,
    scale: Buffer<f64>,
    pivots: Buffer<f64>,
    status: Buffer<i32>,
    norms: Buffer<f64>,
    sums: Buffer<f64>,
    parts: Buffer<f64>,
    u: Buffer<f64>,
    v: Buffer<f64>,
    x: Buffer<f64>,
    rest: Buffer<f64>,
    upload: Option<DeviceSlabs>,
    rhs: Pinned<f64>,
    step: Pinned<f64>,
    status_seen: Pinned<i32>,
    norms_seen: Pinned<f64>,
    pivots_seen: Pinned<f64>,
    scale_seen: Pinned<f64>,
    inversion: Option<Graph>,
    graph: Option<Graph>,
    wide: Option<Wide>,
    cholesky: Option<Cholesky>,
    about: About,
    /// Whether the last [`Self::factor`] succeeded.
    factored: bool,
}

impl CudaFrame {
    /// A frame of this shape, not factored yet.
    ///
    /// # Errors
    /// Too little memory (figure and budget, before anything is allocated); whatever the device says.
    pub fn new(cuda: &Cuda, layout: Layout, tuning: Tuning, budget: Budget) -> Result<Self, FrameError> {
        let needed = layout.bytes(tuning);
        let free = cuda.free_memory()?;
        budget.check(needed, &layout.to_string(), || Some(free))?;
        let (m, p) = (layout.unknowns(), layout.border());
        let stream = Stream::new(cuda)?;
        let numbers = |len| Buffer::<f64>::new(cuda, len);
        let to_i32 = |values: &[usize]| values.iter().map(|v| *v as i32).collect::<Vec<_>>();
        let (_, parts) = layout.parts(tuning.reducers * cuda.multiprocessors() as usize);
        let tiles = p.div_ceil(TILE);
        Ok(Self {
            copies: stream.beside()?,
            copied: Event::new(cuda)?,
            blas: Blas::new(&stream)?,
            kernels: Kernels::new(cuda, layout.largest_dim())?,
            inverse: SpdInverse::new(&stream, tuning.leaf)?,
            offsets: Buffer::from_slice(&stream, &to_i32(layout.offsets()))?,
            starts: Buffer::from_slice(&stream, &to_i32(layout.starts()))?,
            l: numbers(layout.row_numbers())?,
            y: numbers(m * layout.pitch())?,
            matrix: numbers(p * p)?,
            half: numbers(half_len(p))?,
            half_inverse: numbers(half_len(p))?,
            scratch: numbers(scratch_len(p, tuning.leaf))?,
            scale: numbers(p)?,
            pivots: numbers(m + p)?,
            status: Buffer::new(cuda, 2)?,
            norms: numbers(2)?,
            sums: numbers(tiles * tiles * TILE)?,
            parts: numbers(parts * layout.pitch())?,
            u: numbers(m)?,
            v: numbers(p)?,
            x: numbers(p)?,
            rest: numbers(p)?,
            upload: None,
            rhs: Pinned::new(cuda, m + p)?,
            step: Pinned::new(cuda, m + p)?,
            status_seen: Pinned::new(cuda, 2)?,
            norms_seen: Pinned::new(cuda, 2)?,
            pivots_seen: Pinned::new(cuda, m + p)?,
            scale_seen: Pinned::new(cuda, p)?,
            inversion: None,
            graph: None,
            wide: None,
            cholesky: None,
            about: About {
                path: Path::Resident,
                elimination: Elimination::Rows,
                method: Method::ExplicitInverse,
                corrections: 0,
                condition: f64::NAN,
                ridge: Ridge::None,
            },
            factored: false,
            stream,
            layout,
            tuning,
        })
    }

    /// A frame of a system, its slabs sent from the host. A factored cross or a structured border is sent dense.
    ///
    /// # Errors
    /// As [`Self::new`] and [`Self::factor`].
    pub fn build(
        cuda: &Cuda,
        system: &Arc<System>,
        ridge: Ridge,
        budget: Budget,
    ) -> Result<Self, FrameError> {
        let layout = Layout::new(system.offsets().to_vec(), system.border());
        let mut frame = Self::new(cuda, layout, Tuning::default(), budget)?;
        frame.factor_system(system, ridge)?;
        Ok(frame)
    }

    /// Factors another system of the same layout in place: the re-upload path, with warm handles and buffers.
    ///
    /// # Errors
    /// As [`Self::factor`].
    pub fn factor_system(&mut self, system: &System, ridge: Ridge) -> Result<(), FrameError> {
        use super::{Border, Cross};
        let dense_cross;
        let cross = match system.cross() {
            Cross::Dense(b) => b,
            factored => {
                dense_cross = factored.to_dense(system.offsets(), system.border());
                &dense_cross
            }
        };
        let dense_border;
        let border = match system.border_hessian() {
            Border::Dense(c) => c,
            structured => {
                dense_border = structured.to_dense(system.border());
                &dense_border
            }
        };
        self.factor(Slabs::Host { row_hessian: system.row_hessian(), cross, border }, ridge)
    }

    /// What this frame counted since it was made.
    pub fn telemetry(&self) -> Telemetry {
        let seen = self.stream.telemetry();
        Telemetry {
            factorisations: seen.factorisations,
            bytes_up: seen.bytes_up,
            bytes_down: seen.bytes_down,
            launches: seen.launches,
            handles: seen.handles,
            contexts: seen.contexts,
            ..Telemetry::default()
        }
    }

    /// The choices made by the last [`Self::factor`].
    pub fn about(&self) -> About {
        self.about
    }

    pub fn cuda(&self) -> &Cuda {
        self.stream.cuda()
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// `log det(H + ridge)`: the sum of the logarithms of all squared pivots, of which those of the border belong to
    /// the matrix scaled to a diagonal of ones. NaN where the last [`Self::factor`] failed or there was none.
    pub fn log_det(&self) -> f64 {
        if !self.factored {
            return f64::NAN;
        }
        let (rows, border) = self.pivots_seen.split_at(self.layout.unknowns());
        let scaled = |(pivot, scale): (&f64, &f64)| match self.about.method {
            Method::ExplicitInverse => pivot.ln() - 2.0 * scale.ln(),
            Method::TriangularSolves => pivot.ln(),
        };
        rows.iter().map(|pivot| pivot.ln()).sum::<f64>()
            + border.iter().zip(self.scale_seen.iter()).map(scaled).sum::<f64>()
    }

    fn tiles(&self) -> usize {
        half_tiles(self.layout.border())
    }

    /// Refuses to answer from a frame that holds no factors.
    fn ready(&self) -> Result<(), FrameError> {
        if self.factored { Ok(()) } else { Err(FrameError::NotFactored) }
    }

    /// Whether the card still answers: an error that loses it shows in every later call.
    fn is_alive(&self) -> bool {
        self.stream.wait().and(self.copies.wait()).is_ok()
    }

    fn check(&self, rhs: &Vector) -> Result<(), FrameError> {
        let sizes = [
            ("row_rhs", rhs.row.len(), self.layout.unknowns()),
            ("border_rhs", rhs.border.len(), self.layout.border()),
        ];
        for (slab, got, expected) in sizes {
            if got != expected {
                return Err(FrameError::Length { slab, got, expected });
            }
        }
        Ok(())
    }
}
