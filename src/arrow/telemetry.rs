use std::ops::AddAssign;

use serde::Serialize;

use crate::device;

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
    /// What the place did for them; on the host, factorisations alone are counted.
    #[serde(flatten)]
    pub counts: device::Telemetry,
}

impl AddAssign for Telemetry {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.solves += other.solves;
        self.counts += other.counts;
    }
}
