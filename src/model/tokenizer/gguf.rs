use std::collections::HashMap;

use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use super::json::check_merges;
use super::{TokenizerError, spm};
use crate::model::checkpoint::{Gguf, GgufArray, GgufValue};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const BOS: &str = "tokenizer.ggml.bos_token_id";

/// llama.cpp's numbers for tokens that text cannot be merged into: `<|im_end|>` and the like.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// How a text is cut before bytes are merged, by GGUF's names for it.
const CUTS: [(&[&str], Cut); 4] = [
    (&["smollm"], Cut::Words { digits: true }),
    (&["gpt-2"], Cut::Words { digits: false }),
    (&["llama-bpe", "llama3", "llama-v3"], Cut::Pattern { pattern: LLAMA3, nfc: false, whole_words: true }),
    (&["qwen2", "deepseek-r1-qwen"], Cut::Pattern { pattern: QWEN2, nfc: true, whole_words: false }),
];

/// Contractions, words with what is before them, up to three digits, punctuation, line ends, spaces.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with digits one by one.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

#[derive(Clone, Copy)]
enum Cut {
    /// GPT-2's words; with `digits`, every digit is a word of its own.
    Words { digits: bool },
    Pattern {
        pattern: &'static str,
        /// The text is composed first (Unicode's NFC).
        nfc: bool,
        /// A word that is a token stays whole, whatever its merges give.
        whole_words: bool,
    },
}

/// The tokenizer in a file's metadata: byte-level BPE (`gpt2`), or SentencePiece's (`llama`).
pub(super) fn build(gguf: &Gguf) -> Result<Tokenizer, TokenizerError> {
    let tokens = strings(gguf, TOKENS)?;
    let mut tokenizer = match text(gguf, MODEL)? {
        "gpt2" => byte_level(gguf, &tokens)?,
        "llama" => spm::build(gguf, &tokens)?,
        model => {
            let found = model.chars().take(80).collect();
            let known = "gpt2 (byte-level BPE) and llama (SentencePiece)";
            return Err(TokenizerError::UnknownKind { found, known });
        }
    };
    if gguf.metadata.get(ADD_BOS).and_then(GgufValue::bool) == Some(true) {
        tokenizer.with_post_processor(Some(bos_first(gguf, &tokens)?));
    }
    let added = added_tokens(gguf, &tokens)?;
    tokenizer.add_tokens(added).map_err(|error| TokenizerError::Build(error.to_string()))?;
    Ok(tokenizer)
}

/// Tokens, merges in order of rank, and the cut of `pre`.
fn byte_level(gguf: &Gguf, tokens: &[String]) -> Result<Tokenizer, TokenizerError> {
    let cut = cut(text(gguf, PRE)?)?;
    let merges = strings(gguf, MERGES)?;
    let (ids, vocab) = vocabulary(tokens)?;
    check_merges(|token| ids.contains_key(token), merges.iter().map(|merge| pair(merge)))?;
    let merges =
        merges.iter().filter_map(|merge| pair(merge)).map(|(l, r)| (l.to_owned(), r.to_owned())).collect();
    let whole_words = matches!(cut, Cut::Pattern { whole_words: true, .. });
    let model = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(whole_words).build();
    let mut tokenizer = Tokenizer::new(model.map_err(|error| TokenizerError::Build(error.to_string()))?);
    let decoder = ByteLevel::new(false, true, true);
    let (first, use_regex): (Option<PreTokenizerWrapper>, bool) = match cut {
        Cut::Words { digits } => (digits.then(|| Digits::new(true).into()), true),
        Cut::Pattern { pattern, .. } => {
            let split = SplitPattern::Regex(pattern.into());
            let split = Split::new(split, SplitDelimiterBehavior::Isolated, false);
            (Some(split.map_err(|error| TokenizerError::Build(error.to_string()))?.into()), false)
        }
    };
    let steps = first.into_iter().chain([ByteLevel::new(false, true, use_regex).into()]).collect();
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps))).with_decoder(Some(decoder));
    if matches!(cut, Cut::Pattern { nfc: true, .. }) {
        tokenizer.with_normalizer(Some(NFC)).map_err(|error| TokenizerError::Build(error.to_string()))?;
    }
    Ok(tokenizer)
}

