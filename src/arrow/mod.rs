//! The arrow solver: Newton systems with a block-diagonal part and one border.
//!
//! Unknown `z = (t, β)`: n row blocks of d (1..16) and one border of p. With `H = [[D, B], [Bᵀ, C]]`,
//! `solve(b)` is `δ = (H + ridge)⁻¹b`; Newton's method passes `b = −∇φ`.
//!
//! | file | job |
//! |---|---|
//! | `system` · `blocks` · `cross` · `border` · `vector` · `ridge` | the system: slabs, checked once; its product with a vector |
//! | `residual` | how good a step is |
//! | `frame` | built once, asked often; one variant a backend |
//! | `host` · `rows` · `structured` · `condition` | the host's frame: elimination of rows or of a structured border |
//! | `cuda` | the frame on an NVIDIA card, batches and sweeps there |
//! | `memory` · `telemetry` | what a frame will take, and what a result did take |
//! | `newton` · `ground` · `step` · `quadratic` | the loop, where its vectors live, its trust region, its simplest problem |
//! | `outer` | many gradients over one frame |
//! | `sweep` | many independent fits at once |
//! | `batch` | thousands of small systems at once |
//! | [`bundle`] | bundle adjustment, a problem from outside |
//! | [`mod@file`] | systems on disk |
//! | [`fixtures`] · [`mod@bench`] | the systems of every test and bench; measurements |

mod batch;
pub mod bench;
mod blocks;
mod border;
pub mod bundle;
mod condition;
mod cross;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod file;
pub mod fixtures;
mod frame;
mod ground;
mod host;
pub mod memory;
mod newton;
mod outer;
mod quadratic;
mod residual;
mod ridge;
mod rows;
mod step;
mod structured;
mod sweep;
mod system;
mod telemetry;
mod vector;

pub use batch::{Batch, BatchError, BatchSolution, LARGEST_BORDER, LARGEST_ROW, Status};
pub use blocks::Blocks;
pub use border::Border;
pub use cross::Cross;
pub use frame::{
    About, Backend, Coupling, Elimination, Frame, FrameError, Method, Params, Solution, Solutions,
    build_and_solve,
};
pub use memory::{Budget, MemoryError};
pub use newton::{
    Failure, Linearisation, NewtonError, NewtonParams, Outcome, Problem, Reuse, Stop, Summary, Try, newton,
};
pub use outer::OuterSequence;
pub use quadratic::Quadratic;
pub use ridge::Ridge;
pub use step::Damping;
pub use sweep::{Sweep, sweep};
pub use system::{Block, LARGEST_BLOCK, Rows, SYMMETRY_TOLERANCE, System, SystemError};
pub use telemetry::{Path, Telemetry};
pub use vector::Vector;
