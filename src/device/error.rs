/// What a device can fail at. Nothing in [`device`](crate::device) panics for want of a library, a driver or memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error("{library} was not found: {reason}; {hint}", hint = library_hint())]
    MissingLibrary { library: &'static str, reason: String },
    #[error(
        "the CUDA driver supports version {found}, this program needs {needed}: update the NVIDIA driver"
    )]
    DriverTooOld { found: String, needed: String },
    #[error(
        "{name} has compute capability {found}, the kernels need {needed} (Ampere) or later: run with --device wgpu or host"
    )]
    CardTooOld { name: String, found: String, needed: String },
    #[error("the CUDA driver is installed but reports no card; check nvidia-smi and CUDA_VISIBLE_DEVICES")]
    NoCard,
    #[error(
        "no {wanted} was found through Vulkan, Metal or DX12 (there: {found}): install the card's driver and, on \
         Linux, the Vulkan loader libvulkan.so.1 (or name its folder in LD_LIBRARY_PATH), or run with --device host"
    )]
    NoAdapter { wanted: String, found: String },
    #[error("{call} failed: {code} ({text})")]
    Call { call: &'static str, code: String, text: String },
    #[error(
        "the device was lost in {call}: {code} ({text}); what was on it is gone, start the program again"
    )]
    Lost { call: &'static str, code: String, text: String },
    #[error("kernel {kernel} does not compile for sm_{arch}:\n{log}")]
    Compile { kernel: String, arch: u32, log: String },
    #[error("kernel {kernel} does not compile for {adapter}:\n{log}")]
    Shader { kernel: &'static str, adapter: String, log: String },
    #[error(
        "{what} needs {needed_mib} MiB on the device, {free_mib} MiB are free: use a smaller system or another device"
    )]
    Memory { what: String, needed_mib: u64, free_mib: u64 },
    #[error("{policy} was asked for, but this build has no {policy} support: {hint}")]
    NotBuilt { policy: &'static str, hint: &'static str },
    #[error("unknown device \"{0}\": use auto, host, cuda or wgpu")]
    UnknownPolicy(String),
    #[error("{what} has {got} elements, expected {expected}")]
    Length { what: &'static str, got: usize, expected: usize },
}

impl DeviceError {
    /// Refuses with the figure and the budget, both given in bytes.
    pub fn memory(what: impl Into<String>, needed: u64, free: u64) -> Self {
        Self::Memory { what: what.into(), needed_mib: needed.div_ceil(1 << 20), free_mib: free >> 20 }
    }
}

impl DeviceError {
    /// Why a device is not there, in a few words; other errors as they are.
    pub fn in_short(&self) -> String {
        match self {
            Self::MissingLibrary { library, .. } => format!("{library} was not found"),
            Self::NoCard => "there is no NVIDIA card".into(),
            Self::NoAdapter { .. } => "there is no other graphics card".into(),
            Self::NotBuilt { policy, .. } => format!("{policy} is not built in"),
            error => error.to_string(),
        }
    }
}

fn library_hint() -> &'static str {
    "install it, or name its folder in LD_LIBRARY_PATH or CUDA_HOME, or run with --device host"
}
