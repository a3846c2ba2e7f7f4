//! One op is one stem: the `.rs` file defines it on the host, and states its tolerance where it has one.
//!
//! The decoder's ops: [`matmul`], [`dense_matvec`], [`sign_matvec`], [`rms_norm`], [`rope`], [`attention`], [`swiglu`],
//! [`log_softmax`]. The encoder's: [`syrk`], [`spd_solve`], [`polar`], [`rank_one`], [`row_flips`], [`column_search`].
//! The arrow solver's: [`cholesky`], [`triangular`], [`matvec`]. Random numbers: [`splitmix`].

#[cfg(feature = "cuda")]
pub mod arrow_batch;
#[cfg(feature = "cuda")]
pub mod arrow_border;
#[cfg(feature = "cuda")]
pub mod arrow_solve;
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
#[cfg(feature = "cuda")]
pub mod quadratic_try;
pub mod rank_one;
pub mod rms_norm;
pub mod rope;
#[cfg(feature = "cuda")]
pub mod row_factor;
pub mod row_flips;
pub mod sign_matvec;
#[cfg(feature = "cuda")]
pub mod spd_inverse;
pub mod spd_solve;
pub mod splitmix;
pub mod swiglu;
pub mod syrk;
pub mod triangular;

pub use dtype::Dtype;

/// Every kernel source, with constants as they are used: what a compiler without a card can check.
#[cfg(feature = "cuda")]
pub fn kernel_sources() -> Vec<crate::device::cuda::Source> {
    let rows = [1, 2, 3, 16].into_iter().flat_map(|dim| [row_factor::source(dim), arrow_solve::source(dim)]);
    let batches = (1..=arrow_batch::LARGEST_DIM).map(arrow_batch::source);
    let others = [spd_inverse::source(spd_inverse::LEAF), arrow_border::source(), quadratic_try::source()];
    rows.chain(batches).chain(others).collect()
}
