use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Cell, Origin, SweepError, SweepFile};
use crate::device::write_durably;

/// What is known of a fit. No times: an interrupted and continued battery gives the same table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    #[serde(flatten)]
    pub cell: Cell,
    #[serde(flatten)]
    pub state: State,
}

/// How a fit went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum State {
    Fitted {
        /// How it ended
        outcome: String,
        /// Explained variance on held-out rows; on the fit rows where none are held out
        explained: f64,
        /// Mean number of active atoms in those rows
        l0: f64,
        /// Share of atoms that are on in next to no row
        dead: f64,
        /// What was found: "3 circles, 1 line"
        found: String,
    },
    Failed {
        error: String,
    },
}

impl State {
    /// Itself, or the failure that it is: explained variance is not a number where held-out rows do not vary or are not
    /// finite.
    pub(super) fn checked(self) -> Self {
        match self {
            Self::Fitted { explained, .. } if !explained.is_finite() => Self::Failed {
                error: format!(
                    "explained variance is {explained}: the held-out rows do not vary, or are not finite; hold out more \
                     (held_out) or look at the rows"
                ),
            },
            state => state,
        }
    }
}

/// The folder of a battery: `battery.json`, `sources.json` (what its files were), and `fits/NUMBER.json` for each that is done;
/// where dictionaries are kept, before it `dictionaries/NUMBER.safetensors`. A file is whole or not there. `lock` is held while
/// a run uses the folder.
pub struct Journal {
    folder: PathBuf,
    dictionaries: bool,
    /// Released when the process ends, however it ends.
    _lock: File,
}

/// What each source of a battery was, file by file; nothing of a file that cannot be read.
pub type Origins = Vec<Vec<Option<Origin>>>;

/// What a folder holds for a battery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// No fit of any battery, failed ones aside
    Nothing,
    /// Fits of this battery
    Fits,
}

const BATTERY: &str = "battery.json";
const SOURCES: &str = "sources.json";
const LOCK: &str = "lock";

/// Whether a folder with fits in it may be gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    Anew,
    Resume,
}

