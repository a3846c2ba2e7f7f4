use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

use super::CheckpointError;
use super::error::{Fault, NameList, shortened};
use super::safetensors;
use super::stored::Stored;
use crate::device::Bytes;
use crate::model::config::{Config, ConfigError, TokenIds};

pub(super) const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";
const CHAT_TEMPLATE_JSON: &str = "chat_template.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Files that are copied along with a model, apart from its configuration and weights.
const EXTRA: [&str; 8] = [
    TOKENIZER,
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    GENERATION,
    CHAT_TEMPLATE,
    CHAT_TEMPLATE_JSON,
    "vocab.json",
    "merges.txt",
];
/// Largest config.json and generation_config.json, in bytes. Real ones have kilobytes, and a tree of JSON takes up to
/// a hundred times the memory of its text.
const MAX_SETTINGS: usize = 1 << 20;
/// Largest tokenizer_config.json, in bytes: some list thousands of reserved tokens.
const MAX_TOKENIZER_CONFIG: usize = 16 << 20;

/// The files of a checkpoint folder, remembered as they are read.
pub(super) struct Folder<'a> {
    path: &'a Path,
    read: &'a dyn Fn(&str) -> io::Result<Bytes>,
    files: BTreeMap<String, Bytes>,
}

impl<'a> Folder<'a> {
    pub fn new(path: &'a Path, read: &'a dyn Fn(&str) -> io::Result<Bytes>) -> Self {
        Self { path, read, files: BTreeMap::new() }
    }

    pub fn into_files(self) -> BTreeMap<String, Bytes> {
        self.files
    }

    fn required(&mut self, name: &str) -> Result<Bytes, CheckpointError> {
        let unreadable = |source| CheckpointError::Unreadable { file: self.path.join(name), source };
        match self.files.get(name) {
            Some(bytes) => Ok(bytes.clone()),
            None => {
                let bytes = (self.read)(name).map_err(unreadable)?;
                self.files.insert(name.into(), bytes.clone());
                Ok(bytes)
            }
        }
    }

