//! Batteries of fits: atoms x shapes x seeds over files or over the blocks of a model, resumable after a kill at any moment.
//!
//! | file | job |
//! |---|---|
//! | `battery` | BATTERY.toml, and the fits that it asks for |
//! | `origins` | what the files were: fits of others are not mixed |
//! | `rows` | what is fitted: files, streamed shards, or a model's residual stream |
//! | `held_out` | whether held-out rows vary by more than rounding |
//! | `run` | the fits that are missing: wide ones many in a launch, the others on threads |
//! | `journal` | a finished fit is on disk, whole |
//! | `table` | CSV and one page of HTML, from the journal alone |

mod battery;
mod held_out;
mod journal;
mod origins;
mod rows;
mod run;
mod table;

pub use battery::{Cell, Files, Fits, Method, Rows, SweepFile};
pub use journal::{Begin, Holds, Journal, Origins, Record, State};
pub use origins::Origin;
pub use run::{Progress, SweepParams, run};
pub use table::{csv, page};

use std::path::PathBuf;

use super::ExplainError;
use crate::atoms::AtomsError;

/// Why a battery cannot run. A fit that fails is none of these: it has its line in the table.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    #[error("{file}: {what}")]
    File { file: PathBuf, what: String },
    #[error("{file} is no battery: {what}")]
    Battery { file: PathBuf, what: String },
    #[error("{folder} holds another battery; choose another folder, or delete it to start again")]
    Foreign { folder: PathBuf },
    #[error("{folder} exists already and holds no battery's fits: choose another folder, or move it away")]
    Occupied { folder: PathBuf },
    #[error("{folder} holds fits of this battery; continue them with --resume, or delete it to start again")]
    Interrupted { folder: PathBuf },
    #[error("{folder} is in use by another run; wait for it, or choose another folder")]
    InUse { folder: PathBuf },
    #[error(
        "{file} is not the file that fits in {folder} were made of: put that one back, choose another folder, or \
         delete {folder} to start again"
    )]
    Changed { folder: PathBuf, file: PathBuf },
    #[error(
        "the held-out rows do not vary by more than rounding; hold out more (held_out) or look at the rows"
    )]
    Flat,
    #[error(transparent)]
    Atoms(#[from] AtomsError),
    #[error(transparent)]
    Explain(#[from] ExplainError),
    #[error("{model}: {what}")]
    Model { model: PathBuf, what: String },
}
