use std::ops::{AddAssign, Sub};

use serde::Serialize;

/// Where a result was computed and what had to travel for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// On this machine's processors.
    Host,
    /// On a device that already held the frame: only the right-hand side and the step travelled.
    Resident,
    /// On a device, system and all sent for this one solve: the baseline that residency is measured against.
    ReUpload,
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Resident => "resident",
            Self::ReUpload => "re-upload",
        })
    }
}

/// What a result cost, counted and never estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Telemetry {
    /// Frames built.
    pub frames: u64,
    /// Solves, one a right-hand side.
    pub solves: u64,
    /// Cholesky factorisations; the row blocks of one frame count as one.
    pub factorisations: u64,
    pub bytes_up: u64,
    pub bytes_down: u64,
    /// Kernels and library calls sent to a device; a replayed graph is one.
    pub launches: u64,
    /// Library handles made (cuBLAS, cuSOLVER).
    pub handles: u64,
    /// Device contexts made.
    pub contexts: u64,
}

impl AddAssign for Telemetry {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.solves += other.solves;
        self.factorisations += other.factorisations;
        self.bytes_up += other.bytes_up;
        self.bytes_down += other.bytes_down;
        self.launches += other.launches;
        self.handles += other.handles;
        self.contexts += other.contexts;
    }
}

impl Sub for Telemetry {
    type Output = Self;

    /// What was counted since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            frames: self.frames - earlier.frames,
            solves: self.solves - earlier.solves,
            factorisations: self.factorisations - earlier.factorisations,
            bytes_up: self.bytes_up - earlier.bytes_up,
            bytes_down: self.bytes_down - earlier.bytes_down,
            launches: self.launches - earlier.launches,
            handles: self.handles - earlier.handles,
            contexts: self.contexts - earlier.contexts,
        }
    }
}