    /// `None` where there is no such file; any other trouble is an error.
    fn optional(&mut self, name: &str) -> Result<Option<Bytes>, CheckpointError> {
        match self.required(name) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(CheckpointError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn malformed(&self, name: &str, problem: impl fmt::Display) -> CheckpointError {
        CheckpointError::Malformed { file: self.path.join(name), problem: problem.to_string() }
    }

    /// A small JSON file as a type of its own.
    fn json<T: for<'de> Deserialize<'de>>(&mut self, name: &str) -> Result<Option<T>, CheckpointError> {
        let Some(bytes) = self.optional(name)? else { return Ok(None) };
        self.check_size(name, &bytes)?;
        serde_json::from_slice(bytes.as_slice()).map(Some).map_err(|error| self.malformed(name, error))
    }

    fn check_size(&self, name: &str, bytes: &Bytes) -> Result<(), CheckpointError> {
        let most = if name == TOKENIZER_CONFIG { MAX_TOKENIZER_CONFIG } else { MAX_SETTINGS };
        if bytes.len() > most {
            return Err(self.malformed(
                name,
                format!("{} bytes are more than the {most} of real settings", bytes.len()),
            ));
        }
        Ok(())
    }
}

/// The configuration, completed from the generation and tokenizer files, and config.json itself.
pub(super) fn config(folder: &mut Folder) -> Result<(Config, Value), CheckpointError> {
    let bytes = folder.optional(CONFIG)?;
    let bytes = bytes.ok_or_else(|| CheckpointError::NotACheckpoint { path: folder.path.into() })?;
    folder.check_size(CONFIG, &bytes)?;
    let file = folder.path.join(CONFIG);
    let text = std::str::from_utf8(bytes.as_slice()).map_err(|error| folder.malformed(CONFIG, error))?;
    let wrong = |source| CheckpointError::Config { file: file.clone(), source: Box::new(source) };
    let mut config = Config::from_hf_json(text).map_err(wrong)?;
    let raw = serde_json::from_str(text).map_err(|error| wrong(ConfigError::Json(error)))?;
    if let Some(eos) = folder.json::<Generation>(GENERATION)?.and_then(|generation| generation.eos_token_id) {
        // Both files may name tokens that the other forgets; those for generation come first.
        let of_config = std::mem::replace(&mut config.eos, eos.into_vec());
        for id in of_config {
            if !config.eos.contains(&id) {
                config.eos.push(id);
            }
        }
    }
    config.add_bos = adds_bos(folder, &config)?;
    if config.add_bos && config.bos.is_none() {
        return Err(wrong(ConfigError::Missing { key: "bos_token_id".into() }));
    }
    Ok((config.validate().map_err(wrong)?, raw))
}

/// The chat template: its own file where there is one (Jinja before JSON), else the one in tokenizer_config.json; of
/// several, the one called `default`.
pub(super) fn chat_template(folder: &mut Folder) -> Result<Option<String>, CheckpointError> {
    if let Some(bytes) = folder.optional(CHAT_TEMPLATE)? {
        let text =
            std::str::from_utf8(bytes.as_slice()).map_err(|error| folder.malformed(CHAT_TEMPLATE, error))?;
        return Ok(Some(text.into()));
    }
    let own = folder.json::<TemplateFile>(CHAT_TEMPLATE_JSON)?.and_then(|file| file.chat_template);
    let template = match own {
        Some(template) => Some(template),
        None => folder.json::<TokenizerConfig>(TOKENIZER_CONFIG)?.and_then(|config| config.chat_template),
    };
    Ok(template.and_then(|template| match template {
        ChatTemplate::One(text) => Some(text),
        ChatTemplate::Named(list) => {
            list.into_iter().find(|named| named.name == "default").map(|named| named.template)
        }
    }))
}

/// The texts of special tokens that tokenizer_config.json names, as chat templates call them.
pub(super) fn special_tokens(folder: &mut Folder) -> Result<BTreeMap<&'static str, String>, CheckpointError> {
    let Some(config) = folder.json::<TokenizerConfig>(TOKENIZER_CONFIG)? else { return Ok(BTreeMap::new()) };
    let named = [
        ("bos_token", config.bos_token),
        ("eos_token", config.eos_token),
        ("unk_token", config.unk_token),
        ("pad_token", config.pad_token),
    ];
    let named = named.into_iter().filter_map(|(name, token)| Some((name, token?)));
    Ok(named
        .map(|(name, token)| match token {
            TokenText::Plain(text) | TokenText::Described { content: text } => (name, text),
        })
        .collect())
}

/// The file that lists the tensors, and all tensors of the one file or of the shards.
pub(super) fn tensors(folder: &mut Folder) -> Result<(PathBuf, BTreeMap<String, Stored>), CheckpointError> {
    if let Some(bytes) = folder.optional(WEIGHTS)? {
        let file = folder.path.join(WEIGHTS);
        let tensors = safetensors::parse(&bytes).map_err(|fault| fault.in_file(&file))?;
        return Ok((file, tensors));
    }
    let file = folder.path.join(INDEX);
    let bytes = folder.optional(INDEX)?.ok_or_else(|| {
        let problem = format!("neither {WEIGHTS} nor {INDEX} is there");
        CheckpointError::Unreadable {
            file: folder.path.into(),
            source: io::Error::new(io::ErrorKind::NotFound, problem),
        }
    })?;
    let shards = shards(&bytes).map_err(|fault| fault.in_file(&file))?;
    let mut missing = NameList::default();
    for shard in shards.keys() {
        if folder.optional(shard)?.is_none() {
            missing.push(shard);
        }
    }
    if missing.count > 0 {
        let (count, names) = (missing.count, missing.finish());
        return Err(CheckpointError::MissingShards { file, count, names });
    }
    let mut tensors = BTreeMap::new();
    for (shard, names) in shards {
        let bytes = folder.required(&shard)?;
        let shard_file = folder.path.join(&shard);
        let mut held = safetensors::parse(&bytes).map_err(|fault| fault.in_file(&shard_file))?;
        for name in names {
            let tensor = held.remove(&name).ok_or_else(|| {
                Fault::tensor(&name, format!("is not in {shard}, where the index says it is")).in_file(&file)
            })?;
            tensors.insert(name, tensor);
        }
        if let Some(name) = held.keys().next() {
            return Err(
                Fault::tensor(name, format!("is in the file, but not in {INDEX}")).in_file(&shard_file)
            );
        }
    }
    Ok((file, tensors))
}

/// The paths of those of the [`EXTRA`] files that exist.
pub(super) fn extra_files(folder: &mut Folder) -> Result<Vec<PathBuf>, CheckpointError> {
    let mut paths = Vec::new();
    for name in EXTRA {
        if folder.optional(name)?.is_some() {
            paths.push(folder.path.join(name));
        }
    }
    Ok(paths)
}

/// Whether the tokenizer starts a text with the BOS token: what tokenizer_config.json says, else whether
/// tokenizer.json's template begins with it.
fn adds_bos(folder: &mut Folder, config: &Config) -> Result<bool, CheckpointError> {
    let said = folder.json::<TokenizerConfig>(TOKENIZER_CONFIG)?.and_then(|config| config.add_bos_token);
    if let Some(said) = said {
        return Ok(said);
    }
    let (Some(bytes), Some(bos)) = (folder.optional(TOKENIZER)?, config.bos) else { return Ok(false) };
    let file: TokenizerFile =
        serde_json::from_slice(bytes.as_slice()).map_err(|error| folder.malformed(TOKENIZER, error))?;
    Ok(file.post_processor.is_some_and(|processor| processor.starts_with(bos)))
}

/// The tensors that the index puts in each shard.
fn shards(index: &Bytes) -> Result<BTreeMap<String, Vec<String>>, Fault> {
    let index: Index = serde_json::from_slice(index.as_slice())
        .map_err(|error| Fault::File(format!("it is no index of shards: {error}")))?;
    let mut names: Vec<&str> = index.weight_map.0.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Fault::tensor(pair[0], "is in the index twice"));
    }
    let mut shards = BTreeMap::<String, Vec<String>>::new();
    for (name, shard) in index.weight_map.0 {
        let mut parts = Path::new(&shard).components();
        let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == shard.as_str());
        if !plain || shard.contains(['\\', '\0']) {
            let problem = format!("its shard `{}` is not a file name inside the folder", shortened(&shard));
            return Err(Fault::tensor(&name, problem));
        }
        shards.entry(shard).or_default().push(name);
    }
    Ok(shards)
}

