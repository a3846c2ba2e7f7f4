use std::time::Instant;

use crate::device::arena::Arena;
use crate::device::{DeviceError, Telemetry};

/// The steps of a batch, in the order in which they first come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Weights and Grams on their way to the device
    Upload,
    /// Damping, Cholesky factor and inverse of each input
    Context,
    /// Singular vectors that paths start from
    Spectrum,
    /// Rotation towards signs
    Gauge,
    /// Least squares for l, h and g
    Scales,
    RowFlips,
    ColumnSearch,
    /// Rounding and measuring
    Judge,
}

impl Step {
    pub const ALL: [Self; 8] = [
        Self::Upload,
        Self::Context,
        Self::Spectrum,
        Self::Gauge,
        Self::Scales,
        Self::RowFlips,
        Self::ColumnSearch,
        Self::Judge,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Context => "context",
            Self::Spectrum => "spectrum",
            Self::Gauge => "gauge",
            Self::Scales => "scales",
            Self::RowFlips => "row flips",
            Self::ColumnSearch => "column search",
            Self::Judge => "judge",
        }
    }
}

/// Where the time of some batches went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Seconds of each step, in the order of [`Step::ALL`].
    pub seconds: [f64; 8],
    /// Bytes moved and kernels launched.
    pub traffic: Telemetry,
    /// Numbers in the largest arena.
    pub largest_arena: usize,
    pub batches: usize,
}

impl Report {
    pub fn add(&mut self, other: &Self) {
        self.seconds.iter_mut().zip(other.seconds).for_each(|(sum, s)| *sum += s);
        self.traffic = self.traffic + other.traffic;
        self.largest_arena = self.largest_arena.max(other.largest_arena);
        self.batches += other.batches;
    }
}

/// Times steps; at the end of each it waits for the device.
pub struct Clock {
    since: Instant,
    before: Telemetry,
    report: Report,
}

impl Clock {
    pub fn start(numbers: usize, arena: &Arena) -> Self {
        Self {
            since: Instant::now(),
            before: arena.telemetry(),
            report: Report { batches: 1, largest_arena: numbers, ..Report::default() },
        }
    }

    /// What passed since the last call was spent on `step`.
    pub fn lap(&mut self, arena: &mut Arena, step: Step) -> Result<(), DeviceError> {
        arena.finish()?;
        self.report.seconds[step as usize] += self.since.elapsed().as_secs_f64();
        self.since = Instant::now();
        Ok(())
    }

    pub fn finish(mut self, arena: &Arena) -> Report {
        self.report.traffic = arena.telemetry() - self.before;
        self.report
    }
}
