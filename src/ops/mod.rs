//! One op is one stem: the `.rs` file defines it on the host, and states its tolerance where it has one.
//!
//! The decoder's ops: [`matmul`], [`dense_matvec`], [`sign_matvec`], [`rms_norm`], [`rope`], [`attention`], [`swiglu`],
//! [`log_softmax`]. The encoder's: [`syrk`], [`spd_solve`], [`polar`], [`rank_one`], [`row_flips`], [`column_search`].
//! The arrow solver's: [`cholesky`], [`matvec`].

pub mod attention;
pub mod cholesky;
pub mod column_search;
pub mod dense_matvec;
pub mod dtype;
pub mod exp;
pub mod log_softmax;
pub mod matmul;
pub mod matvec;
pub mod polar;
pub mod rank_one;
pub mod rms_norm;
pub mod rope;
pub mod row_flips;
pub mod sign_matvec;
pub mod spd_solve;
pub mod swiglu;
pub mod syrk;

pub use dtype::Dtype;
