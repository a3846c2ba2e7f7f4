//! One op is one stem: the `.rs` file defines it on the host, and states its tolerance where it has one.

pub mod column_search;
pub mod dtype;
pub mod polar;
pub mod rank_one;
pub mod row_flips;
pub mod spd_solve;
pub mod syrk;

pub use dtype::Dtype;
