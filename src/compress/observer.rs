use std::time::Duration;

use super::batch::Report;
use super::journal::Record;
use super::tuning::Tuned;

/// What a run reports as it goes; the command line draws it, tests ignore it.
pub trait Observer: Sync {
    fn event(&self, event: Event<'_>);
}

#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The model begins to write its calibration text: tokens of it.
    BeginText { tokens: usize },
    /// Tokens written since the last such event.
    Wrote { tokens: usize },
    /// The run begins: blocks of the model.
    Begin { layers: usize },
    /// A stage of block `layer` begins.
    Stage { layer: usize, stage: Stage },
    /// A tensor is finished; `took` is `None` where the journal already had it, `moved` the bytes copied to and from a
    /// device for it alone.
    Tensor { name: &'a str, record: &'a Record, took: Option<Duration>, moved: u64 },
    /// Where the time of the device's part of a block went.
    Encoded { layer: usize, report: &'a Report },
    /// Gradients have done what they can, for a block or for the model.
    Tuned { tuned: &'a Tuned },
    /// Something the user should know.
    Warning(&'a str),
    /// The result is being written.
    Writing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Calibration positions through the block, as far as it is packed.
    Calibrate,
    /// Two-stream targets of its weights, on the host.
    Target,
    /// Tensors of the block.
    Encode,
    /// The packed block, or behind the last one the whole model, by gradients.
    Tune,
    /// Calibration positions through the packed block.
    Advance,
}

/// Hears nothing.
pub struct Silent;

impl Observer for Silent {
    fn event(&self, _: Event<'_>) {}
}
