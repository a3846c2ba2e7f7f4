//! Tuning by gradients: what a packed block gives is brought closer to what the original gives.
//!
//! [`Tuner::reconstruct`] minimises `‖block_q(x_q) − block(x)‖²` over the scales of packed layers, over latents whose signs
//! are stored, and over the weights of layers that are still dense; `block` is one block in an arena, forward and backward,
//! `packed` a packed layer as parameters, `optimiser` Adam. It runs on the host and on CUDA.

pub mod block;
pub mod flow;
mod linear;
mod optimiser;
mod packed;
mod plan;
mod reconstruct;

use crate::device::DeviceError;
use crate::device::arena::Precision;
use crate::model::config::Gate;
use crate::model::{Config, LinearName};
use crate::ops::attention_backward::WIDEST_HEAD;

pub use linear::Form;
pub use optimiser::{LATENT, Rates};
pub use plan::{Extent, working_set};
pub use reconstruct::{Change, Reconstruction, TuneReport, Tuner, Verdict};

/// How a block is tuned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TuneParams {
    /// How often every fit window is seen.
    pub passes: usize,
    /// Positions of one step, rounded down to whole windows, at least one.
    pub batch: usize,
    pub rates: Rates,
    /// Of the order of windows.
    pub seed: u64,
    /// Of the products of training; held-out windows are always judged in f32.
    pub precision: Precision,
}

impl Default for TuneParams {
    /// Eight passes in steps of 16,384 positions, scales and signs at 1e-3: what the prototype was measured with.
    fn default() -> Self {
        let rates = Rates { scales: Some(1e-3), signs: Some(1e-3), dense: None };
        Self { passes: 8, batch: 16_384, rates, seed: 0, precision: Precision::Tf32 }
    }
}

/// What a block gets and what it should give: windows of `positions` rows of the residual stream, fit ones first.
#[derive(Clone, Copy, Debug)]
pub struct Windows<'a> {
    /// The stream that enters the packed block.
    pub input: &'a [f32],
    /// The stream that leaves the original block in the original model.
    pub target: &'a [f32],
    pub positions: usize,
    /// Windows that are fitted to; the others are held out.
    pub fit: usize,
}

/// Why a block was not tuned.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(
        "tuning runs on the host or on a CUDA card, not on {device}: choose --device cuda or --device host"
    )]
    NoKernels { device: String },
    #[error(
        "the heads have {head_dim} numbers, tuning takes at most {WIDEST_HEAD}: pack this model without tuning"
    )]
    HeadDim { head_dim: usize },
    #[error("tuning lacks norms behind attention and the gated unit: pack this model without tuning")]
    PostNorms,
    #[error("tuning lacks gated units with GELU: pack this model without tuning")]
    Gelu,
    #[error(
        "the {what} of block {layer} holds {found} numbers, not whole windows of {positions} x {hidden} as many as the input"
    )]
    Windows { what: &'static str, layer: usize, found: usize, positions: usize, hidden: usize },
    #[error(
        "block {layer} has {windows} windows of which {fit} are to be fitted: at least one must be, and one held out"
    )]
    Parts { layer: usize, windows: usize, fit: usize },
    #[error(
        "the {what} of block {layer} is {value} at position {position}: look for NaN or overflow in the model"
    )]
    NonFinite { what: &'static str, layer: usize, position: usize, value: f32 },
    #[error("nothing of block {layer} is trained: give a rate for what it is made of ({forms})")]
    NothingTrained { layer: usize, forms: String },
}

/// What tuning lacks for a model.
fn unsupported(config: &Config) -> Result<(), TuneError> {
    let traits = config.family.traits();
    if config.head_dim > WIDEST_HEAD {
        Err(TuneError::HeadDim { head_dim: config.head_dim })
    } else if traits.post_norms {
        Err(TuneError::PostNorms)
    } else if traits.gate != Gate::Silu {
        Err(TuneError::Gelu)
    } else {
        Ok(())
    }
}

/// The forms of a block's layers in words, for messages.
fn forms_in_words(forms: &[Form; 7]) -> String {
    let packed = forms.iter().filter(|form| matches!(form, Form::Packed(_))).count();
    format!("{packed} packed layers, {} dense ones", LinearName::ALL.len() - packed)
}
