use lapidary::arrow::Backend;
use lapidary::device::{Device, DevicePolicy, select};
use miette::{IntoDiagnostic, Result};

/// Where the work is done.
#[derive(clap::Args)]
pub struct DeviceArgs {
    /// auto (the fastest that is there; says once which and why), host, cuda or wgpu; a named one never falls back
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DevicePolicy,
}

impl DeviceArgs {
    /// The device itself; `auto` says once which it took and why.
    pub fn open(&self) -> Result<Device> {
        let selection = select(self.device).into_diagnostic()?;
        if self.device == DevicePolicy::Auto {
            eprintln!("device: {}", selection.reason);
        }
        Ok(selection.device)
    }

    /// The backend of arrow systems.
    pub fn arrow_backend(&self) -> Result<Backend> {
        Ok(match self.open()? {
            Device::Host => Backend::Host,
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => Backend::Cuda(cuda.into()),
        })
    }
}
