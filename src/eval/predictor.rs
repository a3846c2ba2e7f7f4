use std::ops::Range;

use rayon::prelude::*;

use super::perplexity::EvalError;
use crate::device::Device;
use crate::model::on_device::{DeviceForward, ForwardError};
use crate::model::text::Windows;
use crate::model::{Decoder, NoCapture, Run};
use crate::ops::log_softmax::log_probability;

/// A model and a text, window by window, on the host or on a device.
pub enum Predictor<'a> {
    Host {
        decoder: &'a Decoder,
        /// The last residual stream of the window.
        hidden: Vec<f32>,
    },
    Device {
        forward: Box<DeviceForward>,
        /// The window's first position.
        start: usize,
    },
}

impl<'a> Predictor<'a> {
    pub fn open(device: &Device, decoder: &'a Decoder, windows: &Windows) -> Result<Self, ForwardError> {
        if let Device::Host = device {
            return Ok(Self::Host { decoder, hidden: Vec::new() });
        }
        let forward = DeviceForward::run(device, decoder, windows.tokens(), windows.positions)?;
        Ok(Self::Device { forward: Box::new(forward), start: 0 })
    }

    /// Goes to a window.
    pub fn enter(&mut self, windows: &Windows, index: usize) -> Result<(), EvalError> {
        match self {
            Self::Host { decoder, hidden } => {
                let run = Run::Windows { len: windows.positions };
                *hidden = decoder.hidden(windows.window(index), run, &mut NoCapture)?;
            }
            Self::Device { start, .. } => *start = index * windows.positions,
        }
        Ok(())
    }

    /// Logits after some positions of the window, at most [`LOGIT_ROWS`](crate::model::on_device::LOGIT_ROWS).
    pub fn logits(&mut self, part: Range<usize>) -> Result<Vec<f32>, EvalError> {
        match self {
            Self::Host { decoder, hidden } => Ok(rows(hidden, decoder, part)),
            Self::Device { forward, start } => {
                let logits = forward.logits(*start + part.start, part.len());
                logits.map_err(|error| ForwardError::from(error).into())
            }
        }
    }

    /// Log-probabilities of the tokens `next` that came behind the positions from `first` on, in nats; as many as logits.
    pub fn log_probabilities(&mut self, first: usize, next: &[u32]) -> Result<Vec<f64>, EvalError> {
        match self {
            Self::Host { decoder, hidden } => {
                let logits = rows(hidden, decoder, first..first + next.len());
                let rows = logits.par_chunks_exact(decoder.config().vocab);
                Ok(rows.zip(next).map(|(row, next)| log_probability(row, *next as usize)).collect())
            }
            Self::Device { forward, start } => {
                let found = forward.log_probabilities(*start + first, next).map_err(ForwardError::from)?;
                Ok(found.into_iter().map(f64::from).collect())
            }
        }
    }
}

/// Logits of some positions of a residual stream.
fn rows(hidden: &[f32], decoder: &Decoder, part: Range<usize>) -> Vec<f32> {
    let width = decoder.config().hidden;
    decoder.logits(&hidden[part.start * width..part.end * width])
}
