//! Tuning by gradients: what a packed block gives is brought closer to what the original gives.
//!
//! [`Tuner::reconstruct`] minimises `‖block_q(x_q) − block(x)‖²` over the scales of packed layers, over latents whose signs
//! are stored, and over the weights of layers that are still dense; [`Tuner::distill`] minimises the divergence of the
//! packed model's distributions from the original's over all blocks at once. `block` is one block in an arena, forward and backward,
//! `packed` a packed layer as parameters, `optimiser` Adam. It runs on the host and on CUDA.

mod best;
pub mod block;
mod distill;
pub mod flow;
mod head;
mod linear;
mod model;
mod optimiser;
mod packed;
mod plan;
mod reconstruct;
pub mod room;
mod sensitivity;
mod windows;

use crate::device::DeviceError;
use crate::device::arena::Precision;
use crate::model::{Config, LinearName};
use crate::ops::attention_backward::WIDEST_HEAD;

pub use distill::{Distillation, Linears};
pub use linear::Form;
pub use optimiser::{LATENT, Rates};
pub use plan::{Extent, working_set};
pub use reconstruct::{Change, Reconstruction, Trained, TuneReport, Tuner, Verdict};
pub use sensitivity::{Sensitivities, check_sensitivities};
pub use windows::Windows;

/// How a block, or a whole model, is tuned.
///
/// Held-out windows are judged after every pass, and within one at least every 64 steps. Training that two times in a row is
/// no closer than at the start, or further away than at its best by a tenth, goes on from its best at half the rates: where
/// too many signs turn at once a model loses its largest activations, and it does not find them again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TuneParams {
    /// How often every fit window is seen.
    pub passes: usize,
    /// Positions of one step, rounded down to whole windows, at least one.
    pub batch: usize,
    pub rates: Rates,
    /// Of the order of windows.
    pub seed: u64,
    pub weighting: Weighting,
    /// Of the products of training; held-out windows are always judged in f32.
    pub precision: Precision,
}

/// What the error of a position counts in a reconstruction; distillation has its own measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighting {
    /// All the same: loss = `Σ_t ‖y_t − target_t‖² / Σ_t ‖target_t − mean‖²`. Positions with massive activations, such as
    /// the first of a window in many models, may be most of it.
    Uniform,
    /// By its own size: loss = mean over t of `‖y_t − target_t‖² / ‖target_t‖²`, which is what the norm of the next block
    /// lets through.
    Relative,
}

impl Default for TuneParams {
    /// Six passes in steps of 4,096 positions and signs at 1e-3: what the recipe `best` was measured with. Scales at 1e-2 and errors
    /// by the size of their position: on block 1 of SmolLM2-135M at 1 bit, 48 steps of 1,024 positions, the perplexity of
    /// the model behind it fell from 285 to 241; at 3e-3 to 252, at 3e-2 to 227, at 1e-1 to 261; with all errors alike to
    /// 245 at 1e-2 and 270 at 3e-3.
    fn default() -> Self {
        let rates = Rates { scales: Some(1e-2), signs: Some(1e-3), dense: None };
        let (weighting, precision) = (Weighting::Relative, Precision::Tf32);
        Self { passes: 6, batch: 4096, rates, seed: 0, weighting, precision }
    }
}

impl TuneParams {
    /// For blocks that are not packed yet: their weights, by a thousandth of their size a step at first.
    pub fn mitigate() -> Self {
        let rates = Rates { scales: None, signs: None, dense: Some(1e-3) };
        Self { rates, passes: 2, ..Self::default() }
    }

    /// For distilling: five passes, scales at 2e-3 and signs at 7e-4. On SmolLM2-135M at 1 bit, 288 steps of 4,096 positions,
    /// the divergence on held-out windows fell from 1.32 nats to 0.93 with signs at 5e-4 and to 0.92 at 1e-3; at 2e-3 it rose.
    /// Scales alone bring less, at 2e-4 nothing.
    pub fn distill() -> Self {
        let rates = Rates { scales: Some(2e-3), signs: Some(7e-4), dense: None };
        Self { rates, passes: 5, ..Self::default() }
    }
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
        "the heads have {head_dim} numbers, gradients take at most {WIDEST_HEAD}: pack this model with --set output_weights=0 and nothing that tunes"
    )]
    HeadDim { head_dim: usize },
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
    match config.head_dim {
        head_dim if head_dim > WIDEST_HEAD => Err(TuneError::HeadDim { head_dim }),
        _ => Ok(()),
    }
}

/// The forms of a block's layers in words, for messages.
fn forms_in_words(forms: &[Form; 7]) -> String {
    let packed = forms.iter().filter(|form| matches!(form, Form::Packed(_))).count();
    format!("{packed} packed layers, {} dense ones", LinearName::ALL.len() - packed)
}
