use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::calibration::CalibrationRecord;
use super::plan::Plan;
use super::recipe::Recipe;
use super::tensor::Quality;
use crate::blr::Payload;
use crate::device::{Bytes, write_durably};
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

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error(
        "{folder} holds an interrupted run; continue it with --resume, or delete that folder to start again"
    )]
    Interrupted { folder: PathBuf },
    #[error("there is nothing to resume: {folder} does not exist; run without --resume")]
    Nothing { folder: PathBuf },
    #[error(
        "{folder} belongs to a run with another {what}; repeat the command that began it, or delete the folder \
         to start again"
    )]
    Foreign { folder: PathBuf, what: String },
    #[error("{file} is damaged ({problem}); delete it and resume, and that part is computed again")]
    Damaged { file: PathBuf, problem: String },
    #[error(
        "{file}: {source}; what was finished is safe, free some space or mend the folder and run again with --resume"
    )]
    Io { file: PathBuf, source: io::Error },
}

/// The state of an unfinished run, in the folder `<output>.partial` beside the output:
///
/// | file | content |
/// |---|---|
/// | `identity.json` | [`Identity`] |
/// | `<tensor>.blr`, `<tensor>.json` | payload and [`Record`]; a tensor counts once its record exists |
/// | `hidden-<layer>.f32` | residual stream entering that block, f32 little-endian |
///
/// Every file is written to a temporary name, synced and renamed, so a kill at any moment loses at most the tensors
/// being encoded.
pub struct Journal {
    folder: PathBuf,
}

impl Journal {
    /// `<output>.partial`
    pub fn folder_of(output: &Path) -> PathBuf {
        let mut folder = output.as_os_str().to_owned();
        folder.push(".partial");
        folder.into()
    }

    /// Starts a journal, or continues one of the same identity.
    pub fn open(output: &Path, identity: &Identity, resume: bool) -> Result<Self, JournalError> {
        let folder = Self::folder_of(output);
        let journal = Self { folder: folder.clone() };
        let file = folder.join("identity.json");
        // A run that was killed before its identity was written left nothing worth keeping.
        let begun = file.is_file();
        match (begun, resume) {
            (true, false) => Err(JournalError::Interrupted { folder }),
            (false, true) => Err(JournalError::Nothing { folder }),
            (true, true) => {
                let found: serde_json::Value = journal.read_json(&file)?;
                let expected = serde_json::to_value(identity).map_err(|e| damaged(&file, e))?;
                match difference(&found, &expected) {
                    Some(what) => Err(JournalError::Foreign { folder, what }),
                    None => Ok(journal),
                }
            }
            (false, false) => {
                fs::create_dir_all(&folder).map_err(|source| JournalError::Io { file: folder, source })?;
                journal.write_json("identity.json", identity)?;
                Ok(journal)
            }
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The record of a finished tensor, with its payload where it was packed.
    pub fn read_tensor(&self, name: &str) -> Result<Option<(Record, Option<Payload>)>, JournalError> {
        let file = self.folder.join(format!("{name}.json"));
        if !file.is_file() {
            return Ok(None);
        }
        let record: Record = self.read_json(&file)?;
        let Record::Packed { sha256, .. } = &record else { return Ok(Some((record, None))) };
        let file = self.folder.join(format!("{name}.blr"));
        if !file.is_file() {
            return Ok(None);
        }
        let bytes = fs::read(&file).map_err(|e| damaged(&file, e))?;
        if hex(&Sha256::digest(&bytes)) != *sha256 {
            return Err(damaged(&file, "its checksum is not the recorded one"));
        }
        let payload = Payload::parse(Bytes::from(bytes)).map_err(|e| damaged(&file, e))?;
        Ok(Some((record, Some(payload))))
    }

    pub fn write_packed(
        &self,
        name: &str,
        payload: &Payload,
        quality: Quality,
    ) -> Result<Record, JournalError> {
        let bytes = payload.bytes().as_slice();
        self.write(&format!("{name}.blr"), bytes)?;
        let record = Record::Packed { quality, sha256: hex(&Sha256::digest(bytes)) };
        self.write_json(&format!("{name}.json"), &record)?;
        Ok(record)
    }

    pub fn write_dense(&self, name: &str, reason: String) -> Result<Record, JournalError> {
        let record = Record::Dense { reason };
        self.write_json(&format!("{name}.json"), &record)?;
        Ok(record)
    }

    /// The latest residual stream on record: the block it enters, and its numbers.
    pub fn read_hidden(&self, layers: usize) -> Result<Option<(usize, Vec<f32>)>, JournalError> {
        for layer in (0..layers).rev() {
            let file = self.hidden(layer);
            if file.is_file() {
                let bytes =
                    fs::read(&file).map_err(|source| JournalError::Io { file: file.clone(), source })?;
                let (numbers, rest) = bytes.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(damaged(&file, "its length is not a multiple of 4"));
                }
                return Ok(Some((layer, numbers.iter().map(|b| f32::from_le_bytes(*b)).collect())));
            }
        }
        Ok(None)
    }

    /// Records the residual stream entering `layer`, then drops that of the block before.
    pub fn write_hidden(&self, layer: usize, hidden: &[f32]) -> Result<(), JournalError> {
        let file = self.hidden(layer);
        let write = |out: &mut dyn io::Write| {
            hidden.chunks(1 << 16).try_for_each(|part| {
                out.write_all(&part.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
            })
        };
        write_durably(&file, write).map_err(|source| JournalError::Io { file, source })?;
        if let Some(before) = layer.checked_sub(1).map(|before| self.hidden(before)).filter(|f| f.is_file()) {
            fs::remove_file(&before).map_err(|source| JournalError::Io { file: before, source })?;
        }
        Ok(())
    }

    /// Removes the journal once its result is in place.
    pub fn remove(self) -> Result<(), JournalError> {
        fs::remove_dir_all(&self.folder).map_err(|source| JournalError::Io { file: self.folder, source })
    }

    fn hidden(&self, layer: usize) -> PathBuf {
        self.folder.join(format!("hidden-{layer}.f32"))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), JournalError> {
        let file = self.folder.join(name);
        write_durably(&file, |out| out.write_all(bytes)).map_err(|source| JournalError::Io { file, source })
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), JournalError> {
        let text = serde_json::to_vec_pretty(value).map_err(|e| damaged(&self.folder.join(name), e))?;
        self.write(name, &text)
    }

    fn read_json<T: serde::de::DeserializeOwned>(&self, file: &Path) -> Result<T, JournalError> {
        let bytes = fs::read(file).map_err(|source| JournalError::Io { file: file.into(), source })?;
        serde_json::from_slice(&bytes).map_err(|e| damaged(file, e))
    }
}

fn damaged(file: &Path, problem: impl ToString) -> JournalError {
    JournalError::Damaged { file: file.into(), problem: problem.to_string() }
}

/// The first key whose value differs.
fn difference(found: &serde_json::Value, expected: &serde_json::Value) -> Option<String> {
    let keys = expected.as_object()?;
    let what = keys.iter().find(|(key, value)| found.get(key.as_str()) != Some(value)).map(|(key, _)| key)?;
    Some(match what.as_str() {
        "version" => "version of lapidary".into(),
        "calibration" => "calibration text or window".into(),
        other => other.into(),
    })
}
