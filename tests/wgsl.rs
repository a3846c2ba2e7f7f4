//! Every WGSL kernel of the repository is valid with the constants it is used with, on a machine without any adapter.

use std::collections::BTreeSet;
use std::path::Path;

use lapidary::device::arena::Program;
use lapidary::ops::programs;

/// What the smallest adapters let a workgroup share, in bytes.
const WORKGROUP_BYTES: u32 = 16 << 10;

fn module(program: &Program) -> naga::Module {
    let text = program.wgsl_text();
    naga::front::wgsl::parse_str(&text)
        .unwrap_or_else(|error| panic!("{}", error.emit_to_string_with_path(&text, program.name)))
}

#[test]
fn every_kernel_is_valid() {
    for program in programs() {
        let module = module(program);
        let flags = naga::valid::ValidationFlags::all();
        let mut validator = naga::valid::Validator::new(flags, naga::valid::Capabilities::empty());
        if let Err(error) = validator.validate(&module) {
            panic!("{}: {}", program.name, error.emit_to_string(&program.wgsl_text()));
        }
        let entry = module.entry_points.iter().find(|entry| entry.name == program.entry);
        let entry = entry.unwrap_or_else(|| panic!("{} has no {}", program.name, program.entry));
        assert_eq!(entry.workgroup_size, [program.threads, 1, 1], "{}", program.entry);
    }
}

#[test]
fn workgroup_memory_fits_the_smallest_adapters() {
    for program in programs() {
        let module = module(program);
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).unwrap();
        let shared = module.global_variables.iter().filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
        let bytes: u32 = shared.map(|(_, variable)| layouter[variable.ty].size.next_multiple_of(16)).sum();
        assert!(bytes <= WORKGROUP_BYTES, "{} shares {bytes} bytes", program.name);
    }
}

#[test]
fn every_kernel_file_is_known() {
    let known: BTreeSet<String> = programs().iter().map(|program| format!("{}.wgsl", program.name)).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops");
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".wgsl"))
        .collect();
    assert_eq!(known, files);
}