fn cut(pre: &str) -> Result<Cut, TokenizerError> {
    let known = CUTS.iter().find(|(names, _)| names.contains(&pre)).map(|(_, cut)| *cut);
    known.ok_or_else(|| TokenizerError::UnknownSplit {
        found: pre.chars().take(80).collect(),
        known: CUTS.map(|(names, _)| names.join(", ")).join(", "),
    })
}

/// The ids of tokens, each of which must be there once; to look up, and as the model takes them.
pub(super) fn vocabulary(tokens: &[String]) -> Result<(HashMap<&str, u32>, Vocab), TokenizerError> {
    let mut ids = HashMap::with_capacity(tokens.len());
    let mut vocab = Vocab::new();
    for (id, token) in tokens.iter().enumerate() {
        let id = u32::try_from(id).map_err(|_| TokenizerError::Build("more than 2^32 tokens".into()))?;
        if let Some(first) = ids.insert(token.as_str(), id) {
            return Err(TokenizerError::Build(format!(
                "the token `{token}` is there twice, as {first} and {id}"
            )));
        }
        vocab.insert(token.clone(), id);
    }
    Ok((ids, vocab))
}

/// The two tokens of a merge, `left right`; byte-level tokens hold no space.
fn pair(merge: &str) -> Option<(&str, &str)> {
    merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty())
}

/// The kind of each token, where the file says it.
pub(super) fn kinds(gguf: &Gguf, tokens: &[String]) -> Result<Option<Vec<u64>>, TokenizerError> {
    let Some(kinds) = gguf.metadata.get(TYPES) else { return Ok(None) };
    let kinds = kinds.array().and_then(GgufArray::unsigned).ok_or(TokenizerError::Metadata(TYPES))?;
    if kinds.len() != tokens.len() {
        return Err(TokenizerError::Build(format!("{} tokens have {} types", tokens.len(), kinds.len())));
    }
    Ok(Some(kinds))
}

/// Tokens that are found in the text before it is split.
fn added_tokens(gguf: &Gguf, tokens: &[String]) -> Result<Vec<AddedToken>, TokenizerError> {
    let Some(kinds) = kinds(gguf, tokens)? else { return Ok(Vec::new()) };
    let added = tokens.iter().zip(kinds).filter_map(|(token, kind)| match kind {
        CONTROL => Some(AddedToken::from(token.as_str(), true)),
        USER_DEFINED => Some(AddedToken::from(token.as_str(), false).normalized(false)),
        _ => None,
    });
    Ok(added.collect())
}

/// What tells readers of tokenizer.json that a text starts with the BOS token.
fn bos_first(gguf: &Gguf, tokens: &[String]) -> Result<TemplateProcessing, TokenizerError> {
    let id = gguf.metadata.get(BOS).and_then(GgufValue::unsigned).ok_or(TokenizerError::Metadata(BOS))?;
    let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
    let token =
        token.ok_or_else(|| TokenizerError::Build(format!("`{BOS}` is {id}, past the vocabulary")))?;
    let wrong = |error: String| TokenizerError::Build(format!("the BOS token `{token}`: {error}"));
    TemplateProcessing::builder()
        .try_single(vec![token.clone(), "$A".into()])
        .map_err(|error| wrong(error.to_string()))?
        .special_tokens(vec![(token.clone(), id as u32)])
        .build()
        .map_err(|error| wrong(error.to_string()))
}

pub(super) fn text<'a>(gguf: &'a Gguf, key: &'static str) -> Result<&'a str, TokenizerError> {
    gguf.metadata.get(key).and_then(GgufValue::str).ok_or(TokenizerError::Metadata(key))
}

fn strings(gguf: &Gguf, key: &'static str) -> Result<Vec<String>, TokenizerError> {
    let array = gguf.metadata.get(key).and_then(GgufValue::array);
    let strings = array.and_then(GgufArray::strings).ok_or(TokenizerError::Metadata(key))?;
    Ok(strings.collect())
}
