//! The frame on an NVIDIA card: slabs go up once, right-hand sides and steps travel through pinned memory.

mod batch;
mod border;
mod build;
mod core;
mod coupling;
mod lane;
mod layout;
mod operator;
mod pool;
mod quadratic;
mod rows;
mod schur;
mod slabs;
mod solve;
mod wide;

use std::sync::Arc;

use super::frame::{About, Coupling, Elimination, FrameError, Method};
use super::memory::card_frame_bytes;
use super::{Budget, Path, Ridge, System, Vector};
use crate::device::cuda::{Blas, Cuda, Event, Graph, Pinned, Stream};
use crate::device::{DeviceError, Telemetry};

pub use batch::{SmallBatch, SmallBatchError};
pub use lane::Lane;
pub use layout::{Layout, Tuning};
pub use pool::CudaPool;
pub(super) use pool::Leased;
pub(super) use quadratic::OnCard;
pub use slabs::{DeviceSlabs, HostSlabs, Slabs};

use border::BorderFirst;
use core::Core;
use coupling::Products;
use rows::Rows;
use schur::RowsFirst;
use wide::Wide;

/// Everything of `(H + ridge)⁻¹` on one card, with its own stream, handles and buffers; built by [`Self::factor`] as
/// often as wanted without a new allocation.
///
/// | part | numbers | holds |
/// |---|---|---|
/// | slabs | those of the system | what was sent from the host |
/// | rows | Σ d_i² | L_i |
/// | rows first | Σ d_i x pitch | Y |
/// | or border first | Σ d_i x pitch (with shared factors Σ d_i x r); p, or M x M | Z; the border's root |
/// | core | 2 q² | what is left: the border's Schur complement (q = p), or the rows' capacitance (q = Σ d_i) |
pub struct CudaFrame {
    queue: Queue,
    copies: Stream,
    copied: Event,
    layout: Layout,
    tuning: Tuning,
    rows: Rows,
    products: Products,
    core: Core,
    first: First,
    /// What was sent from the host last.
    sent: Option<DeviceSlabs>,
    rhs: Pinned<f64>,
    step: Pinned<f64>,
    /// The solve between two addresses, recorded.
    graph: Option<([u64; 2], Graph)>,
    wide: Option<Wide>,
    about: About,
    /// Whether the last [`Self::factor`] succeeded.
    factored: bool,
}

/// A stream and its handle.
struct Queue {
    stream: Stream,
    blas: Blas,
}

/// What is eliminated first, and how the rest depends on it.
enum First {
    Rows(RowsFirst),
    Border(BorderFirst),
}

impl CudaFrame {
    /// A frame of this shape, not factored yet.
    ///
    /// # Errors
    /// Too little memory (figure and budget, before anything is allocated); whatever the device says.
    pub fn new(cuda: &Cuda, layout: Layout, tuning: Tuning, budget: Budget) -> Result<Self, FrameError> {
        let needed = card_frame_bytes(&layout, tuning);
        let free = cuda.free_memory()?;
        budget.check(needed, &layout.to_string(), || Some(free))?;
        let stream = Stream::new(cuda)?;
        let (copies, blas) = (stream.beside()?, Blas::new(&stream)?);
        let queue = Queue { stream, blas };
        let elimination = layout.elimination();
        let (first, order) = match elimination {
            Elimination::Rows => (First::Rows(RowsFirst::new(&queue, &layout, tuning)?), layout.border()),
            Elimination::Border => (First::Border(BorderFirst::new(&queue, &layout)?), layout.unknowns()),
        };
        let size = layout.unknowns() + layout.border();
        let about = About {
            path: Path::Resident,
            elimination,
            coupling: match layout.keeps_factors() {
                Some(_) => Coupling::Factored,
                None => Coupling::Dense,
            },
            method: Method::ExplicitInverse,
            corrections: 0,
            condition: f64::NAN,
            ridge: Ridge::None,
        };
        Ok(Self {
            copies,
            copied: Event::new(cuda)?,
            rows: Rows::new(&queue, layout.rows())?,
            products: Products::new(cuda)?,
            core: Core::new(&queue, order, tuning)?,
            first,
            sent: None,
            rhs: Pinned::new(cuda, size)?,
            step: Pinned::new(cuda, size)?,
            graph: None,
            wide: None,
            about,
            factored: false,
            queue,
            layout,
            tuning,
        })
    }

    /// A frame of a system, its slabs sent from the host.
    ///
    /// # Errors
    /// As [`Self::new`] and [`Self::factor`].
    pub fn build(
        cuda: &Cuda,
        system: &Arc<System>,
        ridge: Ridge,
        budget: Budget,
    ) -> Result<Self, FrameError> {
        let mut frame = Self::new(cuda, Layout::of(system), Tuning::default(), budget)?;
        frame.factor_system(system, ridge)?;
        Ok(frame)
    }

    /// Factors another system of the same layout in place: the re-upload path, with warm handles and buffers.
    ///
    /// # Errors
    /// As [`Self::factor`].
    pub fn factor_system(&mut self, system: &System, ridge: Ridge) -> Result<(), FrameError> {
        self.factor(Slabs::Host(HostSlabs::of(system)), ridge)
    }

    /// What this frame counted since it was made.
    pub fn telemetry(&self) -> Telemetry {
        self.queue.stream.telemetry()
    }

    /// The choices made by the last [`Self::factor`].
    pub fn about(&self) -> About {
        self.about
    }

    pub fn cuda(&self) -> &Cuda {
        self.queue.stream.cuda()
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// `log det(H + ridge)`, from pivots that are brought down for it. NaN where the last [`Self::factor`] failed or
    /// there was none, or where the card no longer answers.
    pub fn log_det(&self) -> f64 {
        let parts = || -> Result<f64, DeviceError> {
            let border = match &self.first {
                First::Rows(_) => 0.0,
                First::Border(border) => border.log_det(),
            };
            Ok(self.rows.log_det(&self.queue)? + border + self.core.log_det(&self.queue)?)
        };
        if self.factored { parts().unwrap_or(f64::NAN) } else { f64::NAN }
    }

    /// Refuses to answer from a frame that holds no factors.
    fn ready(&self) -> Result<(), FrameError> {
        if self.factored { Ok(()) } else { Err(FrameError::NotFactored) }
    }

    /// Whether the card still answers: an error that loses it shows in every later call.
    fn is_alive(&self) -> bool {
        self.queue.stream.wait().and(self.copies.wait()).is_ok()
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

    /// Addresses of the border behind the rows of one vector.
    fn sides(&self, address: u64) -> (u64, u64) {
        (address, address + (self.layout.unknowns() * size_of::<f64>()) as u64)
    }
}
