//! Row blocks on a device: `L_i = chol(D_i + ridge)`, `Y_i = L_i⁻¹B_i`, and products with `L⁻¹` and `L⁻ᵀ`.
//!
//! The host's definition is [`cholesky_small`](super::cholesky::cholesky_small) and its two triangular solves; the
//! kernels add in the same order, block by block.

use crate::device::cuda::Source;

/// The kernels `factor_rows`, `couple_rows`, `forward_rows`, `backward_rows` for blocks of at most `dim` unknowns.
pub fn source(dim: usize) -> Source {
    let constants = vec![("ROW_DIM", dim as i64)];
    Source { name: "row_factor", prelude: "", text: include_str!("row_factor.cu"), constants }
}
