//! Checkpoints, tokenizers and the decoder with its capture points.

pub mod tensor;

pub use tensor::{RowOrder, Tensor};
