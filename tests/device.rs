//! A driver that is missing or broken is told by name, and only `auto` goes on without it.
#![cfg(feature = "cuda")]

#[cfg(feature = "wgpu")]
mod common;

use std::collections::HashMap;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use safetensors::tensor::{Dtype, TensorView};

/// Solves the worked example beside `System` on a device, with a CUDA driver that is no library.
fn solve(folder: &Path, device: &str) -> Output {
    let file = folder.join("in.safetensors");
    let slabs: [(&str, &[usize], &[f64]); 5] = [
        ("row_hessian", &[2, 1, 1], &[2.0, 4.0]),
        ("row_cross", &[2, 1, 1], &[1.0, 2.0]),
        ("border_hessian", &[1, 1], &[4.0]),
        ("row_rhs", &[2, 1], &[5.0, 16.0]),
        ("border_rhs", &[1], &[17.0]),
    ];
    let tensors = slabs.iter().map(|(name, shape, values)| {
        (*name, TensorView::new(Dtype::F64, shape.to_vec(), bytemuck::cast_slice(values)).unwrap())
    });
    let no_metadata: Option<HashMap<String, String>> = None;
    std::fs::write(&file, safetensors::serialize(tensors, no_metadata).unwrap()).unwrap();
    std::fs::write(folder.join("libcuda.so.1"), b"not a library").unwrap();
    let mut command = Command::cargo_bin("lapidary").unwrap();
    command.env("LAPIDARY_LIBCUDA", folder.join("libcuda.so.1"));
    command.arg("solve").arg(&file).args(["--device", device]).output().unwrap()
}

/// Packs the embedded model on wgpu; nothing is written where no adapter is found.
#[cfg(feature = "wgpu")]
fn pack_on_wgpu(folder: &Path, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::cargo_bin("lapidary").unwrap();
    command.envs(environment.iter().copied()).arg("pack").arg(common::tiny(""));
    command.args(["--bits", "2", "--device", "wgpu", "--text"]).arg(common::tiny("calibration.txt"));
    command.arg("-o").arg(folder.join("out")).output().unwrap()
}

#[cfg(feature = "wgpu")]
#[test]
fn a_named_adapter_that_is_not_there_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let no_driver = [("VK_DRIVER_FILES", "/no/driver.json"), ("VK_ICD_FILENAMES", "/no/driver.json")];
    for environment in [&[("LAPIDARY_ADAPTER", "no such card")][..], &no_driver] {
        let output = pack_on_wgpu(folder.path(), environment);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(message.contains("Vulkan") && message.contains("--device host"), "{message}");
        assert!(!message.contains("panicked"), "{message}");
        let named = environment[0].0 == "LAPIDARY_ADAPTER";
        assert!(!named || message.contains("no such card"), "{message}");
        assert!(folder.path().read_dir().unwrap().next().is_none());
    }
}

#[test]
fn a_named_device_with_a_broken_driver_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = solve(folder.path(), "cuda");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(message.contains("libcuda") && message.contains("LAPIDARY_LIBCUDA"), "{message}");
    assert!(!message.contains("panicked"), "{message}");
}

#[test]
fn auto_goes_on_without_it_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let output = solve(folder.path(), "auto");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{message}");
    assert!(message.contains("auto took the host") && message.contains("libcuda"), "{message}");
}
