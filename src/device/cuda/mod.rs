//! NVIDIA cards through their driver, NVRTC, cuBLAS and cuSOLVER. The libraries are found when the program runs.

mod blas;
mod buffer;
mod eigen;
mod graph;
mod kernel;
mod library;
mod solver;
mod stream;

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, c_char, c_int};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys;

use super::telemetry::Counters;
use super::{DeviceError, Telemetry};

pub use blas::{Blas, Matrix, Op, Triangle};
pub use buffer::{Buffer, Pinned, Registered};
pub use eigen::EigenSolver;
pub use graph::Graph;
pub use kernel::{Args, Grid, Kernel, Source, compile, nvrtc_version, prepare};
pub use solver::{EigenScratch, Eigenproblem, Solver, open_libraries};
pub use stream::{Event, Stream};

/// The oldest driver that the bindings know: CUDA 13.0.
const DRIVER_VERSION: c_int = 13_000;

/// One card, opened. Clones share the context, the kernels that were loaded and the counters.
#[derive(Clone)]
pub struct Cuda(Arc<Context>);

struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    name: String,
    driver: String,
    arch: u32,
    multiprocessors: u32,
    counters: Arc<Counters>,
    modules: Mutex<HashMap<String, Arc<kernel::Module>>>,
}

// SAFETY: the driver's handles may be used from every thread; each use binds the context to its thread first.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Cuda {
    /// Opens the card of this number.
    ///
    /// Errors: no driver, a driver that is too old or broken, no such card.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        library::driver()?;
        // SAFETY: the library and its functions are there; all pointers are to live locals.
        unsafe {
            check("cuInit", sys::cuInit(0))?;
            let mut version = 0;
            check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
            if version < DRIVER_VERSION {
                return Err(DeviceError::DriverTooOld {
                    found: dotted(version),
                    needed: dotted(DRIVER_VERSION),
                });
            }
            let mut count = 0;
            check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))?;
            if ordinal as c_int >= count {
                return Err(DeviceError::NoCard);
            }
            let mut device = 0;
            check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal as c_int))?;
            use sys::CUdevice_attribute_enum as Attribute;
            let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
            let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
            let (name, arch) = (device_name(device)?, major * 10 + minor);
            new_enough(&name, arch)?;
            // A host thread that waits spins: waking it up would cost more than a whole solve.
            let spin = sys::CUctx_flags_enum::CU_CTX_SCHED_SPIN as u32;
            check("cuDevicePrimaryCtxSetFlags", sys::cuDevicePrimaryCtxSetFlags_v2(device, spin))?;
            let mut context = std::ptr::null_mut();
            check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
            keep_alive(device)?;
            let cuda = Self(Arc::new(Context {
                device,
                context,
                name,
                driver: dotted(version),
                arch,
                multiprocessors: attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
                counters: Arc::default(),
                modules: Mutex::default(),
            }));
            cuda.0.counters.add(Telemetry { contexts: 1, ..Telemetry::default() });
            cuda.bind()?;
            Ok(cuda)
        }
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The CUDA version that the driver supports.
    pub fn driver(&self) -> &str {
        &self.0.driver
    }

    /// Compute capability times ten: 90 for Hopper.
    pub fn arch(&self) -> u32 {
        self.0.arch
    }

    pub fn multiprocessors(&self) -> u32 {
        self.0.multiprocessors
    }

    /// What all streams of this card counted.
    pub fn telemetry(&self) -> Telemetry {
        self.0.counters.read()
    }

    /// Bytes of device memory that are free now.
    pub fn free_memory(&self) -> Result<u64, DeviceError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: pointers to live locals.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(free as u64)
    }

    /// Makes this card's context the current one of the calling thread.
    fn bind(&self) -> Result<(), DeviceError> {
        // SAFETY: the context lives as long as `self`.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.0.context) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let modules = std::mem::take(&mut *self.modules.lock().unwrap_or_else(|e| e.into_inner()));
        // SAFETY: the context is still there. Modules are unloaded from the current one.
        unsafe { sys::cuCtxSetCurrent(self.context) };
        drop(modules);
        // SAFETY: retained once in `open`; the context itself stays, see `keep_alive`. A failure has nobody left to tell.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cuda({}, sm_{})", self.0.name, self.0.arch)
    }
}

/// Retains a card's context once more, for as long as the process lives: cuBLAS and cuSOLVER keep state of their own in it,
/// which must not be taken from under one thread when another lets go of its last [`Cuda`].
fn keep_alive(device: sys::CUdevice) -> Result<(), DeviceError> {
    static KEPT: Mutex<BTreeSet<sys::CUdevice>> = Mutex::new(BTreeSet::new());
    let mut kept = KEPT.lock().unwrap_or_else(|e| e.into_inner());
    if kept.insert(device) {
        let mut context = std::ptr::null_mut();
        // SAFETY: a pointer to a live local; never released, as said.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
    }
    Ok(())
}

/// The oldest cards that the kernels are written for: those that copy to shared memory on their own and multiply TF32.
const LEAST_ARCH: u32 = 80;

fn new_enough(name: &str, arch: u32) -> Result<(), DeviceError> {
    let dotted = |arch: u32| format!("{}.{}", arch / 10, arch % 10);
    match arch >= LEAST_ARCH {
        true => Ok(()),
        false => Err(DeviceError::CardTooOld {
            name: name.to_owned(),
            found: dotted(arch),
            needed: dotted(LEAST_ARCH),
        }),
    }
}

fn dotted(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<u32, DeviceError> {
    let mut value = 0;
    // SAFETY: a pointer to a live local.
    check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) })?;
    Ok(value as u32)
}

fn device_name(device: sys::CUdevice) -> Result<String, DeviceError> {
    let mut name = [0 as c_char; 256];
    // SAFETY: the driver writes at most 256 bytes and ends them with zero.
    unsafe {
        check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), 256, device))?;
        Ok(CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned())
    }
}

/// An error of the driver as a typed one; those after which a context is dead are [`DeviceError::Lost`].
fn check(call: &'static str, result: sys::CUresult) -> Result<(), DeviceError> {
    use sys::CUresult::*;
    if result == CUDA_SUCCESS {
        return Ok(());
    }
    let (code, text) = (format!("{result:?}"), description(result));
    let lost = matches!(
        result,
        CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_SYSTEM_NOT_READY
    );
    Err(if lost { DeviceError::Lost { call, code, text } } else { DeviceError::Call { call, code, text } })
}

fn description(result: sys::CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver hands out a static string, or leaves the pointer null.
    unsafe {
        sys::cuGetErrorString(result, &mut text);
        if text.is_null() {
            "no description".to_owned()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_before_ampere_are_refused_by_name() {
        assert!(new_enough("NVIDIA A100", 80).is_ok() && new_enough("NVIDIA B200", 100).is_ok());
        let error = new_enough("Tesla T4", 75).unwrap_err().to_string();
        assert!(error.contains("Tesla T4 has compute capability 7.5, the kernels need 8.0"), "{error}");
    }
}
