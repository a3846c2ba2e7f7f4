use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error(
        "{folder} holds an interrupted run; continue it with --resume, or delete that folder to start again"
    )]
    Interrupted { folder: PathBuf },
    #[error("there is nothing to resume: {folder} does not exist; run without --resume")]
    Nothing { folder: PathBuf },
    #[error(
        "{folder} is where an unfinished run is kept, and holds files that are of none (no identity.json): choose another \
         output, or move that folder away"
    )]
    Unknown { folder: PathBuf },
    #[error("{folder} is in use by another run; wait for it, or choose another output folder")]
    InUse { folder: PathBuf },
    #[error(
        "{folder} belongs to a run with another {what}; repeat the command that began it, or delete the folder \
         to start again"
    )]
    Foreign { folder: PathBuf, what: String },
    #[error("{file} is damaged ({problem}); delete it and resume, and that part is computed again")]
    Damaged { file: PathBuf, problem: String },
    #[error("{file} is damaged ({problem}); delete the folder {folder} to start again")]
    Identity { folder: PathBuf, file: PathBuf, problem: String },
    #[error("{folder} cannot be begun: {source}; choose an output folder that can be written")]
    Begin { folder: PathBuf, source: io::Error },
    #[error(
        "{file}: {source}; what was finished is safe, free some space or mend the folder and run again with --resume"
    )]
    Io { file: PathBuf, source: io::Error },
}

pub(super) fn damaged(file: &Path, problem: impl ToString) -> JournalError {
    JournalError::Damaged { file: file.into(), problem: problem.to_string() }
}
