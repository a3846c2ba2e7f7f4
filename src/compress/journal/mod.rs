//! What an unfinished run has done, so that it can be taken up again.

mod error;
mod records;

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sha2::{Digest, Sha256};

pub use error::JournalError;
use error::damaged;
pub(super) use records::difference;
pub use records::{Exponents, Identity, Phase, Record};
use records::{Stored, StoredPhase, check_of};

use super::tensor::Quality;
use super::tuning::{Payloads, Tuned};
use crate::blr::Payload;
use crate::device::{Bytes, write_durably, write_whole};
use crate::model::text::hex;

const IDENTITY: &str = "identity.json";
const LOCK: &str = "lock";
const TOKENS: &str = "self-written.tokens";
const OUTPUT_WEIGHTS: &str = "output-weights.json";
const CHECKSUM_BYTES: usize = 32;

/// The state of an unfinished run, in the folder `<output>.partial` beside the output:
///
/// | file | content |
/// |---|---|
/// | `identity.json` | [`Identity`] |
/// | `<tensor>.blr`, `<tensor>.json` | payload and [`Record`], with a checksum; a tensor counts once both exist |
/// | `reconstructed-<layer>.json`, `distilled.json`, `<tensor>.<one of the two>.blr` | what tuning did and left; it counts once the first exists |
/// | `self-written.tokens` | calibration text that the model wrote: tokens, u32 little-endian, then their SHA-256 |
/// | `output-weights.json` | what outputs count, where the recipe does not take them all alike, with a checksum |
/// | `lock` | held while a run uses the folder |
///
/// Every file is written to a temporary name, synced and renamed, so a kill at any moment loses at most the tensors
/// being encoded.
pub struct Journal {
    folder: PathBuf,
    /// Released when the process ends, however it ends.
    _lock: File,
}

