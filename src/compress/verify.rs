use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::journal::Record;
use super::packing::{Packing, PackingError, TensorEntry, Totals, checksum};
use crate::blr::Payload;
use crate::model::text::hex;
use crate::model::{Checkpoint, Decoder, LinearName};

#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("{0}: there is no such folder")]
    NoFolder(PathBuf),
    #[error("{0} is a file: give the folder that pack wrote")]
    File(PathBuf),
    #[error("{0}: this is no packed model (it has no packing.json)")]
    NotPacked(PathBuf),
    #[error(transparent)]
    Packing(#[from] PackingError),
}

/// What was checked, and every fault that was found.
#[derive(Debug, serde::Serialize)]
pub struct Verification {
    pub files: usize,
    pub tensors: usize,
    pub faults: Vec<String>,
}

/// Checks a packed folder: files against their checksums, payloads against their format, and everything that
/// packing.json says against what is stored; that tokenizer and decoder load.
///
/// packing.json has no checksum of its own: what cannot be computed again from the folder (the source, the errors of
/// the fit) is taken as it stands there.
pub fn verify(folder: &Path) -> Result<Verification, VerifyError> {
    if folder.is_file() {
        return Err(VerifyError::File(folder.into()));
    }
    if !folder.is_dir() {
        return Err(VerifyError::NoFolder(folder.into()));
    }
    if !folder.join("packing.json").is_file() {
        return Err(VerifyError::NotPacked(folder.into()));
    }
    let packing = Packing::read(folder)?;
    let mut faults = check_files(folder, &packing.files);
    match Checkpoint::open(folder) {
        Ok(checkpoint) => check_model(&checkpoint, &packing, &mut faults),
        Err(error) => faults.push(error.to_string()),
    }
    Ok(Verification { files: packing.files.len(), tensors: packing.tensors.len(), faults })
}

fn check_files(folder: &Path, files: &BTreeMap<String, String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, expected) in files {
        let path = Path::new(name);
        if path.file_name() != Some(path.as_os_str()) || !folder.join(name).is_file() {
            faults.push(format!("{name}: there is no such file in the folder"));
            continue;
        }
        match checksum(&folder.join(name)) {
            Ok(found) if found == *expected => {}
            Ok(found) => faults.push(format!("{name}: its SHA-256 is {found}, packing.json says {expected}")),
            Err(error) => faults.push(format!("{name}: cannot be read: {error}")),
        }
    }
    let present = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let present: BTreeSet<String> =
        present.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let unlisted = present.into_iter().filter(|name| name != "packing.json" && !files.contains_key(name));
    faults.extend(unlisted.map(|name| format!("{name}: packing.json has no checksum of it")));
    faults
}

fn check_model(checkpoint: &Checkpoint, packing: &Packing, faults: &mut Vec<String>) {
    if let Err(error) = checkpoint.tokenizer() {
        faults.push(error.to_string());
    }
    if let Err(error) = Decoder::load(checkpoint) {
        faults.push(error.to_string());
    }
    let config = checkpoint.config();
    let mut shapes = BTreeMap::new();
    for layer in 0..config.layers {
        shapes.extend(LinearName::ALL.map(|name| (name.prefix(layer), name.shape(config))));
    }
    let expected = shapes.clone();
    for entry in &packing.tensors {
        match shapes.remove(&entry.name) {
            Some(shape) if shape == entry.shape => {}
            Some(shape) => {
                faults.push(format!(
                    "{}: packing.json says {:?}, config.json {shape:?}",
                    entry.name, entry.shape
                ));
            }
            None => faults
                .push(format!("{}: packing.json lists it twice, or the model has no such layer", entry.name)),
        }
        faults.extend(check_tensor(checkpoint, entry).map(|fault| format!("{}: {fault}", entry.name)));
    }
    faults.extend(shapes.into_keys().map(|name| format!("{name}: packing.json does not list it")));
    let stored = |name: &str| {
        let tensor = checkpoint.tensor(name).ok()?;
        let linear = name.strip_suffix(".blr").and_then(|layer| expected.get(layer));
        let numbers = linear.map_or_else(|| tensor.shape.iter().product(), |shape| shape[0] * shape[1]);
        Some((numbers, tensor.bytes.len()))
    };
    let sizes: Vec<_> = checkpoint.names().filter_map(stored).collect();
    if Totals::of(&packing.tensors, &sizes) != packing.totals {
        faults.push("packing.json: its totals are not the sums over its tensors".into());
    }
}

fn check_tensor(checkpoint: &Checkpoint, entry: &TensorEntry) -> Option<String> {
    let (stored, suffix) = match &entry.record {
        Record::Packed { .. } => ("packed", "blr"),
        Record::Dense { .. } => ("dense", "weight"),
    };
    let name = format!("{}.{suffix}", entry.name);
    let Ok(tensor) = checkpoint.tensor(&name) else {
        return Some(format!("packing.json says it is {stored}, but there is no {name}"));
    };
    let Record::Packed { quality, sha256 } = &entry.record else { return None };
    let found = hex(&Sha256::digest(tensor.bytes.as_slice()));
    if found != *sha256 {
        return Some(format!("the payload's SHA-256 is {found}, packing.json says {sha256}"));
    }
    // A payload that is none is the decoder's fault to tell.
    let payload = Payload::parse(tensor.bytes).ok()?;
    let bits = payload.bits() as f64 / entry.weights();
    let stated = (quality.paths, quality.rank, quality.delivered_bits);
    let actual = (payload.shape().paths, payload.rank(), bits);
    (stated != actual).then(|| {
        format!("packing.json says {stated:?} paths, rank and bits a weight, but the payload has {actual:?}")
    })
}
