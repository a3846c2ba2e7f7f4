//! The decoder on a device: weights and activations in one arena, blocks one by one over calibration windows
//! ([`DeviceBlock`]), or whole and resident for many sequences with caches ([`DeviceDecoder`]).
//!
//! Weights are f32 there: dense ones decoded on the host, packed ones multiplied out from their factors on the device.

mod activations;
mod block;
mod decoder;
mod forward;
mod generate;
mod turns;
mod weights;

use super::DecoderError;
use super::config::Config;
use crate::device::DeviceError;
use crate::ops::attention_batch::WIDEST_HEAD;

pub use block::DeviceBlock;
pub use decoder::{DecodeParams, DeviceDecoder};
pub use forward::{DeviceForward, LOGIT_ROWS};
pub use generate::Request;

/// Why a model does not run on a device.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    #[error(transparent)]
    Sample(#[from] super::sample::SampleError),
    #[error(
        "the heads have {head_dim} numbers, the decoder on a device takes at most {WIDEST_HEAD}; the host's takes any"
    )]
    HeadDim { head_dim: usize },
    #[error(
        "{sequences} sequences of {positions} positions are more than the 2^24 places of a cache: use fewer or shorter ones"
    )]
    Places { sequences: usize, positions: usize },
    #[error("prompt {prompt} is empty: give it at least one token")]
    NoPrompt { prompt: usize },
    #[error(
        "the logit of token {token} after position {position} of sequence {sequence} is {value}: \
         look for NaN, infinite or overflowing weights in the model"
    )]
    Logit { sequence: usize, position: usize, token: usize, value: f32 },
}

impl ForwardError {
    /// Whether it is the model that a device does not take, as against too little memory or a device that fails.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::HeadDim { .. })
    }

    /// Whether fewer or shorter sequences may go.
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::Places { .. } | Self::Device(DeviceError::Memory { .. }))
    }
}

/// Whether the kernels take a model.
fn check(config: &Config) -> Result<(), ForwardError> {
    match config.head_dim {
        head_dim if head_dim > WIDEST_HEAD => Err(ForwardError::HeadDim { head_dim }),
        _ => Ok(()),
    }
}
