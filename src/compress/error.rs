use std::path::PathBuf;

use super::fit::FitError;
use super::journal::JournalError;
use super::output::OutputError;
use super::plan::PlanError;
use super::recipe::RecipeError;
use super::streams::ActivationError;
use super::tune::TuneError;
use crate::device::DeviceError;
use crate::model::on_device::ForwardError;
use crate::model::text::TextError;
use crate::model::{CheckpointError, DecoderError};

/// Why a model was not packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("{0} exists already; choose another output folder or remove it")]
    OutputExists(PathBuf),
    #[error("{path}: the model is packed already ({tensor}.blr); pack the original instead")]
    AlreadyPacked { path: PathBuf, tensor: String },
    #[error(
        "the plan packs some layers of block {layer} and keeps others dense: weights that make up for earlier blocks \
         (mitigate) need blocks that are packed whole, or set mitigate.passes to 0"
    )]
    Mitigate { layer: usize },
    #[error(
        "no tensor could be measured at two budgets ({tensors} tried), so there is nothing to allocate by: leave \
         --allocate out, or give other bits or another device"
    )]
    NoResponse { tensors: usize },
    #[error("the recipe {0} fits to calibration text: give it one, or let the model write it")]
    NoText(String),
    #[error(
        "what bits are worth is measured on calibration text: name one (--text FILE), let the model write it (--text self), \
         or leave --allocate out"
    )]
    NoTextToMeasure,
    #[error(
        "what outputs count is found from how likely the next token is, and a window of {window} has none: give windows \
         of at least 2 tokens (--window), or leave it out (--set output_weights=0)"
    )]
    NoNextToken { window: usize },
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    #[error(transparent)]
    Activation(#[from] ActivationError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Fit(#[from] FitError),
    #[error(transparent)]
    Forward(Box<ForwardError>),
    #[error(transparent)]
    Tune(Box<TuneError>),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl From<TuneError> for PackError {
    fn from(error: TuneError) -> Self {
        Self::Tune(Box::new(error))
    }
}

impl From<ForwardError> for PackError {
    fn from(error: ForwardError) -> Self {
        Self::Forward(Box::new(error))
    }
}
