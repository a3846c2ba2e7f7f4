use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::calibration::CalibrationRecord;
use super::encoder::EncodedBy;
use super::journal::{Identity, Record};
use super::plan::Plan;
use super::recipe::Recipe;
use super::tuning::Tuned;
use crate::blr::rank::Clipped;
use crate::model::Checkpoint;
use crate::model::text::hex;

/// packing.json: what every tensor asked for, got and cost, and every knob that decided it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Packing {
    /// Version of lapidary that wrote it.
    pub lapidary: String,
    pub source: Source,
    pub recipe: Recipe,
    pub plan: Plan,
    pub calibration: Option<CalibrationRecord>,
    #[serde(default)]
    pub encoder: EncodedBy,
    pub totals: Totals,
    pub tensors: Vec<TensorEntry>,
    /// What gradients did, block by block and then for the model; errors of tensors are from before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tuned: Vec<Tuned>,
    /// What they did to the weights of blocks before those were packed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mitigated: Vec<Tuned>,
    /// SHA-256 of the other files of the folder.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// File or folder name.
    pub name: String,
    /// [`Checkpoint::fingerprint`]
    pub fingerprint: String,
}

/// Sums over the model. Means are over packed tensors, each counted once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    pub packed_tensors: usize,
    pub dense_tensors: usize,
    /// Weights in packed tensors, and bits per one of them: asked for (factors not applied), and delivered.
    pub packed_weights: u64,
    pub requested_bits: f64,
    pub body_bits: f64,
    /// All weights of the model, and bits per one of them over everything stored.
    pub model_weights: u64,
    pub model_bits: f64,
    pub mean_fit_rel: Option<f64>,
    pub mean_heldout_rel: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorEntry {
    pub name: String,
    /// Outputs and true inputs; the payload's inputs are padded to a multiple of 8.
    pub shape: [usize; 2],
    #[serde(flatten)]
    pub record: Record,
}

impl TensorEntry {
    /// Weights of the layer; as a float, since a damaged file may claim any shape.
    pub fn weights(&self) -> f64 {
        self.shape[0] as f64 * self.shape[1] as f64
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PackingError {
    #[error("{file}: cannot be read: {source}")]
    Unreadable { file: PathBuf, source: io::Error },
    #[error(
        "{file}: {source}; the folder is damaged or was written by another version, pack the model again"
    )]
    Json { file: PathBuf, source: serde_json::Error },
}

impl Packing {
    /// `stored` lists, for every tensor of the output, the weights it stands for and its bytes.
    pub(super) fn new(
        checkpoint: &Checkpoint,
        identity: &Identity,
        tensors: Vec<TensorEntry>,
        tuned: Vec<Tuned>,
        stored: &[(usize, usize)],
    ) -> Self {
        // `.` and `..` have names only once they are resolved.
        let path = checkpoint.path().canonicalize().unwrap_or_else(|_| checkpoint.path().into());
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        Self {
            lapidary: identity.version.clone(),
            source: Source { name: name.into_owned(), fingerprint: identity.model.clone() },
            recipe: identity.recipe.clone(),
            plan: identity.plan.clone(),
            calibration: identity.calibration.clone(),
            encoder: identity.encoder,
            totals: Totals::of(&tensors, stored),
            tensors,
            tuned,
            mitigated: Vec::new(),
            files: BTreeMap::new(),
        }
    }

    /// Reads `folder/packing.json`.
    pub fn read(folder: &Path) -> Result<Self, PackingError> {
        let file = folder.join("packing.json");
        let bytes =
            std::fs::read(&file).map_err(|source| PackingError::Unreadable { file: file.clone(), source })?;
        serde_json::from_slice(&bytes).map_err(|source| PackingError::Json { file, source })
    }

    /// Packed tensors whose budget did not decide their rank.
    pub fn clipped(&self) -> usize {
        let decided = |entry: &&TensorEntry| match &entry.record {
            Record::Packed { quality, .. } => quality.clipped != Clipped::No,
            Record::Dense { .. } => false,
        };
        self.tensors.iter().filter(decided).count()
    }

    /// Packed tensors that the host encoded because the device could not, with the reason.
    pub fn retried(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tensors.iter().filter_map(|entry| match &entry.record {
            Record::Packed { quality, .. } => Some((entry.name.as_str(), quality.retried.as_deref()?)),
            Record::Dense { .. } => None,
        })
    }

    /// The identity of the run that wrote it.
    pub(super) fn identity(&self) -> Identity {
        Identity {
            version: self.lapidary.clone(),
            model: self.source.fingerprint.clone(),
            recipe: self.recipe.clone(),
            plan: self.plan.clone(),
            calibration: self.calibration.clone(),
            encoder: self.encoder,
        }
    }

    /// Tensors that stayed dense, with the reason.
    pub fn dense(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tensors.iter().filter_map(|entry| match &entry.record {
            Record::Dense { reason } => Some((entry.name.as_str(), reason.as_str())),
            Record::Packed { .. } => None,
        })
    }
}

impl Totals {
    pub(super) fn of(tensors: &[TensorEntry], stored: &[(usize, usize)]) -> Self {
        let packed: Vec<_> = (tensors.iter())
            .filter_map(|entry| match &entry.record {
                Record::Packed { quality, .. } => Some((entry.weights(), quality)),
                Record::Dense { .. } => None,
            })
            .collect();
        let weights: f64 = packed.iter().map(|(weights, _)| weights).sum();
        let per_weight = |bits: f64| if weights == 0.0 { 0.0 } else { bits / weights };
        let mean = |rels: Vec<f64>| (!rels.is_empty()).then(|| rels.iter().sum::<f64>() / rels.len() as f64);
        let (all_weights, bytes) =
            stored.iter().fold((0, 0), |(w, b), (weights, bytes)| (w + weights, b + bytes));
        Self {
            packed_tensors: packed.len(),
            dense_tensors: tensors.len() - packed.len(),
            packed_weights: weights as u64,
            requested_bits: per_weight(packed.iter().map(|(w, q)| w * q.requested_bits).sum()),
            body_bits: per_weight(packed.iter().map(|(w, q)| w * q.delivered_bits).sum()),
            model_weights: all_weights as u64,
            model_bits: 8.0 * bytes as f64 / all_weights.max(1) as f64,
            mean_fit_rel: mean(packed.iter().filter_map(|(_, q)| q.fit_rel).collect()),
            mean_heldout_rel: mean(packed.iter().filter_map(|(_, q)| q.heldout_rel).collect()),
        }
    }
}

/// SHA-256 of a file, in hexadecimal; the file is streamed.
pub fn checksum(file: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut file = File::open(file)?;
    let mut part = vec![0; 1 << 20];
    loop {
        match io::Read::read(&mut file, &mut part)? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(&part[..n]),
        }
    }
}
