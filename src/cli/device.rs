use lapidary::arrow::Backend;
use miette::{Result, miette};

/// Where the work is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceChoice {
    /// The fastest device that is there; says once which and why
    #[default]
    Auto,
    /// This machine's processors
    Host,
    /// An NVIDIA card; fails without one
    Cuda,
}

impl DeviceChoice {
    /// The backend of arrow systems. A named device never falls back to another.
    pub fn arrow_backend(self) -> Result<Backend> {
        match self {
            Self::Auto => {
                eprintln!("device: host (this build has no other)");
                Ok(Backend::Host)
            }
            Self::Host => Ok(Backend::Host),
            Self::Cuda => Err(miette!("this build has no CUDA device; use --device host or auto")),
        }
    }
}
