use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;

use crate::device::DeviceError;

/// A shared library of CUDA, the names it may have, and the functions that this program calls in it.
struct Wanted {
    library: &'static str,
    /// The environment variable that gives the path of the file itself.
    variable: &'static str,
    files: &'static [&'static str],
    symbols: &'static [&'static str],
}

static DRIVER: Wanted = Wanted {
    library: "the CUDA driver (libcuda)",
    variable: "LAPIDARY_LIBCUDA",
    files: &["libcuda.so.1", "libcuda.so", "nvcuda.dll"],
    symbols: &[
        "cuInit",
        "cuDriverGetVersion",
        "cuGraphLaunch",
        "cuGraphInstantiateWithFlags",
        "cuLaunchKernelEx",
    ],
};
static NVRTC: Wanted = Wanted {
    library: "NVRTC (libnvrtc)",
    variable: "LAPIDARY_NVRTC",
    files: &["libnvrtc.so.13", "libnvrtc.so", "nvrtc64_130_0.dll"],
    symbols: &["nvrtcVersion", "nvrtcCompileProgram", "nvrtcGetCUBIN"],
};
static CUBLAS: Wanted = Wanted {
    library: "cuBLAS (libcublas)",
    variable: "LAPIDARY_CUBLAS",
    files: &["libcublas.so.13", "libcublas.so", "cublas64_13.dll"],
    symbols: &[
        "cublasCreate_v2",
        "cublasSetWorkspace_v2",
        "cublasDgemm_v2",
        "cublasSgemm_v2",
        "cublasDtrsm_v2",
    ],
};
static CUSOLVER: Wanted = Wanted {
    library: "cuSOLVER (libcusolver)",
    variable: "LAPIDARY_CUSOLVER",
    files: &["libcusolver.so.12", "libcusolver.so", "cusolver64_12.dll"],
    symbols: &[
        "cusolverDnCreate",
        "cusolverDnDpotrf",
        "cusolverDnDpotrf_bufferSize",
        "cusolverDnXsyevBatched",
    ],
};

/// Makes the CUDA driver ready for cudarc, or says what is missing.
pub(super) fn driver() -> Result<(), DeviceError> {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    // SAFETY: asking only loads the library.
    ready(&READY, &DRIVER, || unsafe { cudarc::driver::sys::is_culib_present() })
}

/// Makes NVRTC ready for cudarc; it needs no card and no driver.
pub(super) fn nvrtc() -> Result<(), DeviceError> {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    // SAFETY: as above.
    ready(&READY, &NVRTC, || unsafe { cudarc::nvrtc::sys::is_culib_present() })
}

pub(super) fn cublas() -> Result<(), DeviceError> {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    // SAFETY: as above.
    ready(&READY, &CUBLAS, || unsafe { cudarc::cublas::sys::is_culib_present() })
}

pub(super) fn cusolver() -> Result<(), DeviceError> {
    cublas()?;
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    // SAFETY: as above.
    ready(&READY, &CUSOLVER, || unsafe { cudarc::cusolver::sys::is_culib_present() })
}

/// cudarc panics on a library or a function that it does not find, so both are looked up here first.
fn ready(
    state: &OnceLock<Result<(), String>>,
    wanted: &Wanted,
    present: fn() -> bool,
) -> Result<(), DeviceError> {
    let result = state.get_or_init(|| {
        let library = load(wanted)?;
        for symbol in wanted.symbols {
            // SAFETY: the address is not called here.
            if unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_err() {
                return Err(format!("it has no function {symbol}"));
            }
        }
        // A library that is loaded stays loaded: cudarc finds it again by its name.
        std::mem::forget(library);
        if present() {
            Ok(())
        } else {
            Err("it was loaded, but not under the name that cudarc asks for".to_owned())
        }
    });
    result.clone().map_err(|reason| DeviceError::MissingLibrary { library: wanted.library, reason })
}

fn load(wanted: &Wanted) -> Result<Library, String> {
    if let Some(path) = std::env::var_os(wanted.variable) {
        let path = Path::new(&path);
        let library =
            open(path).map_err(|e| format!("{} names a file that does not load: {e}", wanted.variable))?;
        load_companions(path);
        return Ok(library);
    }
    let by_name = wanted.files.iter().map(PathBuf::from);
    let in_folders = folders().into_iter().flat_map(|folder| {
        wanted
            .files
            .iter()
            .map(move |file| folder.join(file))
            .filter(|path| path.is_file())
            .collect::<Vec<_>>()
    });
    let mut last = String::new();
    for path in by_name.chain(in_folders) {
        match open(&path) {
            Ok(library) => {
                load_companions(&path);
                return Ok(library);
            }
            Err(error) => last = error,
        }
    }
    Err(format!(
        "not on the loader's path, in CUDA_HOME, /usr/local/cuda*/lib64 or Python's nvidia folders ({last})"
    ))
}

/// NVRTC asks for its built-in headers by name when it first compiles: those beside it are loaded, so that it finds
/// them outside the loader's path too. Where they are missing, its own message says so.
fn load_companions(path: &Path) {
    if !path.file_name().is_some_and(|name| name.to_string_lossy().contains("nvrtc")) {
        return;
    }
    for companion in path.parent().map(|folder| children(folder, "libnvrtc-builtins.so")).unwrap_or_default()
    {
        if let Ok(library) = open(&companion) {
            std::mem::forget(library);
        }
    }
}

/// Loads for every later `dlopen` of the process, so that a library finds those it depends on.
fn open(path: &Path) -> Result<Library, String> {
    #[cfg(unix)]
    {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        // SAFETY: initialisers of NVIDIA's libraries run; that is what loading them means.
        unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
            .map(Into::into)
            .map_err(|e| e.to_string())
    }
    #[cfg(not(unix))]
    // SAFETY: as above.
    unsafe { Library::new(path) }.map_err(|e| e.to_string())
}

/// Folders where CUDA lies when it is not on the loader's path: the toolkit's and those of Python's wheels.
fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        folders.extend(std::env::var_os(variable).map(|home| Path::new(&home).join("lib64")));
    }
    folders.extend(children("/usr/local", "cuda").into_iter().map(|home| home.join("lib64")));
    let mut sites: Vec<PathBuf> = Vec::new();
    let environments =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let roots = environments.chain(on_path("python3")).chain(["/usr".into(), "/usr/local".into()]);
    for root in roots {
        for python in children(root.join("lib"), "python3") {
            sites.extend([python.join("site-packages"), python.join("dist-packages")]);
        }
    }
    for site in sites {
        for package in children(site.join("nvidia"), "") {
            folders.push(package.join("lib"));
        }
    }
    folders
}

/// The environment of a program on PATH: the folder above the one that holds it.
fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folder = std::env::split_paths(&path).find(|folder| folder.join(program).is_file())?;
    folder.parent().map(Path::to_path_buf)
}

fn children(folder: impl AsRef<Path>, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}
