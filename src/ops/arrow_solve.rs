//! The resident solve of an arrow system on a device: rows forward, border, rows back. The formulas stand in the
//! kernel file; the host's definition is the host frame of `arrow`, which these kernels follow.

use super::spd_inverse::TILE;
use crate::device::cuda::Source;

/// Most rows that one block of threads sums over.
pub const CHUNK_ROWS: usize = 256;

/// The kernels `reduce_rows`, `sum_parts`, `multiply_half`, `sum_tiles`, `back_substitute` for row blocks of at most
/// `dim` unknowns.
pub fn source(dim: usize) -> Source {
    let constants = vec![("ROW_DIM", dim as i64), ("TILE", TILE as i64), ("CHUNK_ROWS", CHUNK_ROWS as i64)];
    Source { name: "arrow_solve", prelude: "", text: include_str!("arrow_solve.cu"), constants }
}
