use std::io;
use std::path::PathBuf;

/// Why a model cannot be brought here. What can be done without this program is part of each that a network causes.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error(
        "{name}: there is no such file or folder; if it is a model on huggingface.co: this build does not download (build it \
         with `cargo install --path . --features hub`), so {by_hand}"
    )]
    NotBuilt { name: String, by_hand: String },
    #[error("{endpoint} cannot be reached ({problem}) and {id} is not in the cache {cache}; {by_hand}")]
    Offline { endpoint: String, problem: String, id: String, cache: PathBuf, by_hand: String },
    #[error(
        "{id}: there is no such file or folder here, and {endpoint} says {status}: the model or revision does not exist, or \
         it asks for a token: accept its terms there and set HF_TOKEN"
    )]
    Refused { id: String, endpoint: String, status: u16 },
    #[error("{url}: the server answers {status}; try again later")]
    Status { url: String, status: u16 },
    #[error("{url}: {problem}")]
    Answer { url: String, problem: String },
    #[error("{id} has no safetensors and no GGUF file that this program could read")]
    NoWeights { id: String },
    #[error("{id} has several GGUF files, name one of them: {files}")]
    Several { id: String, files: String },
    #[error("{id} has no file `{file}`; it has {files}")]
    NoFile { id: String, file: String, files: String },
    #[error("{file} came to {got} bytes of {expected} ({problem}); run again, it continues where it stopped")]
    Incomplete { file: PathBuf, got: u64, expected: u64, problem: String },
    #[error(
        "{file} has the SHA-256 {found} where {expected} was announced; it was removed, run again to fetch it anew"
    )]
    Checksum { file: PathBuf, found: String, expected: String },
    #[error("{file} is being fetched by another process; wait for it")]
    Busy { file: PathBuf },
    #[error("{file}: {source}")]
    Io { file: PathBuf, source: io::Error },
    #[error("the variable {variable} {problem}")]
    Variable { variable: &'static str, problem: &'static str },
}
