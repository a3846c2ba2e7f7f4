//! The arrow solver: Newton systems with a block-diagonal part and one border.
//!
//! Unknown `z = (t, β)`: n row blocks of d (1..16) and one border of p. With `H = [[D, B], [Bᵀ, C]]`,
//! `solve(b)` is `δ = (H + ridge)⁻¹b`; Newton's method passes `b = −∇φ`.
//!
//! | file | job |
//! |---|---|
//! | `system` · `cross` · `border` · `vector` · `ridge` | the system: slabs, checked once; its product with a vector |
//! | `residual` | how good a step is |
//! | `frame` | built once, asked often; one variant a backend |
//! | `host` · `rows` · `structured` · `condition` | the host's frame: elimination of rows or of a structured border |
//! | `memory` · `telemetry` | what a frame will take, and what a result did take |
//! | [`fixtures`] | the systems of every test and bench |

mod border;
mod condition;
mod cross;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod fixtures;
mod frame;
mod host;
pub mod memory;
mod residual;
mod ridge;
mod rows;
mod structured;
mod system;
mod telemetry;
mod vector;

pub use border::Border;
pub use cross::Cross;
pub use frame::{
    About, Backend, Elimination, Frame, FrameError, Method, Params, Solution, Solutions, build_and_solve,
};
pub use memory::{Budget, MemoryError};
pub use ridge::Ridge;
pub use system::{Block, LARGEST_BLOCK, Rows, SYMMETRY_TOLERANCE, System, SystemError};
pub use telemetry::{Path, Telemetry};
pub use vector::Vector;
