use std::str::FromStr;

use super::DeviceError;
#[cfg(feature = "cuda")]
use super::cuda::Cuda;

/// Which device the whole program runs on. A named device is required: it never falls back to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DevicePolicy {
    /// The fastest device that works, chosen by [`select`], which says why.
    #[default]
    Auto,
    Host,
    Cuda,
    Wgpu,
}

/// A device that is ready for work.
#[derive(Clone, Debug)]
pub enum Device {
    Host,
    #[cfg(feature = "cuda")]
    Cuda(Cuda),
}

/// A device and the reason why it was taken, for `auto` to be shown once.
#[derive(Clone, Debug)]
pub struct Selection {
    pub device: Device,
    pub reason: String,
}

/// Opens the device that a policy names.
///
/// `auto` takes a CUDA card where one works and the host otherwise, and says which and why in [`Selection::reason`].
/// Errors: a named device that is missing, with what is missing.
pub fn select(policy: DevicePolicy) -> Result<Selection, DeviceError> {
    match policy {
        DevicePolicy::Host => Ok(Selection { device: Device::Host, reason: "host was asked for".to_owned() }),
        DevicePolicy::Cuda => {
            let device = open_cuda()?;
            let reason = format!("cuda was asked for: {}", device.name());
            Ok(Selection { device, reason })
        }
        DevicePolicy::Wgpu => Err(DeviceError::NotBuilt { policy: "wgpu", hint: "use auto, host or cuda" }),
        DevicePolicy::Auto => Ok(match open_cuda() {
            Ok(device) => {
                let reason = format!("auto took cuda: {} works", device.name());
                Selection { device, reason }
            }
            Err(error) => Selection { device: Device::Host, reason: format!("auto took the host: {error}") },
        }),
    }
}

impl Device {
    pub fn name(&self) -> String {
        match self {
            Device::Host => format!("host, {} threads", rayon::current_num_threads()),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.name().to_owned(),
        }
    }
}

#[cfg(feature = "cuda")]
fn open_cuda() -> Result<Device, DeviceError> {
    Cuda::open(0).map(Device::Cuda)
}

#[cfg(not(feature = "cuda"))]
fn open_cuda() -> Result<Device, DeviceError> {
    Err(DeviceError::NotBuilt { policy: "cuda", hint: "build with the feature cuda" })
}

impl FromStr for DevicePolicy {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self, DeviceError> {
        match name {
            "auto" => Ok(Self::Auto),
            "host" => Ok(Self::Host),
            "cuda" => Ok(Self::Cuda),
            "wgpu" => Ok(Self::Wgpu),
            other => Err(DeviceError::UnknownPolicy(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_others_refused() {
        assert_eq!("auto".parse::<DevicePolicy>().unwrap(), DevicePolicy::Auto);
        assert_eq!("cuda".parse::<DevicePolicy>().unwrap(), DevicePolicy::Cuda);
        assert!("gpu".parse::<DevicePolicy>().unwrap_err().to_string().contains("auto, host, cuda or wgpu"));
    }

    #[test]
    fn the_host_is_always_there_and_auto_gives_its_reason() {
        assert!(matches!(select(DevicePolicy::Host).unwrap().device, Device::Host));
        assert!(select(DevicePolicy::Auto).unwrap().reason.starts_with("auto took"));
    }

    #[test]
    fn a_named_device_never_falls_back() {
        assert!(matches!(select(DevicePolicy::Wgpu), Err(DeviceError::NotBuilt { policy: "wgpu", .. })));
        match select(DevicePolicy::Cuda) {
            Ok(selection) => assert!(!matches!(selection.device, Device::Host)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
