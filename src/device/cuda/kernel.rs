use std::ffi::{CStr, CString, c_int, c_void};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys;
use cudarc::nvrtc::sys as nvrtc;
use sha2::{Digest, Sha256};

use super::stream::outside_captures;
use super::{Cuda, Stream, check, library};
use crate::device::{DeviceError, Telemetry, write_durably};

/// The text of a `.cu` file and what stands before it: constants, declared once, in Rust, and a prelude that several
/// files share.
#[derive(Clone, Debug)]
pub struct Source {
    pub name: &'static str,
    pub prelude: &'static str,
    pub text: &'static str,
    pub constants: Vec<(&'static str, i64)>,
}

impl Source {
    /// What the compiler reads.
    pub fn program(&self) -> String {
        let mut program = String::new();
        for (name, value) in &self.constants {
            // Writing to a string cannot fail.
            let _ = writeln!(program, "constexpr int {name} = {value};");
        }
        program + self.prelude + self.text
    }
}

/// A loaded module: machine code for one card.
pub(super) struct Module(sys::CUmodule);

// SAFETY: a module may be used from every thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once.
        outside_captures(|| unsafe { sys::cuModuleUnload(self.0) });
    }
}

/// One function of a kernel source, ready to launch.
#[derive(Clone)]
pub struct Kernel {
    function: sys::CUfunction,
    shared: u32,
    _module: Arc<Module>,
}

// SAFETY: a function may be launched from every thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Blocks in the grid (x, y) and threads in a block.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    pub blocks: (usize, usize),
    pub threads: usize,
}

impl Kernel {
    /// Compiles `source` for this card, or takes it from the cache on disk, and finds `function` in it.
    /// `shared` is its dynamic shared memory in bytes.
    pub fn new(cuda: &Cuda, source: &Source, function: &str, shared: usize) -> Result<Self, DeviceError> {
        let module = module(cuda, source)?;
        let name = CString::new(function).unwrap_or_default();
        let mut raw = std::ptr::null_mut();
        // SAFETY: module and name are alive; a pointer to a live local.
        unsafe {
            outside_captures(|| {
                check("cuModuleGetFunction", sys::cuModuleGetFunction(&mut raw, module.0, name.as_ptr()))?;
                allow_shared(raw, shared as c_int)
            })?;
        }
        Ok(Self { function: raw, shared: shared as u32, _module: module })
    }

    /// Queues the kernel.
    ///
    /// # Safety
    /// The arguments match the kernel's parameters, and everything they point to outlives the kernel's run.
    pub unsafe fn launch(&self, stream: &Stream, grid: Grid, args: &mut Args) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise, handed on.
        unsafe { self.queue(stream, grid, args, &mut []) }
    }

    /// Queues the kernel so that it may start while the one before it on the stream still runs. It must itself wait
    /// for that one (`griddepcontrol.wait`) before it touches anything that the other writes. Cards before Hopper run
    /// the two one after another.
    ///
    /// # Safety
    /// As for [`Self::launch`].
    pub unsafe fn launch_chained(
        &self,
        stream: &Stream,
        grid: Grid,
        args: &mut Args,
    ) -> Result<(), DeviceError> {
        let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        // SAFETY: plain data, for which zeros are valid.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = id;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let chained = stream.cuda().arch() >= 90;
        let attributes = std::slice::from_mut(&mut attribute);
        // SAFETY: the caller's promise, handed on.
        unsafe { self.queue(stream, grid, args, if chained { attributes } else { &mut [] }) }
    }

    /// # Safety
    /// As for [`Self::launch`].
    unsafe fn queue(
        &self,
        stream: &Stream,
        grid: Grid,
        args: &mut Args,
        attributes: &mut [sys::CUlaunchAttribute],
    ) -> Result<(), DeviceError> {
        stream.cuda().bind()?;
        stream.count(Telemetry { launches: 1, ..Telemetry::default() });
        let mut slots: [*mut c_void; Args::MOST] = [std::ptr::null_mut(); Args::MOST];
        for (slot, value) in slots.iter_mut().zip(&mut args.values) {
            *slot = std::ptr::from_mut(value).cast();
        }
        let config = sys::CUlaunchConfig {
            gridDimX: grid.blocks.0 as u32,
            gridDimY: grid.blocks.1 as u32,
            gridDimZ: 1,
            blockDimX: grid.threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: stream.raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the caller vouches for the arguments; config and slots live through the call, which copies them.
        check("cuLaunchKernelEx", unsafe {
            sys::cuLaunchKernelEx(&config, self.function, slots.as_mut_ptr(), std::ptr::null_mut())
        })
    }
}

