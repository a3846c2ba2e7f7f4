#[cfg(feature = "cuda")]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a device was asked to do: a reading of its counters, or the difference of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Telemetry {
    /// Bytes copied or read from the host by the device.
    pub bytes_up: u64,
    /// Bytes copied or written to the host by the device.
    pub bytes_down: u64,
    /// Kernels launched; those of a replayed graph and of cuBLAS and cuSOLVER calls count as one launch a call.
    pub launches: u64,
    /// Factorisations or inversions of a border.
    pub factorisations: u64,
    /// cuBLAS and cuSOLVER handles created.
    pub handles: u64,
    /// Contexts opened on a card.
    pub contexts: u64,
}

impl std::ops::Sub for Telemetry {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            bytes_up: self.bytes_up - earlier.bytes_up,
            bytes_down: self.bytes_down - earlier.bytes_down,
            launches: self.launches - earlier.launches,
            factorisations: self.factorisations - earlier.factorisations,
            handles: self.handles - earlier.handles,
            contexts: self.contexts - earlier.contexts,
        }
    }
}

/// The running counters of one device, shared by its streams.
#[cfg(feature = "cuda")]
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub bytes_up: AtomicU64,
    pub bytes_down: AtomicU64,
    pub launches: AtomicU64,
    pub factorisations: AtomicU64,
    pub handles: AtomicU64,
    pub contexts: AtomicU64,
}

#[cfg(feature = "cuda")]
impl Counters {
    pub fn read(&self) -> Telemetry {
        Telemetry {
            bytes_up: self.bytes_up.load(Relaxed),
            bytes_down: self.bytes_down.load(Relaxed),
            launches: self.launches.load(Relaxed),
            factorisations: self.factorisations.load(Relaxed),
            handles: self.handles.load(Relaxed),
            contexts: self.contexts.load(Relaxed),
        }
    }
}
