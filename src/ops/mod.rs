//! One op is one stem: the `.rs` file defines it on the host, and states its tolerance where it has one.

pub mod attention;
pub mod dense_matvec;
pub mod dtype;
pub mod exp;
pub mod log_softmax;
pub mod matmul;
pub mod rms_norm;
pub mod rope;
pub mod sign_matvec;
pub mod swiglu;

pub use dtype::Dtype;
