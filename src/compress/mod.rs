//! Calibration, the encoder, and the pipeline that packs a model.

pub mod context;
pub mod encode;
pub mod factors;
pub mod gauge;
pub mod latents;
pub mod metric;
pub mod refine;
pub mod scales;
