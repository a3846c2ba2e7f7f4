//! Thousands of small arrow systems in one launch, one block of threads each. Formulas, owners and sizes stand in the
//! kernel file.

use crate::device::cuda::Source;

/// Largest row block of a batched system.
pub const LARGEST_DIM: usize = 3;
/// The kernel `solve_batch` for row blocks of exactly `dim` unknowns.
pub fn source(dim: usize) -> Source {
    let constants = vec![("ROW_DIM", dim as i64)];
    Source { name: "arrow_batch", prelude: "", text: include_str!("arrow_batch.cu"), constants }
}
