use std::str::FromStr;

use super::DeviceError;
#[cfg(feature = "cuda")]
use super::cuda::Cuda;
#[cfg(feature = "wgpu")]
use super::wgpu::{Adapters, Wgpu};

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
    #[cfg(feature = "wgpu")]
    Wgpu(Wgpu),
}

/// A device and the reason why it was taken, for `auto` to be shown once.
#[derive(Clone, Debug)]
pub struct Selection {
    pub device: Device,
    pub reason: String,
}

/// Opens the device that a policy names.
///
/// `auto` takes a CUDA card where one works, else a card that wgpu reaches, else the host, and says which and why in
/// [`Selection::reason`]. A software adapter of wgpu is only taken where wgpu is named.
/// Errors: a named device that is missing, with what is missing.
pub fn select(policy: DevicePolicy) -> Result<Selection, DeviceError> {
    match policy {
        DevicePolicy::Host => Ok(Selection { device: Device::Host, reason: "host was asked for".to_owned() }),
        DevicePolicy::Cuda => {
            let device = open_cuda()?;
            let reason = format!("cuda was asked for: {}", device.name());
            Ok(Selection { device, reason })
        }
        DevicePolicy::Wgpu => {
            let device = open_wgpu(Adapters::Any)?;
            let reason = format!("wgpu was asked for: {}", device.name());
            Ok(Selection { device, reason })
        }
        DevicePolicy::Auto => Ok(fastest()),
    }
}

fn fastest() -> Selection {
    let cuda = match open_cuda() {
        Ok(device) => {
            let reason = format!("auto took cuda: {} works", device.name());
            return Selection { device, reason };
        }
        Err(error) => error,
    };
    match open_wgpu(Adapters::Hardware) {
        Ok(device) => {
            let reason = format!("auto took wgpu: {} works; {}", device.name(), cuda.in_short());
            Selection { device, reason }
        }
        Err(error) => {
            let device = Device::Host;
            let name = device.name();
            let (cuda, wgpu) = (cuda.in_short(), error.in_short());
            let reason = format!("auto took the {name}: {cuda}, {wgpu} (--device cuda and wgpu say more)");
            Selection { device, reason }
        }
    }
}

impl Device {
    pub fn name(&self) -> String {
        match self {
            Device::Host => format!("host, {} threads", rayon::current_num_threads()),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.name().to_owned(),
            #[cfg(feature = "wgpu")]
            Device::Wgpu(wgpu) => format!("{} ({})", wgpu.name(), wgpu.driver()),
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

#[cfg(feature = "wgpu")]
fn open_wgpu(adapters: Adapters) -> Result<Device, DeviceError> {
    Wgpu::open(adapters).map(Device::Wgpu)
}

/// What [`open_wgpu`] takes where it is not built.
#[cfg(not(feature = "wgpu"))]
enum Adapters {
    Hardware,
    Any,
}

#[cfg(not(feature = "wgpu"))]
fn open_wgpu(_: Adapters) -> Result<Device, DeviceError> {
    Err(DeviceError::NotBuilt { policy: "wgpu", hint: "build with the feature wgpu" })
}

impl std::fmt::Display for DevicePolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Host => "host",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
        })
    }
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
        for policy in [DevicePolicy::Cuda, DevicePolicy::Wgpu] {
            match select(policy) {
                Ok(selection) => assert!(!matches!(selection.device, Device::Host)),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
}