impl Journal {
    /// What a folder holds for a battery. Changes nothing.
    ///
    /// # Errors
    /// Another battery's fits; fits of this one where none are expected; a folder of something else.
    pub fn look(folder: &Path, battery: &SweepFile, begin: Begin) -> Result<Holds, SweepError> {
        let folder_is = || folder.to_owned();
        let failed = |what: String| SweepError::File { file: folder.join(BATTERY), what };
        match fs::read_to_string(folder.join(BATTERY)) {
            Ok(_) if !holds_fits(folder) => Ok(Holds::Nothing),
            Ok(known) if known != battery.identity => Err(SweepError::Foreign { folder: folder_is() }),
            Ok(_) if begin == Begin::Anew => Err(SweepError::Interrupted { folder: folder_is() }),
            Ok(_) => Ok(Holds::Fits),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed(format!("cannot be read: {error}")))
            }
            Err(_) if fs::read_dir(folder.join("fits")).is_ok_and(|mut fits| fits.next().is_some()) => {
                Err(failed(
                    "is missing beside fits, so nothing tells whose they are; choose another folder".into(),
                ))
            }
            // A run that ended before it said whose it is leaves an empty folder of fits, and perhaps a temporary file.
            Err(_) if holds_other_things(folder) => Err(SweepError::Occupied { folder: folder_is() }),
            Err(_) => Ok(Holds::Nothing),
        }
    }

    /// Opens the folder of a battery, made where it is missing, and taken over where it holds no fits.
    ///
    /// # Errors
    /// As [`Self::look`]'s; fits of sources that were others; a folder that cannot be written, or that a run uses.
    pub fn open(
        folder: &Path,
        battery: &SweepFile,
        origins: &Origins,
        begin: Begin,
    ) -> Result<Self, SweepError> {
        Self::look(folder, battery, begin)?;
        let failed =
            |e: io::Error| SweepError::File { file: folder.into(), what: format!("cannot be made: {e}") };
        fs::create_dir_all(folder.join("fits")).map_err(failed)?;
        let lock = File::create(folder.join(LOCK)).map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => SweepError::InUse { folder: folder.into() },
            TryLockError::Error(e) => failed(e),
        })?;
        let journal = Self { folder: folder.into(), dictionaries: battery.fits.dictionaries, _lock: lock };
        // Again: what was there before may have changed until it was locked.
        match Self::look(folder, battery, begin)? {
            Holds::Nothing => {
                journal.clear()?;
                journal.write_file(folder.join(BATTERY), battery.identity.as_bytes())?;
                journal.write_origins(origins)?;
            }
            Holds::Fits => {
                let known = journal.read_origins()?;
                let merged = journal.merged(battery, &known, origins)?;
                if merged != known {
                    journal.write_origins(&merged)?;
                }
            }
        }
        Ok(journal)
    }

    /// Removes failed fits of an earlier battery.
    fn clear(&self) -> Result<(), SweepError> {
        for file in files_in(&self.folder.join("fits")).filter(|file| is_record(file)) {
            fs::remove_file(&file)
                .map_err(|e| SweepError::File { file, what: format!("cannot be removed: {e}") })?;
        }
        Ok(())
    }

    fn read_origins(&self) -> Result<Origins, SweepError> {
        let file = self.folder.join(SOURCES);
        let read = fs::read(&file).map_err(|e| e.to_string());
        read.and_then(|text| serde_json::from_slice(&text).map_err(|e| e.to_string())).map_err(|e| {
            let what = format!("does not tell what the fits were made of ({e}); choose another folder");
            SweepError::File { file, what }
        })
    }

    fn write_origins(&self, origins: &Origins) -> Result<(), SweepError> {
        let file = self.folder.join(SOURCES);
        let text = serde_json::to_vec_pretty(origins)
            .map_err(|e| SweepError::File { file: file.clone(), what: e.to_string() })?;
        self.write_file(file, &text)
    }

    fn write_file(&self, file: PathBuf, text: &[u8]) -> Result<(), SweepError> {
        write_durably(&file, |out| out.write_all(text))
            .map_err(|e| SweepError::File { file, what: format!("cannot be written: {e}") })
    }

    /// What the sources are from now on. Those with fits stay what they were, and must be that unless they cannot be read;
    /// the others may have been mended.
    fn merged(&self, battery: &SweepFile, known: &Origins, now: &Origins) -> Result<Origins, SweepError> {
        let mut merged = now.clone();
        for (number, cell) in battery.cells().iter().enumerate() {
            let fitted = matches!(self.read(number, cell)?, Some(Record { state: State::Fitted { .. }, .. }));
            if !fitted {
                continue;
            }
            let was = known.get(cell.source).map_or(&[][..], Vec::as_slice);
            for (k, file) in battery.paths(cell.source).into_iter().enumerate() {
                let (was, is) = (was.get(k).cloned().flatten(), &mut merged[cell.source][k]);
                if is.is_some() && *is != was {
                    return Err(SweepError::Changed { folder: self.folder.clone(), file: file.into() });
                }
                *is = was;
            }
        }
        Ok(merged)
    }

    fn file(&self, number: usize) -> PathBuf {
        self.folder.join("fits").join(format!("{number:06}.json"))
    }

    /// Where the dictionary of a fit is.
    pub fn dictionary(&self, number: usize) -> PathBuf {
        self.folder.join("dictionaries").join(format!("{number:06}.safetensors"))
    }

    /// Where the dictionary of a fit goes, its folder made.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn place_dictionary(&self, number: usize) -> Result<PathBuf, SweepError> {
        let (folder, file) = (self.folder.join("dictionaries"), self.dictionary(number));
        fs::create_dir_all(&folder)
            .map_err(|e| SweepError::File { file: folder, what: format!("cannot be made: {e}") })?;
        Ok(file)
    }

    /// The fit of a number, where it is done; where dictionaries are kept, with its own.
    ///
    /// # Errors
    /// A file that is not what was written.
    pub fn read(&self, number: usize, cell: &Cell) -> Result<Option<Record>, SweepError> {
        let file = self.file(number);
        let Ok(text) = fs::read(&file) else { return Ok(None) };
        let damaged = |what: String| SweepError::File {
            file: file.clone(),
            what: format!("is damaged ({what}); delete it and resume, and that fit is made again"),
        };
        let record: Record = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        if record.cell != *cell {
            return Err(damaged("it is another fit".into()));
        }
        let fitted = matches!(record.state, State::Fitted { .. });
        let lacks = self.dictionaries && fitted && !self.dictionary(number).is_file();
        Ok(Some(record).filter(|_| !lacks))
    }

    /// Keeps a fit.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, number: usize, record: &Record) -> Result<(), SweepError> {
        let file = self.file(number);
        let failed = |what: String| SweepError::File { file: file.clone(), what };
        let text = serde_json::to_vec_pretty(record).map_err(|e| failed(e.to_string()))?;
        write_durably(&file, |out| out.write_all(&text))
            .map_err(|e| failed(format!("cannot be written: {e}; what was finished is safe, resume later")))
    }
}

fn files_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path())
}

fn is_record(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "json")
}

/// Whether a folder holds a fit that did not fail, or a dictionary; a file that cannot be read counts as one.
fn holds_fits(folder: &Path) -> bool {
    let failed = |file: &Path| {
        let record = fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        matches!(record, Some(Record { state: State::Failed { .. }, .. }))
    };
    files_in(&folder.join("fits")).any(|file| is_record(&file) && !failed(&file))
        || files_in(&folder.join("dictionaries")).next().is_some()
}

/// Whether a folder holds what no sweep makes before it says whose it is.
fn holds_other_things(folder: &Path) -> bool {
    let own = |entry: &fs::DirEntry| match entry.file_name().to_string_lossy().as_ref() {
        "fits" => true,
        LOCK => entry.metadata().is_ok_and(|lock| lock.is_file() && lock.len() == 0),
        name => name.starts_with("battery.json."),
    };
    match fs::read_dir(folder) {
        Ok(entries) => entries.filter_map(Result::ok).any(|entry| !own(&entry)),
        Err(_) => folder.symlink_metadata().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explained_variance_that_is_no_number_is_a_failure_that_can_be_read_again() {
        for explained in [f64::NAN, f64::NEG_INFINITY] {
            let (outcome, found) = (String::new(), String::new());
            let state = State::Fitted { outcome, explained, l0: 1.0, dead: 0.0, found }.checked();
            let text = serde_json::to_string(&state).unwrap();
            assert!(text.contains("the held-out rows do not vary"), "{text}");
            assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
        }
    }
}