#[derive(Deserialize)]
struct Generation {
    eos_token_id: Option<TokenIds>,
}

#[derive(Deserialize)]
struct TokenizerConfig {
    add_bos_token: Option<bool>,
    chat_template: Option<ChatTemplate>,
    bos_token: Option<TokenText>,
    eos_token: Option<TokenText>,
    unk_token: Option<TokenText>,
    pad_token: Option<TokenText>,
}

/// chat_template.json.
#[derive(Deserialize)]
struct TemplateFile {
    chat_template: Option<ChatTemplate>,
}

/// A special token: its text, or an object that describes it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a token, or an object with its `content`")]
enum TokenText {
    Plain(String),
    Described { content: String },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ChatTemplate {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize)]
struct TokenizerFile {
    post_processor: Option<PostProcessor>,
}

/// The part of tokenizer.json's post-processors that tells which token comes first.
#[derive(Deserialize)]
struct PostProcessor {
    processors: Option<Vec<PostProcessor>>,
    single: Option<Vec<Piece>>,
    special_tokens: Option<BTreeMap<String, SpecialToken>>,
}

#[derive(Deserialize)]
struct Piece {
    #[serde(rename = "SpecialToken")]
    special_token: Option<Named>,
}

#[derive(Deserialize)]
struct Named {
    id: String,
}

#[derive(Deserialize)]
struct SpecialToken {
    ids: Vec<u32>,
}

impl PostProcessor {
    fn starts_with(&self, token: u32) -> bool {
        let first = self.single.iter().flatten().next();
        let name = first.and_then(|piece| piece.special_token.as_ref());
        let special = name.and_then(|name| self.special_tokens.as_ref()?.get(&name.id));
        special.is_some_and(|special| special.ids.first() == Some(&token))
            || self.processors.iter().flatten().any(|processor| processor.starts_with(token))
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// Pairs of tensor and shard, of which two of one name are kept apart so that they are noticed.
struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object from tensor names to file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut pairs = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let shard = map
                .next_value()
                .map_err(|error| A::Error::custom(format!("tensor `{}`: {error}", shortened(&name))))?;
            pairs.push((name, shard));
        }
        Ok(WeightMap(pairs))
    }
}
