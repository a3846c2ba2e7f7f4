use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Cell, SweepError, SweepFile};
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

/// The folder of a battery: `battery.json`, and `fits/NUMBER.json` for each that is done; where dictionaries are kept, before it
/// `dictionaries/NUMBER.safetensors`. A file is whole or not there.
pub struct Journal {
    folder: PathBuf,
}

/// Whether a folder with fits in it may be gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    Anew,
    Resume,
}

impl Journal {
    /// Opens the folder of a battery, made where it is missing.
    ///
    /// # Errors
    /// Another battery's folder; fits of this one where none are expected; a folder that cannot be written.
    pub fn open(folder: &Path, battery: &SweepFile, begin: Begin) -> Result<Self, SweepError> {
        let journal = Self { folder: folder.into() };
        let identity = folder.join("battery.json");
        let failed = |what: String| SweepError::File { file: identity.clone(), what };
        let text = &battery.identity;
        match std::fs::read_to_string(&identity) {
            Ok(known) if known != *text => return Err(SweepError::Foreign { folder: folder.into() }),
            Ok(_) if begin == Begin::Anew => return Err(SweepError::Interrupted { folder: folder.into() }),
            Ok(_) => {}
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(format!("cannot be read: {error}")));
            }
            Err(_) if std::fs::read_dir(folder.join("fits")).is_ok_and(|mut fits| fits.next().is_some()) => {
                return Err(failed(
                    "is missing beside fits, so nothing tells whose they are; choose another folder".into(),
                ));
            }
            // A run that ended before it said whose it is leaves an empty folder of fits, and perhaps a temporary file.
            Err(_) if holds_other_things(folder) => {
                return Err(SweepError::Occupied { folder: folder.into() });
            }
            Err(_) => {
                std::fs::create_dir_all(folder.join("fits"))
                    .map_err(|e| failed(format!("cannot be made: {e}")))?;
                write_durably(&identity, |out| out.write_all(text.as_bytes()))
                    .map_err(|e| failed(format!("cannot be written: {e}")))?;
            }
        }
        Ok(journal)
    }

    fn file(&self, number: usize) -> PathBuf {
        self.folder.join("fits").join(format!("{number:06}.json"))
    }

    /// Where the dictionary of a fit goes.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn dictionary(&self, number: usize) -> Result<PathBuf, SweepError> {
        let folder = self.folder.join("dictionaries");
        match std::fs::create_dir_all(&folder) {
            Ok(()) => Ok(folder.join(format!("{number:06}.safetensors"))),
            Err(e) => Err(SweepError::File { file: folder, what: format!("cannot be made: {e}") }),
        }
    }

    /// The fit of a number, where it is done.
    ///
    /// # Errors
    /// A file that is not what was written.
    pub fn read(&self, number: usize, cell: &Cell) -> Result<Option<Record>, SweepError> {
        let file = self.file(number);
        let Ok(text) = std::fs::read(&file) else { return Ok(None) };
        let damaged = |what: String| SweepError::File {
            file: file.clone(),
            what: format!("is damaged ({what}); delete it and resume, and that fit is made again"),
        };
        let record: Record = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        if record.cell == *cell { Ok(Some(record)) } else { Err(damaged("it is another fit".into())) }
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

/// Whether a folder holds what no sweep makes before it says whose it is.
fn holds_other_things(folder: &Path) -> bool {
    let other =
        |name: std::ffi::OsString| name != "fits" && !name.to_string_lossy().starts_with("battery.json.");
    match std::fs::read_dir(folder) {
        Ok(entries) => entries.filter_map(Result::ok).any(|entry| other(entry.file_name())),
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
