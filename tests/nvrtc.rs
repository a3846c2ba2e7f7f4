//! Every kernel of the repository compiles, on a machine without a card.
#![cfg(feature = "cuda")]

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use lapidary::device::cuda::compile;
use lapidary::ops::kernel_sources;

/// Ampere, Hopper, Blackwell.
const ARCHITECTURES: [u32; 3] = [80, 90, 100];

#[test]
fn every_kernel_compiles_for_every_architecture() {
    if !common::nvrtc() {
        return;
    }
    for source in kernel_sources() {
        for arch in ARCHITECTURES {
            match compile(&source, arch) {
                Ok(cubin) => assert_eq!(&cubin[..4], b"\x7fELF", "{} for sm_{arch}", source.name),
                Err(error) => panic!("{:?}: {error}", source.constants),
            }
        }
    }
}

#[test]
fn a_broken_kernel_is_an_error_with_the_compilers_words() {
    if !common::nvrtc() {
        return;
    }
    let mut source = kernel_sources().remove(0);
    source.text = "extern \"C\" __global__ void broken() { nothing(); }";
    let message = compile(&source, 90).unwrap_err().to_string();
    assert!(message.contains("nothing") && message.contains("sm_90"), "{message}");
}

#[test]
fn every_kernel_file_is_known() {
    let known: BTreeSet<String> =
        kernel_sources().iter().map(|source| format!("{}.cu", source.name)).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops");
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".cu"))
        .collect();
    assert_eq!(known, files);
}
