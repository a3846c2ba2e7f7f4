//! Checkpoints: a Hugging Face folder or a GGUF file (or its parts), mapped and checked, tensors under Hugging Face names.

mod error;
mod gguf;
mod hf;
mod layout;
mod safetensors;
mod stored;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

pub use error::CheckpointError;
pub(crate) use gguf::{Array as GgufArray, Gguf, Value as GgufValue};

use self::hf::Folder;
use self::layout::{Naming, select};
use super::chat::{ChatError, ChatTemplate};
use super::config::Config;
use super::tensor::Tensor;
use super::text::hex;
use super::tokenizer::{Tokenizer, TokenizerError};
use crate::device::Bytes;
use crate::ops::Dtype;

/// A model on disk: configuration, tensors, tokenizer, chat template.
///
/// Opening maps the files and checks headers, shapes and that every tensor is there; no weight is read or copied.
/// The files must not change while the checkpoint is open.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    config: Config,
    half_dtype: Dtype,
    tensors: BTreeMap<String, Tensor>,
    /// All files by name, in the order of the names; for the fingerprint.
    files: BTreeMap<String, Bytes>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    HuggingFace {
        raw_config: Value,
        chat_template: Option<String>,
        special_tokens: BTreeMap<&'static str, String>,
        extra_files: Vec<PathBuf>,
    },
    Gguf(Gguf),
}

