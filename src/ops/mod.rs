//! One op is one stem: the `.rs` file defines it on the host, and states its tolerance where it has one.

pub mod dtype;

pub use dtype::Dtype;
