use lapidary::arrow::Backend;
use lapidary::device::{Device, DevicePolicy, select};
use miette::{IntoDiagnostic, Result, miette};

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
        let selection = select(self.device).into_diagnostic()?;
        let (backend, reason) = match selection.device {
            Device::Host => (Backend::Host, selection.reason),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => (Backend::Cuda(cuda.into()), selection.reason),
            #[cfg(feature = "wgpu")]
            Device::Wgpu(_) if self.device == DevicePolicy::Auto => {
                let reason =
                    format!("auto took the host, arrow systems do not run on wgpu ({})", selection.reason);
                (Backend::Host, reason)
            }
            #[cfg(feature = "wgpu")]
            Device::Wgpu(_) => {
                return Err(miette!("arrow systems do not run on wgpu: use auto, host or cuda"));
            }
        };
        if self.device == DevicePolicy::Auto {
            eprintln!("device: {reason}");
        }
        Ok(backend)
    }
}