/// Raises the most dynamic shared memory that a function may ask for. All kernels of one function share that limit, so
/// it never falls.
///
/// # Safety
/// The function is alive.
unsafe fn allow_shared(function: sys::CUfunction, bytes: c_int) -> Result<(), DeviceError> {
    static LIMITS: Mutex<()> = Mutex::new(());
    let _one_at_a_time = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let mut now = 0;
    // SAFETY: the caller's promise; a pointer to a live local.
    unsafe {
        check("cuFuncGetAttribute", sys::cuFuncGetAttribute(&mut now, limit, function))?;
        if bytes <= now {
            return Ok(());
        }
        check("cuFuncSetAttribute", sys::cuFuncSetAttribute(function, limit, bytes))
    }
}

/// Arguments of a launch, in the order of the kernel's parameters.
#[derive(Clone, Debug, Default)]
pub struct Args {
    values: [u64; Args::MOST],
    len: usize,
}

impl Args {
    /// The most parameters that a kernel of this program takes.
    const MOST: usize = 16;

    pub fn new() -> Self {
        Self::default()
    }

    /// A pointer on the device, or into pinned memory.
    pub fn pointer(self, address: u64) -> Self {
        self.push(address)
    }

    /// An `int`.
    pub fn int(self, value: usize) -> Self {
        self.push(value as u32 as u64)
    }

    /// A `double`.
    pub fn double(self, value: f64) -> Self {
        self.push(value.to_bits())
    }

    fn push(mut self, bits: u64) -> Self {
        assert!(self.len < Self::MOST, "a kernel takes at most {} arguments", Self::MOST);
        self.values[self.len] = bits;
        self.len += 1;
        self
    }
}

/// Version of the NVRTC library, as (major, minor). Needs no card.
pub fn nvrtc_version() -> Result<(i32, i32), DeviceError> {
    library::nvrtc()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there; pointers to live locals.
    unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) };
    Ok((major, minor))
}

/// Machine code (CUBIN) of a source for compute capability `arch` / 10. Needs NVRTC, but no card.
///
/// Errors: no NVRTC; the compiler's log.
pub fn compile(source: &Source, arch: u32) -> Result<Vec<u8>, DeviceError> {
    library::nvrtc()?;
    let failed = |log: String| DeviceError::Compile { kernel: source.name.to_owned(), arch, log };
    let text = CString::new(source.program()).map_err(|e| failed(e.to_string()))?;
    let name = CString::new(format!("{}.cu", source.name)).map_err(|e| failed(e.to_string()))?;
    let options =
        [format!("--gpu-architecture=sm_{arch}"), "--std=c++17".to_owned(), "--fmad=true".to_owned()]
            .map(|option| CString::new(option).unwrap_or_default());
    let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    let success = nvrtc::nvrtcResult::NVRTC_SUCCESS;
    let mut program = std::ptr::null_mut();
    // SAFETY: all strings and buffers live through the calls; the program is destroyed on every way out.
    unsafe {
        let none = std::ptr::null();
        let made = nvrtc::nvrtcCreateProgram(&mut program, text.as_ptr(), name.as_ptr(), 0, none, none);
        if made != success {
            return Err(failed(format!("{made:?}")));
        }
        let result = nvrtc::nvrtcCompileProgram(program, pointers.len() as c_int, pointers.as_ptr());
        let compiled = if result == success {
            let mut size = 0;
            nvrtc::nvrtcGetCUBINSize(program, &mut size);
            let mut cubin = vec![0_u8; size];
            match nvrtc::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()) {
                code if code == success => Ok(cubin),
                code => Err(failed(format!("{code:?}"))),
            }
        } else {
            Err(failed(log(program)))
        };
        nvrtc::nvrtcDestroyProgram(&mut program);
        compiled
    }
}

