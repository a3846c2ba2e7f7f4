use serde::{Deserialize, Serialize};

#[cfg(feature = "cuda")]
use crate::device::arena::Program;
#[cfg(feature = "cuda")]
use crate::device::cuda::{open_libraries, prepare};
use crate::device::{Device, DeviceError};
#[cfg(feature = "cuda")]
use crate::ops;

/// Who encodes.
#[derive(Clone, Debug)]
pub enum Encoder {
    /// The definition, in f64 on the host, one tensor a task.
    Reference,
    /// All tensors of a block side by side in f32, on a device or on the host.
    Batch(Device),
}

/// Precision and kind of device, as they are written down: they decide the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EncodedBy {
    #[default]
    F64Host,
    F32Host,
    F32Cuda,
    F32Wgpu,
}

impl Encoder {
    pub fn name(&self) -> EncodedBy {
        match self {
            Self::Reference => EncodedBy::F64Host,
            Self::Batch(device) => EncodedBy::of(device),
        }
    }

    /// Where calibration and tuning are done.
    pub fn device(&self) -> &Device {
        match self {
            Self::Reference => &Device::Host,
            Self::Batch(device) => device,
        }
    }

    /// Gets a card's kernels and libraries ready, all at once: compiling them one by one as they come would take seconds.
    pub(super) fn prepare(&self) -> Result<(), DeviceError> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Batch(Device::Cuda(cuda)) => {
                let mut sources: Vec<_> = ops::programs().into_iter().map(Program::source).collect();
                sources.push(ops::spectrum::source());
                let (kernels, libraries) = rayon::join(|| prepare(cuda, &sources), || open_libraries(cuda));
                kernels.and(libraries)
            }
            _ => Ok(()),
        }
    }
}

impl EncodedBy {
    /// In f32 on this device.
    pub fn of(device: &Device) -> Self {
        match device {
            Device::Host => Self::F32Host,
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => Self::F32Cuda,
            #[cfg(feature = "wgpu")]
            Device::Wgpu(_) => Self::F32Wgpu,
        }
    }
}

impl std::fmt::Display for EncodedBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F64Host => "f64 on the host",
            Self::F32Host => "f32 on the host",
            Self::F32Cuda => "f32 on CUDA",
            Self::F32Wgpu => "f32 on wgpu",
        })
    }
}
