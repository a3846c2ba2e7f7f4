//! Models by their name on huggingface.co: which name is meant, and (feature `hub`) the download into a cache folder.

#[cfg(feature = "hub")]
mod cache;
#[cfg(feature = "hub")]
mod download;
mod error;
mod id;
#[cfg(feature = "hub")]
mod listing;

#[cfg(feature = "hub")]
pub use cache::{HubParams, Progress, fetch};
pub use error::HubError;
pub use id::HubId;
