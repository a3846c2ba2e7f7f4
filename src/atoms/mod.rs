//! Manifold dictionaries: activations explained by few atoms each, an atom being a typed curve or surface.
//!
//! ```text
//!     x ≈ μ + Σ_(active atoms k) a_k·B_kᵀφ_k(t_k)
//! ```
//!
//! | file | job |
//! |---|---|
//! | [`shape`] | rays, lines, arcs, circles, spheres, tori, patches: bases, derivatives, smoothness |
//! | `space` | the principal components that a fit works in |
//! | `model` | atom, code, dictionary |
//! | `code` | which atoms are on in a row, and where on them it lies |
//! | `problem` | all unknowns of a fit together, as an arrow system |
//! | `regression` | the decoders alone, for fixed codes |
//! | `gauge` | what a fit leaves open |
//! | `refine` | rounds of all these, and the criterion |
//! | `signal` · `density` | the directions that stand out from noise, and what a shell looks like in them |
//! | `search` · `start` · `race` | candidates, first guesses, and which of them is born |
//! | `reshape` | the race between shapes on the rows that an atom has |
//! | `fit` | births to the end, outcome and certificate |
//! | [`measure`] | what a fit is worth on rows that it has not seen |
//! | [`baseline`] | linear dictionaries of the same size |
//! | [`mod@file`] | activations and dictionaries on disk |
//! | [`zoo`] · [`mod@bench`] | planted data, and fits held to it |
//! | [`mod@picture`] | an atom as SVG, in its own plane |
//! | [`wide`] | many atoms of one shape over a linear bulk, on a device |

pub mod baseline;
pub mod bench;
mod code;
mod density;
mod error;
pub mod file;
mod fit;
mod gauge;
pub mod measure;
mod model;
pub mod picture;
mod problem;
mod race;
mod refine;
mod regression;
mod reshape;
mod search;
pub mod shape;
mod signal;
mod space;
mod start;
pub mod wide;
pub mod zoo;

pub use error::AtomsError;
pub use fit::{Certificate, Ending, Fit, FitParams, Outcome, fit};
pub use model::{Active, Atom, Centre, Code, Dictionary};
pub use race::Birth;
pub use refine::Work;
pub use shape::Shape;
pub use space::Space;
