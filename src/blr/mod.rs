//! The payload of one packed linear layer: its bytes, the rank rule, and its product with activations.

pub mod apply;
pub mod payload;
pub mod rank;
mod scaled;

pub use payload::{PathParts, Payload, PayloadError};
pub use rank::{Budget, Clipped, Rank, rank_for};