impl Checkpoint {
    /// Opens a folder with config.json and safetensors, or one `.gguf` file.
    ///
    /// # Errors
    /// Says which file, and which tensor where there is one, and what about it. Never panics, whatever the files
    /// hold, and allocates at most a small multiple of the headers.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        if path.is_dir() {
            return Self::from_folder(path, &|name| Bytes::map(&path.join(name)));
        }
        if !path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
            return match path.metadata() {
                Err(source) => Err(CheckpointError::Unreadable { file: path.into(), source }),
                Ok(_) => Err(CheckpointError::NotACheckpoint { path: path.into() }),
            };
        }
        let own = gguf::file_name(path);
        Self::from_gguf_parts(path, &|name| match name == own {
            true => Bytes::map(path),
            false => Bytes::map(&path.with_file_name(name)),
        })
    }

    /// A checkpoint from the bytes of a GGUF file; `path` is what errors call it.
    pub fn from_gguf(path: &Path, file: Bytes) -> Result<Self, CheckpointError> {
        let own = gguf::file_name(path);
        Self::from_gguf_parts(path, &|name| match name == own {
            true => Ok(file.clone()),
            false => Err(io::ErrorKind::NotFound.into()),
        })
    }

    /// A checkpoint from a GGUF file, which may be the first of several parts: `read` maps the name of a file beside
    /// `path`, or its own, to the bytes.
    pub fn from_gguf_parts(
        path: &Path,
        read: &dyn Fn(&str) -> io::Result<Bytes>,
    ) -> Result<Self, CheckpointError> {
        let (mut gguf, files) = gguf::open(path, read)?;
        let config = gguf::config(&gguf)
            .map_err(|source| CheckpointError::Config { file: path.into(), source: Box::new(source) })?;
        let tensors = select(&config, Naming::Gguf, path, std::mem::take(&mut gguf.tensors))?;
        Ok(Self {
            path: path.into(),
            config,
            half_dtype: half_dtype(&tensors, None),
            tensors,
            files,
            source: Source::Gguf(gguf),
        })
    }

    /// A checkpoint from the files of a Hugging Face folder: `read` maps a name to the file's bytes, or to an error
    /// of kind `NotFound`. `path` is what errors call the folder.
    pub fn from_folder(
        path: &Path,
        read: &dyn Fn(&str) -> io::Result<Bytes>,
    ) -> Result<Self, CheckpointError> {
        let mut folder = Folder::new(path, read);
        let (config, raw_config) = hf::config(&mut folder)?;
        let chat_template = hf::chat_template(&mut folder)?;
        let special_tokens = hf::special_tokens(&mut folder)?;
        let (file, stored) = hf::tensors(&mut folder)?;
        let tensors = select(&config, Naming::HuggingFace, &file, stored)?;
        let extra_files = hf::extra_files(&mut folder)?;
        Ok(Self {
            path: path.into(),
            half_dtype: half_dtype(&tensors, Some(&raw_config)),
            config,
            tensors,
            files: folder.into_files(),
            source: Source::HuggingFace { raw_config, chat_template, special_tokens, extra_files },
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tensor of this Hugging Face name; its bytes are shared, not copied.
    pub fn tensor(&self, name: &str) -> Result<Tensor, CheckpointError> {
        self.tensors
            .get(name)
            .cloned()
            .ok_or_else(|| CheckpointError::NoSuchTensor { path: self.path.clone(), tensor: name.into() })
    }

    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The names of all tensors that the decoder reads, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The 16-bit type for what stays dense: that of the embedding, else the one config.json declares, else F16.
    pub fn half_dtype(&self) -> Dtype {
        self.half_dtype
    }

    /// config.json as it was read; `None` for GGUF.
    pub fn raw_config(&self) -> Option<&Value> {
        match &self.source {
            Source::HuggingFace { raw_config, .. } => Some(raw_config),
            Source::Gguf(_) => None,
        }
    }

    /// The tokenizer and generation files of a Hugging Face folder that a copy of the model needs too.
    pub fn extra_files(&self) -> &[PathBuf] {
        match &self.source {
            Source::HuggingFace { extra_files, .. } => extra_files,
            Source::Gguf(_) => &[],
        }
    }

    /// The chat template, in Jinja.
    pub fn chat_template(&self) -> Option<String> {
        match &self.source {
            Source::HuggingFace { chat_template, .. } => chat_template.clone(),
            Source::Gguf(gguf) => gguf.metadata.get("tokenizer.chat_template")?.str().map(str::to_owned),
        }
    }

    /// The chat template, ready to render conversations.
    ///
    /// # Errors
    /// There is none, or it is no Jinja.
    pub fn chat(&self, tokenizer: &Tokenizer) -> Result<ChatTemplate, ChatError> {
        let source = self.chat_template().ok_or_else(|| ChatError::NoTemplate { path: self.path.clone() })?;
        ChatTemplate::new(&source, self.special_tokens(tokenizer))
    }

    /// The texts of special tokens by the names that chat templates have for them: those that the tokenizer's files name,
    /// else those of the configuration's ids.
    pub fn special_tokens(&self, tokenizer: &Tokenizer) -> BTreeMap<&'static str, String> {
        let mut tokens = match &self.source {
            Source::HuggingFace { special_tokens, .. } => special_tokens.clone(),
            Source::Gguf(gguf) => gguf_special_tokens(gguf, tokenizer),
        };
        let of_config = [("bos_token", self.config.bos), ("eos_token", self.config.eos.first().copied())];
        for (name, id) in of_config {
            if let Some(text) = id.and_then(|id| tokenizer.token(id)).filter(|_| !tokens.contains_key(name)) {
                tokens.insert(name, text);
            }
        }
        tokens
    }

    /// Tokens that end a text: those of the configuration, and the tokenizer's own.
    pub fn ends(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let mut ends = self.config.eos.clone();
        let own = self.special_tokens(tokenizer).get("eos_token").and_then(|text| tokenizer.token_id(text));
        ends.extend(own.filter(|own| !ends.contains(own)));
        ends
    }

    /// Builds the tokenizer from tokenizer.json or from GGUF metadata.
    ///
    /// # Errors
    /// A missing or damaged tokenizer, an unknown kind, or token ids past the last row of the embedding.
    pub fn tokenizer(&self) -> Result<Tokenizer, CheckpointError> {
        let (file, built) = match &self.source {
            Source::Gguf(gguf) => (self.path.clone(), Tokenizer::from_gguf(gguf)),
            Source::HuggingFace { .. } => {
                let file = self.path.join(hf::TOKENIZER);
                let Some(json) = self.files.get(hf::TOKENIZER) else {
                    let source = io::ErrorKind::NotFound.into();
                    return Err(CheckpointError::Unreadable { file, source });
                };
                (file, Tokenizer::from_json(json.as_slice()))
            }
        };
        let built = built.and_then(|tokenizer| match tokenizer.vocab_len() {
            tokens if tokens <= self.config.vocab => Ok(tokenizer),
            tokens => Err(TokenizerError::LargerThanEmbedding { tokens, rows: self.config.vocab }),
        });
        built.map_err(|source| CheckpointError::Tokenizer { file, source })
    }

    /// SHA-256, in hexadecimal, over every file that the model is made of: per file its name, a zero byte, its
    /// length as u64, and its bytes. A GGUF file counts as `model.gguf`, a part of one as `model-00001-of-00003.gguf`, so that
    /// a renamed copy is the same model.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for (name, bytes) in &self.files {
            hash.update(name.as_bytes());
            hash.update([0]);
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes.as_slice());
        }
        hex(&hash.finalize())
    }
}

fn gguf_special_tokens(gguf: &Gguf, tokenizer: &Tokenizer) -> BTreeMap<&'static str, String> {
    let keys = [
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
    ];
    let text = |key: &str| {
        let id = gguf.metadata.get(key)?.unsigned()?;
        tokenizer.token(u32::try_from(id).ok()?)
    };
    keys.into_iter().filter_map(|(name, key)| Some((name, text(key)?))).collect()
}

fn half_dtype(tensors: &BTreeMap<String, Tensor>, raw_config: Option<&Value>) -> Dtype {
    let declared = raw_config.and_then(|raw| raw.get("torch_dtype").or(raw.get("dtype")));
    match tensors["model.embed_tokens.weight"].dtype {
        Dtype::Bf16 => Dtype::Bf16,
        Dtype::F32 if declared.and_then(Value::as_str) == Some("bfloat16") => Dtype::Bf16,
        _ => Dtype::F16,
    }
}
