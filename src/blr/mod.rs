//! The payload of one packed linear layer: its bytes, the rank rule, and its product with activations.

pub mod apply;
pub mod payload;

pub use payload::{Payload, PayloadError};
