use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::TokenizerError;

/// Checks what the `tokenizers` crate takes for granted, so that a damaged file is an error and not a panic: that
/// every part is valid JSON, that there is no precompiled normaliser to decode, and that every merge makes a known
/// token (it cuts the merged token out of a buffer as long as the longest known one).
pub(super) fn check(json: &[u8]) -> Result<(), TokenizerError> {
    let file: File =
        serde_json::from_slice(json).map_err(|error| TokenizerError::Build(error.to_string()))?;
    let model = file.model;
    if let Some(found) = model.kind.filter(|kind| kind != "BPE") {
        return Err(TokenizerError::UnknownKind { found: found.chars().take(80).collect(), known: "BPE" });
    }
    if file.normalizer.as_ref().is_some_and(has_precompiled) {
        return Err(TokenizerError::Build("precompiled normalisers are not supported".into()));
    }
    if model.continuing_subword_prefix.is_some_and(|prefix| !prefix.is_empty()) {
        return Err(TokenizerError::Build("merges with a subword prefix are not supported".into()));
    }
    let pairs = model.merges.iter().map(|merge| match merge {
        Merge::Pair(left, right) => Some((left.as_str(), right.as_str())),
        Merge::Joined(text) => text.split_once(' '),
    });
    check_merges(|token| model.vocab.0.contains(token), pairs)
}

fn has_precompiled(normalizer: &Value) -> bool {
    match normalizer {
        Value::Object(fields) => {
            fields.get("type").is_some_and(|kind| kind == "Precompiled")
                || fields.contains_key("precompiled_charsmap")
                || fields.values().any(has_precompiled)
        }
        Value::Array(list) => list.iter().any(has_precompiled),
        _ => false,
    }
}

/// Fails on the first pair whose parts joined are not a token; `None` stands for text that is no pair.
pub(super) fn check_merges<'a>(
    known: impl Fn(&str) -> bool,
    pairs: impl Iterator<Item = Option<(&'a str, &'a str)>>,
) -> Result<(), TokenizerError> {
    let mut joined = String::new();
    for (number, pair) in pairs.enumerate() {
        let Some((left, right)) = pair else {
            return Err(TokenizerError::Build(format!("merge {number} is not two tokens")));
        };
        joined.clear();
        joined.extend([left, right]);
        if let Some(unknown) = [left, right, &joined].into_iter().find(|token| !known(token)) {
            return Err(TokenizerError::Build(format!(
                "merge {number} (`{left}` and `{right}`) needs the token `{unknown}`, which the vocabulary lacks"
            )));
        }
    }
    Ok(())
}

/// The parts are read here so that they are known to be valid when the crate reads them.
#[derive(Deserialize)]
struct File {
    model: Model,
    normalizer: Option<Value>,
    #[serde(rename = "pre_tokenizer")]
    _pre_tokenizer: Option<Value>,
    #[serde(rename = "post_processor")]
    _post_processor: Option<Value>,
    #[serde(rename = "decoder")]
    _decoder: Option<Value>,
}

#[derive(Deserialize)]
struct Model {
    /// Absent in older files, which are BPE.
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    vocab: Vocab,
    #[serde(default)]
    merges: Vec<Merge>,
    continuing_subword_prefix: Option<String>,
}

/// The names of an object from tokens to ids. Other kinds of models have lists, which are passed over.
#[derive(Default)]
struct Vocab(HashSet<String>);

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VocabVisitor)
    }
}

struct VocabVisitor;

impl<'de> Visitor<'de> for VocabVisitor {
    type Value = Vocab;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
        let mut tokens = HashSet::new();
        while let Some((token, _)) = map.next_entry::<String, IgnoredAny>()? {
            tokens.insert(token);
        }
        Ok(Vocab(tokens))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Vocab::default())
    }
}

/// `["a", "b"]`, or `"a b"` in older files.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Joined(String),
}