/// Whether a folder holds anything but the lock and a half-written identity: that is all that a run leaves which was killed
/// before its identity was written.
fn holds_more(folder: &Path) -> Result<bool, JournalError> {
    let io_error = |source| JournalError::Io { file: folder.into(), source };
    for entry in fs::read_dir(folder).map_err(io_error)? {
        let name = entry.map_err(io_error)?.file_name();
        if name != LOCK && !name.to_string_lossy().starts_with(IDENTITY) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Journal {
    /// `<output>.partial`
    pub fn folder_of(output: &Path) -> PathBuf {
        let mut folder = output.as_os_str().to_owned();
        folder.push(".partial");
        folder.into()
    }

    /// Starts a journal, or continues one of the same identity. One run at a time uses a journal.
    pub fn open(output: &Path, identity: &Identity, resume: bool) -> Result<Self, JournalError> {
        let folder = Self::folder_of(output);
        if resume && !folder.is_dir() {
            return Err(JournalError::Nothing { folder });
        }
        // A folder of someone else's is left as it is.
        if folder.is_dir() && !folder.join(IDENTITY).is_file() && holds_more(&folder)? {
            return Err(JournalError::Unknown { folder });
        }
        let begin = |source| JournalError::Begin { folder: folder.clone(), source };
        fs::create_dir_all(&folder).map_err(begin)?;
        let lock = File::create(folder.join(LOCK)).map_err(begin)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::InUse { folder }),
            Err(TryLockError::Error(source)) => return Err(begin(source)),
        }
        let journal = Self { folder: folder.clone(), _lock: lock };
        match (journal.identity()?, resume) {
            (Some(_), false) => Err(JournalError::Interrupted { folder }),
            (Some(found), true) => match difference(&found, identity) {
                Some(what) => Err(JournalError::Foreign { folder, what: what.into() }),
                None => Ok(journal),
            },
            (None, _) => match journal.write_json(IDENTITY, identity) {
                Ok(()) => Ok(journal),
                Err(error) => {
                    // Nothing was begun, so nothing may stay; the error that is told is the first one.
                    let _ = fs::remove_dir_all(&folder);
                    Err(error)
                }
            },
        }
    }

    fn identity(&self) -> Result<Option<Identity>, JournalError> {
        let file = self.folder.join(IDENTITY);
        if !file.is_file() {
            return Ok(None);
        }
        let bytes = fs::read(&file).map_err(|source| JournalError::Io { file: file.clone(), source })?;
        let folder = self.folder.clone();
        let damaged = |e: serde_json::Error| JournalError::Identity { folder, file, problem: e.to_string() };
        serde_json::from_slice(&bytes).map(Some).map_err(damaged)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The record of a finished tensor, with its payload where it was packed; as the last tuning left it.
    pub fn read_tensor(&self, name: &str) -> Result<Option<(Record, Option<Payload>)>, JournalError> {
        let Some((record, payload)) = self.read_encoded(name)? else { return Ok(None) };
        let (Record::Packed { quality, .. }, Some(_)) = (&record, &payload) else {
            return Ok(Some((record, payload)));
        };
        let block = name.split('.').find_map(|part| part.parse().ok()).map(Phase::Block);
        for phase in [Phase::Model].into_iter().chain(block) {
            let Some(sha256) = self.read_phase(phase)?.and_then(|tuned| tuned.sha256.get(name).cloned())
            else {
                continue;
            };
            let payload = self.read_payload(&format!("{name}.{phase}.blr"), &sha256)?;
            let Some(payload) = payload else { return Ok(None) };
            let record = Record::Packed { quality: quality.clone(), sha256 };
            return Ok(Some((record, Some(payload))));
        }
        Ok(Some((record, payload)))
    }

    /// What tuning did, once it is done.
    pub fn read_tuned(&self, phase: Phase) -> Result<Option<Tuned>, JournalError> {
        Ok(self.read_phase(phase)?.map(|stored| stored.tuned))
    }

    /// Keeps what tuning made of some tensors, and what it says of them: both, or neither.
    pub fn write_tuned(&self, phase: Phase, tuned: &Tuned, payloads: &Payloads) -> Result<(), JournalError> {
        let mut sha256 = BTreeMap::new();
        for (name, payload) in payloads {
            let bytes = payload.bytes().as_slice();
            self.write_payload(&format!("{name}.{phase}.blr"), bytes)?;
            sha256.insert(name.clone(), hex(&Sha256::digest(bytes)));
        }
        let stored = StoredPhase::new(phase, tuned.clone(), sha256);
        self.write_json(&phase.file(), &stored.map_err(|e| damaged(&self.folder.join(phase.file()), e))?)
    }

    fn read_phase(&self, phase: Phase) -> Result<Option<StoredPhase>, JournalError> {
        let file = self.folder.join(phase.file());
        if !file.is_file() {
            return Ok(None);
        }
        let bytes = fs::read(&file).map_err(|source| JournalError::Io { file: file.clone(), source })?;
        let read: StoredPhase = serde_json::from_slice(&bytes).map_err(|e| damaged(&file, e))?;
        let stored = StoredPhase::new(phase, read.tuned, read.sha256).map_err(|e| damaged(&file, e))?;
        if stored.check != read.check {
            return Err(damaged(&file, "its checksum is that of another record"));
        }
        // A payload that was deleted, for being damaged, is made again with all others.
        let whole =
            stored.sha256.keys().all(|name| self.folder.join(format!("{name}.{phase}.blr")).is_file());
        Ok(whole.then_some(stored))
    }

    /// Forgets what tuning did, for it to be done again.
    pub fn forget(&self, phase: Phase) -> Result<(), JournalError> {
        let file = self.folder.join(phase.file());
        match fs::remove_file(&file) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(JournalError::Io { file, source }),
            _ => Ok(()),
        }
    }

    /// Whether a tensor is finished but for tuning.
    pub fn has_encoded(&self, name: &str) -> Result<bool, JournalError> {
        Ok(self.read_encoded(name)?.is_some())
    }

    /// A payload with this checksum; `None` where there is no such file.
    fn read_payload(&self, name: &str, sha256: &str) -> Result<Option<Payload>, JournalError> {
        let file = self.folder.join(name);
        if !file.is_file() {
            return Ok(None);
        }
        let bytes = fs::read(&file).map_err(|e| damaged(&file, e))?;
        if hex(&Sha256::digest(&bytes)) != *sha256 {
            return Err(damaged(&file, "its checksum is not the recorded one"));
        }
        Payload::parse(Bytes::from(bytes)).map(Some).map_err(|e| damaged(&file, e))
    }

    fn read_encoded(&self, name: &str) -> Result<Option<(Record, Option<Payload>)>, JournalError> {
        let file = self.folder.join(format!("{name}.json"));
        if !file.is_file() {
            return Ok(None);
        }
        let bytes = fs::read(&file).map_err(|source| JournalError::Io { file: file.clone(), source })?;
        let stored: Stored = serde_json::from_slice(&bytes).map_err(|e| damaged(&file, e))?;
        let check = Stored::check(name, &stored.record).map_err(|e| damaged(&file, e))?;
        if (stored.tensor.as_str(), stored.check) != (name, check) {
            return Err(damaged(&file, "it is not what was written for this tensor"));
        }
        let record = stored.record;
        let Record::Packed { sha256, .. } = &record else { return Ok(Some((record, None))) };
        let payload = self.read_payload(&format!("{name}.blr"), sha256)?;
        Ok(payload.map(|payload| (record, Some(payload))))
    }

    pub fn write_packed(
        &self,
        name: &str,
        payload: &Payload,
        quality: Quality,
    ) -> Result<Record, JournalError> {
        let bytes = payload.bytes().as_slice();
        self.write_payload(&format!("{name}.blr"), bytes)?;
        self.write_record(name, Record::Packed { quality, sha256: hex(&Sha256::digest(bytes)) })
    }

    pub fn write_dense(&self, name: &str, reason: String) -> Result<Record, JournalError> {
        self.write_record(name, Record::Dense { reason })
    }

    fn write_record(&self, name: &str, record: Record) -> Result<Record, JournalError> {
        let file = format!("{name}.json");
        let check = Stored::check(name, &record).map_err(|e| damaged(&self.folder.join(&file), e))?;
        let stored = Stored { tensor: name.into(), record, check };
        self.write_json(&file, &stored)?;
        Ok(stored.record)
    }

    /// The calibration text that the model wrote, where it has.
    pub fn read_tokens(&self) -> Result<Option<Vec<u32>>, JournalError> {
        let file = self.folder.join(TOKENS);
        if !file.is_file() {
            return Ok(None);
        }
        let bytes = fs::read(&file).map_err(|source| JournalError::Io { file: file.clone(), source })?;
        let Some((numbers, check)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err(damaged(&file, "it is cut off"));
        };
        if Sha256::digest(numbers).as_slice() != check {
            return Err(damaged(&file, "its checksum is not the recorded one"));
        }
        Ok(Some(numbers.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()))
    }

    pub fn write_tokens(&self, tokens: &[u32]) -> Result<(), JournalError> {
        let mut bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let check = Sha256::digest(&bytes);
        bytes.extend(check.as_slice());
        self.write(TOKENS, &bytes)
    }

    /// What the outputs of each layer count, as binary logarithms, where that was found.
    pub fn read_output_weights(&self) -> Result<Option<Exponents>, JournalError> {
        let file = self.folder.join(OUTPUT_WEIGHTS);
        if !file.is_file() {
            return Ok(None);
        }
        let bytes = fs::read(&file).map_err(|source| JournalError::Io { file: file.clone(), source })?;
        let (exponents, check): (Exponents, String) =
            serde_json::from_slice(&bytes).map_err(|e| damaged(&file, e))?;
        match check_of(&exponents).map_err(|e| damaged(&file, e))? == check {
            true => Ok(Some(exponents)),
            false => Err(damaged(&file, "its checksum is not the recorded one")),
        }
    }

    pub fn write_output_weights(&self, exponents: &Exponents) -> Result<(), JournalError> {
        let file = self.folder.join(OUTPUT_WEIGHTS);
        let check = check_of(exponents).map_err(|e| damaged(&file, e))?;
        self.write_json(OUTPUT_WEIGHTS, &(exponents, check))
    }

    /// Removes the journal once its result is in place; the identity last, so that a kill in between leaves a journal
    /// that still says whose it is.
    pub fn remove(self) -> Result<(), JournalError> {
        let io_error = |source| JournalError::Io { file: self.folder.clone(), source };
        for entry in fs::read_dir(&self.folder).map_err(io_error)? {
            let path = entry.map_err(io_error)?.path();
            match path.file_name() {
                Some(name) if name == IDENTITY || name == LOCK => {}
                _ if path.is_dir() => fs::remove_dir_all(&path).map_err(io_error)?,
                _ => fs::remove_file(&path).map_err(io_error)?,
            }
        }
        fs::remove_dir_all(&self.folder).map_err(io_error)
    }

    /// A payload that means nothing before its record, which is written next, names it.
    fn write_payload(&self, name: &str, bytes: &[u8]) -> Result<(), JournalError> {
        let file = self.folder.join(name);
        write_whole(&file, |out| out.write_all(bytes)).map_err(|source| JournalError::Io { file, source })
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), JournalError> {
        let file = self.folder.join(name);
        write_durably(&file, |out| out.write_all(bytes)).map_err(|source| JournalError::Io { file, source })
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), JournalError> {
        let text = serde_json::to_vec_pretty(value).map_err(|e| damaged(&self.folder.join(name), e))?;
        self.write(name, &text)
    }
}
