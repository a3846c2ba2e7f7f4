use std::path::PathBuf;

use crate::atoms::AtomsError;
use crate::model::{DecoderError, TokenizerError};

/// Why activations cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    #[error("{file}: {what}")]
    Words { file: PathBuf, what: String },
    #[error("the sentence \"{sentence}\" has no tokens")]
    NoTokens { sentence: String },
    #[error("the model has {layers} blocks; --layer counts them from 1, {got} is none of them")]
    Layer { got: usize, layers: usize },
    #[error(transparent)]
    Atoms(#[from] AtomsError),
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}
