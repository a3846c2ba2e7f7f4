//! Modules know only what stands below them; the outside crates of one layer stay in it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Bottom first; modules of one row do not know each other.
const LAYERS: [&[&str]; 5] =
    [&["device"], &["ops", "hub"], &["blr", "arrow"], &["model", "atoms"], &["compress", "eval", "explain"]];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files
}

fn modules_used(text: &str) -> BTreeSet<String> {
    let name =
        |rest: &str| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("").to_owned();
    text.match_indices("crate::").map(|(at, found)| name(&text[at + found.len()..])).collect()
}

#[test]
fn arrows_point_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut checked = 0;
    for (level, row) in LAYERS.iter().enumerate() {
        for module in *row {
            for file in sources(&root.join(module)) {
                let text = fs::read_to_string(&file).unwrap();
                let allowed: Vec<&str> =
                    LAYERS[..level].iter().flat_map(|row| row.iter().copied()).chain([*module]).collect();
                for used in modules_used(&text) {
                    assert!(allowed.contains(&used.as_str()), "{} uses crate::{used}", file.display());
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 30, "{checked} files were checked");
}

#[test]
fn every_module_has_a_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        let known = name == "cli" || LAYERS.iter().any(|row| row.contains(&name.as_str()));
        assert!(!entry.path().is_dir() || known, "src/{name} has no row in tests/layers.rs");
    }
}

#[test]
fn the_command_line_alone_knows_its_crates() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&root).iter().filter(|file| !file.starts_with(root.join("cli"))) {
        let text = fs::read_to_string(file).unwrap();
        for name in ["clap::", "miette::", "indicatif::"] {
            assert!(!text.contains(name), "{} uses {name}", file.display());
        }
    }
}

#[test]
fn the_hub_alone_knows_the_network() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&root).iter().filter(|file| !file.starts_with(root.join("hub"))) {
        let text = fs::read_to_string(file).unwrap();
        assert!(!text.contains("ureq::") && !text.contains("TcpStream"), "{}", file.display());
    }
}

#[test]
fn devices_alone_know_their_libraries() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&root).iter().filter(|file| !file.starts_with(root.join("device"))) {
        let text = fs::read_to_string(file).unwrap();
        for name in ["cudarc::", "libloading::", "wgpu::"] {
            let ours = ["device::", name].concat();
            assert!(!text.replace(&ours, "").contains(name), "{} uses {name}", file.display());
        }
    }
}
