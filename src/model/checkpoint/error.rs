use std::path::{Path, PathBuf};

use crate::model::config::ConfigError;
use crate::model::tokenizer::TokenizerError;

/// Why a checkpoint cannot be used: which file, which tensor, and what about it.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(
        "{path}: not a checkpoint: give a folder with config.json and model.safetensors, or a .gguf file"
    )]
    NotACheckpoint { path: PathBuf },
    #[error("{file}: cannot be read: {source}")]
    Unreadable { file: PathBuf, source: std::io::Error },
    #[error("{file}: {problem}; the file is damaged or incomplete, fetch it again")]
    Malformed { file: PathBuf, problem: String },
    #[error("{file}: tensor `{tensor}`: {problem}")]
    Tensor { file: PathBuf, tensor: String, problem: String },
    #[error("{file}: tensor `{tensor}` is stored as {dtype}; this version reads {supported}")]
    UnsupportedType { file: PathBuf, tensor: String, dtype: String, supported: &'static str },
    #[error("{file}: {count} files that it lists are not in the folder, fetch them: {names}")]
    MissingShards { file: PathBuf, count: usize, names: String },
    #[error("{file}: {problem}")]
    Parts { file: PathBuf, problem: String },
    #[error("{file}: {count} tensors that a {family} model needs are missing: {names}")]
    MissingTensors { file: PathBuf, family: &'static str, count: usize, names: String },
    #[error("{file}: {count} tensors belong to nothing that the {family} decoder computes: {names}")]
    UnknownTensors { file: PathBuf, family: &'static str, count: usize, names: String },
    #[error("{file}: {source}")]
    Config { file: PathBuf, source: Box<ConfigError> },
    #[error("{file}: {source}")]
    Tokenizer { file: PathBuf, source: TokenizerError },
    #[error("there is no tensor `{tensor}` in {path}")]
    NoSuchTensor { path: PathBuf, tensor: String },
}

/// A [`CheckpointError`] before the file is known.
#[derive(Debug)]
pub(crate) enum Fault {
    File(String),
    Tensor { tensor: String, problem: String },
    Type { tensor: String, dtype: String, supported: &'static str },
}

impl Fault {
    pub(crate) fn tensor(tensor: &str, problem: impl Into<String>) -> Self {
        Self::Tensor { tensor: shortened(tensor), problem: problem.into() }
    }

    pub(crate) fn dtype(tensor: &str, dtype: &str, supported: &'static str) -> Self {
        Self::Type { tensor: shortened(tensor), dtype: shortened(dtype), supported }
    }

    pub(crate) fn in_file(self, file: &Path) -> CheckpointError {
        let file = file.to_owned();
        match self {
            Self::File(problem) => CheckpointError::Malformed { file, problem },
            Self::Tensor { tensor, problem } => CheckpointError::Tensor { file, tensor, problem },
            Self::Type { tensor, dtype, supported } => {
                CheckpointError::UnsupportedType { file, tensor, dtype, supported }
            }
        }
    }
}

impl From<String> for Fault {
    fn from(problem: String) -> Self {
        Self::File(problem)
    }
}

/// A name from a file as an error message can show it: control characters escaped, at most 120 characters.
pub(crate) fn shortened(name: &str) -> String {
    const MOST: usize = 120;
    let cut = name.char_indices().nth(MOST).map_or(name.len(), |(at, _)| at);
    let mut shown = name[..cut].escape_debug().to_string();
    if cut < name.len() {
        shown.push('…');
    }
    shown
}

/// A list for an error message that counts every name and shows the first [`NameList::SHOWN`].
#[derive(Default)]
pub(crate) struct NameList {
    pub count: usize,
    shown: String,
}

impl NameList {
    pub const SHOWN: usize = 100;

    pub fn push(&mut self, name: &str) {
        if self.count < Self::SHOWN {
            if self.count > 0 {
                self.shown.push_str(", ");
            }
            self.shown.push_str(&shortened(name));
        }
        self.count += 1;
    }

    pub fn finish(mut self) -> String {
        if self.count > Self::SHOWN {
            self.shown.push_str(&format!(" and {} more", self.count - Self::SHOWN));
        }
        self.shown
    }
}
