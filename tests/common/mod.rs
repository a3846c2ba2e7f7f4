//! What tests need from outside the repository. A missing thing prints `not run`, and fails where the environment
//! variable `LAPIDARY_REQUIRE` (a comma list) names it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

/// A file of the shared test data: `LAPIDARY_DATA`, or the folder `shared/data` beside the repository.
/// Required as `data`.
pub fn data(file: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("LAPIDARY_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data"), PathBuf::from);
    found(folder.join(file), "data")
}

/// SmolLM2-135M-Instruct as a Q4_1 GGUF: `LAPIDARY_SMOLLM2`, or the cache folder. Required as `smollm2`.
pub fn smollm2() -> Option<PathBuf> {
    model("LAPIDARY_SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2")
}

/// Gemma 3 270M as a Q4_K_M GGUF: `LAPIDARY_GEMMA3`, or the cache folder. Required as `gemma3`.
pub fn gemma3() -> Option<PathBuf> {
    model("LAPIDARY_GEMMA3", "gemma-3-270m-q4_k_m.gguf", "gemma3")
}

fn model(variable: &str, file: &str, name: &str) -> Option<PathBuf> {
    let cached = || {
        let home = std::env::var_os("HOME").unwrap_or_default();
        Path::new(&home).join(".cache/lapidary").join(file)
    };
    found(std::env::var_os(variable).map_or_else(cached, PathBuf::from), name)
}

fn found(path: PathBuf, name: &str) -> Option<PathBuf> {
    if path.is_file() {
        return Some(path);
    }
    let required = std::env::var("LAPIDARY_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|r| r.trim() == name),
        "{name} is required, but {} is missing",
        path.display()
    );
    not_run(&format!("{} is missing", path.display()));
    None
}

/// Straight to stderr: the test runner would swallow a `println!` of a test that passes, and a test that did not run
/// must not read as passed.
fn not_run(why: &str) {
    use std::io::Write;
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    writeln!(std::io::stderr(), "not run: {test}: {why}").expect("stderr can be written");
}

/// A file of the embedded model, or its folder for "".
pub fn tiny(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny").join(file)
}

/// Whether NVRTC is there (`LAPIDARY_NVRTC`, or the usual places). Required as `nvrtc`.
#[cfg(feature = "cuda")]
pub fn nvrtc() -> bool {
    works(lapidary::device::cuda::nvrtc_version(), "nvrtc").is_some()
}

/// The first CUDA card. Required as `cuda`.
#[cfg(feature = "cuda")]
pub fn cuda() -> Option<lapidary::device::cuda::Cuda> {
    works(lapidary::device::cuda::Cuda::open(0), "cuda")
}

/// The adapter that wgpu finds, a software one where there is no card. Required as `wgpu`.
#[cfg(feature = "wgpu")]
pub fn wgpu() -> Option<lapidary::device::wgpu::Wgpu> {
    use lapidary::device::wgpu::{Adapters, Wgpu};
    works(Wgpu::open(Adapters::Any), "wgpu")
}

/// The host, and every device that is there.
pub fn devices() -> Vec<lapidary::device::Device> {
    let devices = [lapidary::device::Device::Host].into_iter();
    #[cfg(feature = "cuda")]
    let devices = devices.chain(cuda().map(lapidary::device::Device::Cuda));
    #[cfg(feature = "wgpu")]
    let devices = devices.chain(wgpu().map(lapidary::device::Device::Wgpu));
    devices.collect()
}

/// The devices that have the kernels of tuning: the host and the first CUDA card.
pub fn tuning_devices() -> Vec<lapidary::device::Device> {
    let devices = [lapidary::device::Device::Host].into_iter();
    #[cfg(feature = "cuda")]
    let devices = devices.chain(cuda().map(lapidary::device::Device::Cuda));
    devices.collect()
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn works<T>(found: Result<T, lapidary::device::DeviceError>, name: &str) -> Option<T> {
    match found {
        Ok(thing) => Some(thing),
        Err(error) => {
            let required = std::env::var("LAPIDARY_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|r| r.trim() == name), "{name} is required, but {error}");
            not_run(&error.to_string());
            None
        }
    }
}
