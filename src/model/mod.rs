//! Checkpoints, tokenizers and the decoder with its capture points.

pub mod block;
pub mod cache;
pub mod capture;
pub mod chat;
pub mod checkpoint;
pub mod config;
pub mod decoder;
pub mod linear;
pub mod on_device;
pub mod sample;
pub mod tensor;
pub mod text;
pub mod tokenizer;

pub use crate::ops::splitmix::SplitMix64;
pub use block::{Block, Context};
pub use cache::{Cache, LayerCache};
pub use capture::{Capture, NoCapture, first_non_finite};
pub use chat::{ChatError, ChatTemplate, Ending, Message, Role};
pub use checkpoint::{Checkpoint, CheckpointError};
pub use config::{Biases, Config, ConfigError, Family, Gate, Sliding, Traits};
pub use decoder::{Decoder, DecoderError, Run};
pub use linear::{Linear, LinearName, Site};
pub use sample::{SampleError, SampleParams, Sampler};
pub use tensor::{RowOrder, Tensor};
pub use tokenizer::{TextStream, Tokenizer, TokenizerError};
