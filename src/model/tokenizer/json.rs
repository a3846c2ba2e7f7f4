use std::collections::HashSet;

use serde::Deserialize;

use super::TokenizerError;

/// Checks what the `tokenizers` crate takes for granted: that every merge of a BPE model makes a known token. It
/// cuts the merged token out of a buffer as long as the longest known one, and panics where that is too short.
pub(super) fn check(json: &[u8]) -> Result<(), TokenizerError> {
    let file: File =
        serde_json::from_slice(json).map_err(|error| TokenizerError::Build(error.to_string()))?;
    if let Some(prefix) = file.model.continuing_subword_prefix.filter(|prefix| !prefix.is_empty())
        && !file.model.merges.is_empty()
    {
        return Err(TokenizerError::Build(format!(
            "merges with the subword prefix `{prefix}` are not supported"
        )));
    }
    let Some(Vocab::ByToken(vocab)) = file.model.vocab else { return Ok(()) };
    let pairs = file.model.merges.iter().map(|merge| match merge {
        Merge::Pair(left, right) => Some((left.as_str(), right.as_str())),
        Merge::Joined(text) => text.split_once(' '),
    });
    check_merges(|token| vocab.contains(token), pairs)
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

#[derive(Deserialize)]
struct File {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    vocab: Option<Vocab>,
    #[serde(default)]
    merges: Vec<Merge>,
    continuing_subword_prefix: Option<String>,
}

/// BPE lists tokens by name, Unigram in pairs with scores.
enum Vocab {
    ByToken(HashSet<String>),
    Other,
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VocabVisitor)
    }
}

struct VocabVisitor;

impl<'de> serde::de::Visitor<'de> for VocabVisitor {
    type Value = Vocab;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a vocabulary")
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
        let mut tokens = HashSet::new();
        while let Some((token, _)) = map.next_entry::<String, serde::de::IgnoredAny>()? {
            tokens.insert(token);
        }
        Ok(Vocab::ByToken(tokens))
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Vocab, A::Error> {
        while list.next_element::<serde::de::IgnoredAny>()?.is_some() {}
        Ok(Vocab::Other)
    }
}

/// `["a", "b"]`, or `"a b"` in older files.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Joined(String),
}
