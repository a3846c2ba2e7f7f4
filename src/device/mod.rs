//! Memory: where bytes live, on the heap, in a mapped file, and on disk for good. Knows no algorithm.

mod bytes;
mod durable;

pub use bytes::Bytes;
pub use durable::{sync_folder, write_durably};