/// # Safety
/// `program` is alive.
unsafe fn log(program: nvrtc::nvrtcProgram) -> String {
    let mut size = 0;
    // SAFETY: the caller vouches for the program; the buffer has the size that the library asked for.
    unsafe {
        nvrtc::nvrtcGetProgramLogSize(program, &mut size);
        let mut text = vec![0_u8; size + 1];
        nvrtc::nvrtcGetProgramLog(program, text.as_mut_ptr().cast());
        CStr::from_bytes_until_nul(&text).map(|t| t.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

fn module(cuda: &Cuda, source: &Source) -> Result<Arc<Module>, DeviceError> {
    cuda.bind()?;
    let key = key(source, cuda.arch())?;
    let modules = || cuda.0.modules.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(module) = modules().get(&key) {
        return Ok(module.clone());
    }
    let cached = cache_folder().map(|folder| folder.join(format!("{}-{key}.cubin", source.name)));
    let read = cached.as_ref().and_then(|path| std::fs::read(path).ok());
    // A damaged file in the cache does not load: then it is compiled and written again.
    let module = match read.and_then(|cubin| load(&cubin).ok()) {
        Some(module) => module,
        None => {
            let cubin = compile(source, cuda.arch())?;
            if let Some(path) = cached {
                keep(&path, &cubin);
            }
            load(&cubin)?
        }
    };
    // Two threads may have compiled the same: the first one's stays.
    Ok(modules().entry(key).or_insert_with(|| Arc::new(module)).clone())
}

fn load(cubin: &[u8]) -> Result<Module, DeviceError> {
    let mut raw = std::ptr::null_mut();
    // SAFETY: the image is whole; a pointer to a live local.
    check(
        "cuModuleLoadData",
        outside_captures(|| unsafe { sys::cuModuleLoadData(&mut raw, cubin.as_ptr().cast()) }),
    )?;
    Ok(Module(raw))
}

/// A cache that cannot be written costs a compilation at the next start and nothing else.
fn keep(path: &std::path::Path, cubin: &[u8]) {
    if path.parent().is_some_and(|folder| std::fs::create_dir_all(folder).is_ok()) {
        let _ = write_durably(path, |out| out.write_all(cubin));
    }
}

/// Loads what all sources need; those that no cache has are compiled side by side, which at the first run on a machine
/// takes seconds.
pub fn prepare(cuda: &Cuda, sources: &[Source]) -> Result<(), DeviceError> {
    let mut keys = Vec::new();
    let mut distinct = Vec::new();
    for source in sources {
        let key = key(source, cuda.arch())?;
        if !keys.contains(&key) {
            keys.push(key);
            distinct.push(source);
        }
    }
    std::thread::scope(|scope| {
        let loads: Vec<_> = distinct.into_iter().map(|source| scope.spawn(|| module(cuda, source))).collect();
        loads.into_iter().try_for_each(|load| load.join().expect("loading does not panic").map(drop))
    })
}

/// Everything that decides what the machine code is.
fn key(source: &Source, arch: u32) -> Result<String, DeviceError> {
    let (major, minor) = nvrtc_version()?;
    let digest = Sha256::digest(format!("nvrtc {major}.{minor} sm_{arch}\n{}", source.program()));
    Ok(digest.iter().take(12).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}

fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("lapidary/kernels"))
}
