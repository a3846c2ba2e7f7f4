use lapidary::arrow::Backend;
use lapidary::device::{Device, DevicePolicy, select};
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
        let policy = match self {
            Self::Auto => DevicePolicy::Auto,
            Self::Host => DevicePolicy::Host,
            Self::Cuda => DevicePolicy::Cuda,
        };
        let selection = select(policy).map_err(|error| miette!("{error}"))?;
        if self == Self::Auto {
            eprintln!("device: {}", selection.reason);
        }
        Ok(match selection.device {
            Device::Host => Backend::Host,
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => Backend::Cuda(cuda.into()),
        })
    }
}
