//! Devices: where bytes live and where work runs. Knows no algorithm.
//!
//! The host is always there; [`cuda`] finds NVIDIA's libraries and [`wgpu`] a Vulkan, Metal or DX12 driver when the
//! program runs, and what is missing is a typed [`DeviceError`]. [`select`] opens the one device that a [`DevicePolicy`] names.

pub mod arena;
mod bytes;
#[cfg(feature = "cuda")]
pub mod cuda;
mod durable;
mod error;
mod policy;
mod telemetry;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use bytes::Bytes;
pub use durable::{sync_folder, write_durably, write_whole};
pub use error::DeviceError;
pub use policy::{Device, DevicePolicy, Selection, select};
pub use telemetry::Telemetry;
