use lapidary::arrow::Backend;
use lapidary::device::{Device, DevicePolicy, Selection, select};
use miette::{IntoDiagnostic, Result, miette};

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
        self.say(&device, &reason);
        Ok(device)
    }

    /// The device itself, where the work fits on it. Where it does not, `auto` takes the host and says so; a named one
    /// is an error.
    pub fn open_for<E>(&self, fits: impl Fn(&Device) -> Result<(), E>) -> Result<Device>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let Selection { device, reason } = select(self.device).into_diagnostic()?;
        let (device, reason) = match fits(&device) {
            Err(error) if self.device == DevicePolicy::Auto => {
                (Device::Host, format!("auto took the host: {error} ({reason})"))
            }
            fits => (device, fits.map(|()| reason).into_diagnostic()?),
        };
        self.say(&device, &reason);
        Ok(device)
    }

    /// The backend of arrow systems, which wgpu does not run: `auto` takes the host then.
    pub fn arrow_backend(&self) -> Result<Backend> {
        if self.device == DevicePolicy::Wgpu {
            return Err(miette!("arrow systems do not run on wgpu: use auto, host or cuda"));
        }
        let Selection { device, reason } = select(self.device).into_diagnostic()?;
        let (backend, reason) = match device {
            Device::Host => (Backend::Host, reason),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => (Backend::Cuda(cuda.into()), reason),
            #[cfg(feature = "wgpu")]
            Device::Wgpu(_) => {
                (Backend::Host, format!("auto took the host, arrow systems do not run on wgpu ({reason})"))
            }
        };
        self.say(&Device::Host, &reason);
        Ok(backend)
    }

    fn say(&self, device: &Device, reason: &str) {
        if self.device == DevicePolicy::Auto {
            eprintln!("device: {reason}");
        }
        #[cfg(feature = "wgpu")]
        if let Device::Wgpu(wgpu) = device
            && wgpu.is_software()
        {
            eprintln!("device: {} is software on this processor, and slower than --device host", wgpu.name());
        }
        #[cfg(not(feature = "wgpu"))]
        let _ = device;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapidary::device::DeviceError;

    #[test]
    fn auto_alone_takes_the_host_where_the_work_does_not_fit() {
        let refused = |_: &Device| Err(DeviceError::memory("a tensor", 2 << 20, 1 << 20));
        let args = |device| DeviceArgs { device };
        assert!(matches!(args(DevicePolicy::Auto).open_for(refused).unwrap(), Device::Host));
        let error = args(DevicePolicy::Host).open_for(refused).unwrap_err().to_string();
        assert!(error.contains("a tensor needs 2 MiB"), "{error}");
    }
}
