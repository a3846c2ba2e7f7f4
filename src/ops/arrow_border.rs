//! Structured borders and factored couplings on a device: roots of a border, products with factors. The host's
//! definition is `arrow`'s capacitance, whose formulas these kernels follow.

use crate::device::cuda::Source;

/// Shared memory of one block of threads of `root_solve`, in bytes: what every card from Ampere's smallest on has.
const SHARED: usize = 96 << 10;

/// Most basis functions of a Kronecker border whose root is solved with: one column of it fills the shared memory.
pub const LARGEST_BASIS: usize = SHARED / size_of::<f64>();

/// Columns that one block of `root_solve` takes, one a warp where they fit, and its shared memory in bytes.
pub fn root_tile(basis: usize) -> (usize, usize) {
    let width = (LARGEST_BASIS / basis).clamp(1, 8);
    (width, width * basis * size_of::<f64>())
}

/// The kernels `root_solve`, `root_divide`, `diagonal_product`, `row_product`, `expand_coupling`, `block_scale`,
/// `rows_from_parts`, `parts_from_rows`.
pub fn source() -> Source {
    Source { name: "arrow_border", prelude: "", text: include_str!("arrow_border.cu"), constants: Vec::new() }
}
