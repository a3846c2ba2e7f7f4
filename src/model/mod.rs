//! Checkpoints, tokenizers and the decoder with its capture points.

pub mod checkpoint;
pub mod config;
pub mod tensor;
pub mod tokenizer;

pub use checkpoint::{Checkpoint, CheckpointError};
pub use config::{Config, ConfigError, Family};
pub use tensor::{RowOrder, Tensor};
pub use tokenizer::{TextStream, Tokenizer, TokenizerError};
