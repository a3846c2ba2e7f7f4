//! Calibration, the encoder, and the pipeline that packs a model.
//!
//! The encoder, in the order of its steps: [`context`], [`latents`], [`gauge`], [`scales`] (over [`factors`] and
//! [`metric`]), [`refine`], put together by [`encode`]; [`round`] makes the payload and [`tensor`] does all of it for
//! one tensor. [`batch`] does all of it for many tensors at once on a device, cut into what fits by [`schedule`];
//! [`fit`] says beforehand whether that goes. The pipeline: [`plan`] and [`recipe`] say what is wanted, [`calibration`]
//! and [`self_written`] which text, [`streams`] and [`gram`] what the layers see of it ([`device_calibration`] on a
//! device), [`target`] what they should give and [`output_weights`] how much each output counts; [`pipeline`] goes block by block, [`tune`] brings a
//! packed block closer to the original by gradients; [`journal`] keeps what is finished,
//! [`output`] writes the folder with its [`packing`] report, [`verify`] checks one.

pub mod allocate;
pub mod batch;
pub mod bench;
mod block;
pub mod calibration;
pub mod compare;
pub mod context;
pub mod device_calibration;
pub mod encode;
pub mod encoder;
mod error;
pub mod factors;
pub mod fit;
pub mod gauge;
mod gradients;
pub mod gram;
pub mod journal;
pub mod latents;
pub mod metric;
pub mod observer;
pub mod output;
pub mod output_weights;
pub mod packing;
pub mod pipeline;
pub mod plan;
pub mod recipe;
pub mod refine;
pub mod round;
pub mod scales;
pub mod schedule;
pub mod self_written;
mod stream;
pub mod streams;
pub mod sweep;
pub mod target;
pub mod tensor;
mod threads;
pub mod tune;
pub mod tuning;
pub mod verify;

pub use encoder::Encoder;
pub use error::PackError;
pub use pipeline::{PackParams, check, pack};
