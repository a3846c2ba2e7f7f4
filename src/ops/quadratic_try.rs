//! One try of Newton's method on a quadratic, its vectors on a device: the host gets nine numbers to decide by. The
//! host's definition is the loop of `arrow` over its `Quadratic`.

use crate::device::cuda::Source;

/// Threads of the one block of `survey`.
pub const THREADS: usize = 1024;

/// Numbers that `survey` writes.
pub const SCALARS: usize = 9;

/// The kernels `take_step`, `survey`.
pub fn source() -> Source {
    let constants = vec![("THREADS", THREADS as i64)];
    Source { name: "quadratic_try", prelude: "", text: include_str!("quadratic_try.cu"), constants }
}
