use std::ops::{Add, AddAssign, Sub};
#[cfg(feature = "cuda")]
use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// What a device was asked to do: a reading of its counters, or the difference of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Telemetry {
    /// Bytes copied or read from the host by the device.
    pub bytes_up: u64,
    /// Bytes copied or written to the host by the device.
    pub bytes_down: u64,
    /// Kernels launched; those of a replayed graph and of cuBLAS and cuSOLVER calls count as one launch a call.
    pub launches: u64,
    /// Factorisations and inversions; those of many small blocks at once count as one.
    pub factorisations: u64,
    /// cuBLAS and cuSOLVER handles created.
    pub handles: u64,
    /// Contexts opened on a card.
    pub contexts: u64,
}

impl AddAssign for Telemetry {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Telemetry {
    type Output = Self;

    /// What was counted since `earlier`.
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

impl Add for Telemetry {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes_up: self.bytes_up + other.bytes_up,
            bytes_down: self.bytes_down + other.bytes_down,
            launches: self.launches + other.launches,
            factorisations: self.factorisations + other.factorisations,
            handles: self.handles + other.handles,
            contexts: self.contexts + other.contexts,
        }
    }
}

/// Running counters of a device, or of some of its streams: what those count, the device counts too.
#[cfg(feature = "cuda")]
#[derive(Debug, Default)]
pub(crate) struct Counters {
    device: Option<Arc<Counters>>,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    launches: AtomicU64,
    factorisations: AtomicU64,
    handles: AtomicU64,
    contexts: AtomicU64,
}

#[cfg(feature = "cuda")]
impl Counters {
    pub fn of(device: Arc<Counters>) -> Self {
        Self { device: Some(device), ..Self::default() }
    }

    pub fn add(&self, seen: Telemetry) {
        for (counter, count) in [
            (&self.bytes_up, seen.bytes_up),
            (&self.bytes_down, seen.bytes_down),
            (&self.launches, seen.launches),
            (&self.factorisations, seen.factorisations),
            (&self.handles, seen.handles),
            (&self.contexts, seen.contexts),
        ] {
            if count > 0 {
                counter.fetch_add(count, Relaxed);
            }
        }
        if let Some(device) = &self.device {
            device.add(seen);
        }
    }

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
