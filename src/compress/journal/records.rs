use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::compress::calibration::CalibrationRecord;
use crate::compress::encoder::EncodedBy;
use crate::compress::plan::Plan;
use crate::compress::recipe::Recipe;
use crate::compress::tensor::Quality;
use crate::compress::tuning::Tuned;
use crate::model::text::hex;

/// Everything that decides the bytes of the result. A journal of another identity is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Version of this program.
    pub version: String,
    /// Fingerprint of the source model.
    pub model: String,
    pub recipe: Recipe,
    pub plan: Plan,
    pub calibration: Option<CalibrationRecord>,
    #[serde(default)]
    pub encoder: EncodedBy,
}

/// What a finished tensor left in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Record {
    Packed {
        #[serde(flatten)]
        quality: Quality,
        /// SHA-256 of the payload.
        sha256: String,
    },
    Dense {
        reason: String,
    },
}

/// A record as it is stored: bound to its tensor, so that no other file can stand in for it.
#[derive(Serialize, Deserialize)]
pub(super) struct Stored {
    pub tensor: String,
    pub record: Record,
    /// SHA-256 of the two above.
    pub check: String,
}

/// What is tuned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The weights of one block, before it is packed; no payloads are kept.
    Before(usize),
    /// One block, to what the original's gives.
    Block(usize),
    /// All of them, to the original's distributions.
    Model,
}

impl Phase {
    pub(super) fn file(self) -> String {
        match self {
            Self::Before(layer) | Self::Block(layer) => format!("{self}-{layer}.json"),
            Self::Model => format!("{self}.json"),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before(_) => "mitigated",
            Self::Block(_) => "reconstructed",
            Self::Model => "distilled",
        })
    }
}

/// What tuning did, and the SHA-256 of the payloads that it left, by tensor.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredPhase {
    #[serde(flatten)]
    pub tuned: Tuned,
    pub sha256: BTreeMap<String, String>,
    /// SHA-256 of the two above and the phase.
    pub check: String,
}

impl Stored {
    pub fn check(tensor: &str, record: &Record) -> Result<String, serde_json::Error> {
        check_of(&(tensor, record))
    }
}

impl StoredPhase {
    pub fn new(
        phase: Phase,
        tuned: Tuned,
        sha256: BTreeMap<String, String>,
    ) -> Result<Self, serde_json::Error> {
        let check = check_of(&(phase.file(), &tuned, &sha256))?;
        Ok(Self { tuned, sha256, check })
    }
}

/// By block, layer and output.
pub type Exponents = Vec<[Vec<i32>; 7]>;

/// SHA-256 of a value as JSON.
pub(super) fn check_of(value: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(hex(&Sha256::digest(serde_json::to_vec(value)?)))
}

/// What differs first between two identities.
pub fn difference(found: &Identity, expected: &Identity) -> Option<&'static str> {
    let pairs = [
        ("version of lapidary", found.version == expected.version),
        ("model", found.model == expected.model),
        ("recipe", found.recipe == expected.recipe),
        ("plan", found.plan == expected.plan),
        ("calibration text or window", found.calibration == expected.calibration),
        ("device or precision", found.encoder == expected.encoder),
    ];
    pairs.into_iter().find(|(_, same)| !same).map(|(what, _)| what)
}
