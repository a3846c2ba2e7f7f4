use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{CudaFrame, Layout, Tuning};
use crate::arrow::frame::FrameError;
use crate::arrow::memory::card_frame_bytes;
use crate::arrow::{Budget, Ridge, System};
use crate::device::cuda::Cuda;
use crate::device::{DeviceError, Telemetry};

/// Most frames that are kept idle: as many as lanes pay on one card.
const MOST_IDLE: usize = 8;

/// A card and the frames on it that nobody uses now. They keep their streams, handles and buffers warm for the next
/// system of their shape: a Newton loop or a sweep allocates once. Clones share the frames.
#[derive(Clone)]
pub struct CudaPool {
    cuda: Cuda,
    idle: Arc<Mutex<Vec<CudaFrame>>>,
}

/// A frame on loan; it goes back to its pool when dropped, unless its card was lost.
pub(in crate::arrow) struct Leased {
    frame: ManuallyDrop<CudaFrame>,
    pool: CudaPool,
    built: Telemetry,
}

impl CudaPool {
    pub fn new(cuda: Cuda) -> Self {
        Self { cuda, idle: Arc::default() }
    }

    pub fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    /// A factored frame of a system, its slabs sent from the host.
    pub(in crate::arrow) fn build(
        &self,
        system: &System,
        ridge: Ridge,
        budget: Budget,
    ) -> Result<Leased, FrameError> {
        self.lease(&Layout::of(system), budget, 0, |frame| frame.factor_system(system, ridge))
    }

    /// A frame of this layout, once `begin` has done its work with it. `beside`: bytes that the caller takes as well.
    pub(super) fn lease(
        &self,
        layout: &Layout,
        budget: Budget,
        beside: u64,
        begin: impl Fn(&mut CudaFrame) -> Result<(), FrameError>,
    ) -> Result<Leased, FrameError> {
        let lease = |frame, before| {
            let frame = ManuallyDrop::new(frame);
            let mut leased = Leased { frame, pool: self.clone(), built: Telemetry::default() };
            begin(&mut leased.frame)?;
            leased.built = leased.frame.telemetry() - before;
            Ok(leased)
        };
        if let Some(frame) = self.take(layout, budget, beside)? {
            let before = frame.telemetry();
            return lease(frame, before);
        }
        let make = || {
            let needed = card_frame_bytes(layout, Tuning::default()) + beside;
            let free = self.cuda.free_memory()?;
            budget.check(needed, &layout.to_string(), || Some(free))?;
            let frame = CudaFrame::new(&self.cuda, layout.clone(), Tuning::default(), Budget::Unlimited)?;
            lease(frame, Telemetry::default())
        };
        match make() {
            // Idle frames give way where memory is short.
            Err(FrameError::Memory(_) | FrameError::Device(DeviceError::Memory { .. }))
                if !self.frames().is_empty() =>
            {
                self.frames().clear();
                make()
            }
            made => made,
        }
    }

    /// An idle frame of this layout, where the budget allows one: what it holds itself counts as free.
    fn take(&self, layout: &Layout, budget: Budget, beside: u64) -> Result<Option<CudaFrame>, FrameError> {
        let mut idle = self.frames();
        let Some(at) = idle.iter().position(|frame| frame.layout() == layout) else { return Ok(None) };
        let own = card_frame_bytes(layout, Tuning::default());
        // The card is asked only where there is more to place than the frame itself.
        let free = if beside > 0 { self.cuda.free_memory()? } else { 0 };
        budget.check(own + beside, &layout.to_string(), || Some(own + free))?;
        Ok(Some(idle.swap_remove(at)))
    }

    fn frames(&self) -> MutexGuard<'_, Vec<CudaFrame>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Cuda> for CudaPool {
    fn from(cuda: Cuda) -> Self {
        Self::new(cuda)
    }
}

impl std::fmt::Debug for CudaPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaPool({:?}, {} idle)", self.cuda, self.frames().len())
    }
}

impl Leased {
    /// What building this frame counted.
    pub fn built(&self) -> Telemetry {
        self.built
    }
}

impl std::ops::Deref for Leased {
    type Target = CudaFrame;

    fn deref(&self) -> &CudaFrame {
        &self.frame
    }
}

impl std::ops::DerefMut for Leased {
    fn deref_mut(&mut self) -> &mut CudaFrame {
        &mut self.frame
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nobody sees `self` afterwards.
        let frame = unsafe { ManuallyDrop::take(&mut self.frame) };
        let alive = frame.is_alive();
        let mut idle = self.pool.frames();
        if !alive {
            // With the card, all frames on it are gone.
            idle.clear();
        } else if idle.len() < MOST_IDLE {
            idle.push(frame);
        }
    }
}
