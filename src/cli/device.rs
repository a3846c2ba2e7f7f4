use lapidary::arrow::Backend;
use lapidary::device::{Device, DevicePolicy, Selection, select};
#[cfg(feature = "wgpu")]
use miette::miette;
use miette::{IntoDiagnostic, Result};

/// Where the work is done.
#[derive(clap::Args)]
pub struct DeviceArgs {
    /// auto (the fastest that is there; says once which and why), host, cuda or wgpu; a named one never falls back
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DevicePolicy,
}

impl DeviceArgs {
    /// What was asked for, as it was written.
    pub fn name(&self) -> String {
        self.device.to_string()
    }

    /// The device itself; `auto` says once which it took and why.
    pub fn open(&self) -> Result<Device> {
        let Selection { device, reason } = select(self.device).into_diagnostic()?;
        self.say(&reason);
        Ok(device)
    }

    /// The backend of arrow systems, which wgpu does not run: `auto` takes the host then.
    pub fn arrow_backend(&self) -> Result<Backend> {
        let Selection { device, reason } = select(self.device).into_diagnostic()?;
        let (backend, reason) = match device {
            Device::Host => (Backend::Host, reason),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => (Backend::Cuda(cuda.into()), reason),
            #[cfg(feature = "wgpu")]
            Device::Wgpu(_) if self.device == DevicePolicy::Auto => {
                (Backend::Host, format!("auto took the host, arrow systems do not run on wgpu ({reason})"))
            }
            #[cfg(feature = "wgpu")]
            Device::Wgpu(_) => {
                return Err(miette!("arrow systems do not run on wgpu: use auto, host or cuda"));
            }
        };
        self.say(&reason);
        Ok(backend)
    }

    fn say(&self, reason: &str) {
        if self.device == DevicePolicy::Auto {
            eprintln!("device: {reason}");
        }
    }
}
