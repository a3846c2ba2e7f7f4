use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::journal::Record;
use super::packing::{Packing, PackingError, checksum};
use crate::model::text::hex;
use crate::model::{Checkpoint, CheckpointError, Decoder, DecoderError, LinearName};

#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("{0}: this is no packed model (it has no packing.json)")]
    NotPacked(PathBuf),
    #[error(transparent)]
    Packing(#[from] PackingError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Decoder(#[from] DecoderError),
}

/// What was checked, and every fault that was found.
#[derive(Debug, serde::Serialize)]
pub struct Verification {
    pub files: usize,
    pub tensors: usize,
    pub faults: Vec<String>,
}

/// Checks a packed folder: files against their checksums, tensors against packing.json and config.json, payloads
/// against their format, and that tokenizer and decoder load.
pub fn verify(folder: &Path) -> Result<Verification, VerifyError> {
    if !folder.join("packing.json").is_file() {
        return Err(VerifyError::NotPacked(folder.into()));
    }
    let packing = Packing::read(folder)?;
    let mut faults = check_files(folder, &packing.files);
    let checkpoint = Checkpoint::open(folder)?;
    if let Err(error) = checkpoint.tokenizer() {
        faults.push(error.to_string());
    }
    if let Err(error) = Decoder::load(&checkpoint) {
        faults.push(error.to_string());
    }
    let expected = checkpoint.config().layers * LinearName::ALL.len();
    if packing.tensors.len() != expected {
        faults.push(format!(
            "packing.json lists {} linear layers instead of {expected}",
            packing.tensors.len()
        ));
    }
    let mut shapes = BTreeMap::new();
    for layer in 0..checkpoint.config().layers {
        shapes.extend(LinearName::ALL.map(|name| (name.prefix(layer), name.shape(checkpoint.config()))));
    }
    for entry in &packing.tensors {
        match shapes.remove(&entry.name) {
            Some(shape) if shape == entry.shape => {}
            Some(shape) => faults
                .push(format!("{}: packing.json says {:?}, config.json {shape:?}", entry.name, entry.shape)),
            None => faults
                .push(format!("{}: packing.json lists it twice, or the model has no such layer", entry.name)),
        }
        if let Some(fault) = check_tensor(&checkpoint, &entry.name, &entry.record) {
            faults.push(format!("{}: {fault}", entry.name));
        }
    }
    faults.extend(shapes.into_keys().map(|name| format!("{name}: packing.json does not list it")));
    Ok(Verification { files: packing.files.len(), tensors: packing.tensors.len(), faults })
}

fn check_files(folder: &Path, files: &BTreeMap<String, String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, expected) in files {
        match checksum(&folder.join(name)) {
            Ok(found) if found == *expected => {}
            Ok(found) => faults.push(format!("{name}: its SHA-256 is {found}, packing.json says {expected}")),
            Err(error) => faults.push(format!("{name}: cannot be read: {error}")),
        }
    }
    faults
}

fn check_tensor(checkpoint: &Checkpoint, name: &str, record: &Record) -> Option<String> {
    let (stored, suffix) = match record {
        Record::Packed { .. } => ("packed", "blr"),
        Record::Dense { .. } => ("dense", "weight"),
    };
    let tensor = match checkpoint.tensor(&format!("{name}.{suffix}")) {
        Ok(tensor) => tensor,
        Err(_) => return Some(format!("packing.json says it is {stored}, but there is no {name}.{suffix}")),
    };
    let Record::Packed { sha256, .. } = record else { return None };
    let found = hex(&Sha256::digest(tensor.bytes.as_slice()));
    (found != *sha256).then(|| format!("the payload's SHA-256 is {found}, packing.json says {sha256}"))
}
