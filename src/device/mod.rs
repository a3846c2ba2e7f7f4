//! Memory: where bytes live. Knows no algorithm.

mod bytes;

pub use bytes::Bytes;
