use std::collections::HashMap;

use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Tokenizer};

use super::TokenizerError;
use super::json::check_merges;
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

/// How a text is cut before bytes are merged, by GGUF's name for it.
const SPLITS: [(&str, Split); 2] = [("smollm", Split { digits: true }), ("gpt-2", Split { digits: false })];

#[derive(Clone, Copy)]
struct Split {
    /// Every digit is a word of its own.
    digits: bool,
}

/// The byte-level BPE tokenizer in a file's metadata: tokens, merges in order of rank, and the split of `pre`.
pub(super) fn build(gguf: &Gguf) -> Result<Tokenizer, TokenizerError> {
    let model = text(gguf, MODEL)?;
    if model != "gpt2" {
        let found = model.chars().take(80).collect();
        return Err(TokenizerError::UnknownKind { found, known: "gpt2 (byte-level BPE)" });
    }
    let split = split(text(gguf, PRE)?)?;
    let tokens = strings(gguf, TOKENS)?;
    let mut tokenizer = Tokenizer::new(bpe(&tokens, strings(gguf, MERGES)?)?);
    let bytes = ByteLevel::new(false, true, true);
    let mut steps = vec![PreTokenizerWrapper::from(bytes)];
    if split.digits {
        steps.insert(0, Digits::new(true).into());
    }
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps))).with_decoder(Some(bytes));
    if gguf.metadata.get(ADD_BOS).and_then(GgufValue::bool) == Some(true) {
        tokenizer.with_post_processor(Some(bos_first(gguf, &tokens)?));
    }
    let added = added_tokens(gguf, &tokens)?;
    tokenizer.add_tokens(added).map_err(|error| TokenizerError::Build(error.to_string()))?;
    Ok(tokenizer)
}

fn split(pre: &str) -> Result<Split, TokenizerError> {
    let known = SPLITS.iter().find(|(name, _)| *name == pre).map(|(_, split)| *split);
    known.ok_or_else(|| TokenizerError::UnknownSplit {
        found: pre.chars().take(80).collect(),
        known: SPLITS.map(|(name, _)| name).join(", "),
    })
}

fn bpe(tokens: &[String], merges: Vec<String>) -> Result<BPE, TokenizerError> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = ids.insert(token.as_str(), id) {
            return Err(TokenizerError::Build(format!(
                "the token `{token}` is there twice, as {first} and {id}"
            )));
        }
    }
    check_merges(|token| ids.contains_key(token), merges.iter().map(|merge| pair(merge)))?;
    let merges =
        merges.iter().filter_map(|merge| pair(merge)).map(|(l, r)| (l.to_owned(), r.to_owned())).collect();
    let mut vocab = Vocab::new();
    for (token, id) in ids {
        let id = u32::try_from(id).map_err(|_| TokenizerError::Build("more than 2^32 tokens".into()))?;
        vocab.insert(token.to_owned(), id);
    }
    let model = BPE::builder().vocab_and_merges(vocab, merges).build();
    model.map_err(|error| TokenizerError::Build(error.to_string()))
}

/// The two tokens of a merge, `left right`; byte-level tokens hold no space.
fn pair(merge: &str) -> Option<(&str, &str)> {
    merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty())
}

/// Tokens that are found in the text before it is split.
fn added_tokens(gguf: &Gguf, tokens: &[String]) -> Result<Vec<AddedToken>, TokenizerError> {
    let Some(types) = gguf.metadata.get(TYPES) else { return Ok(Vec::new()) };
    let types = types.array().and_then(GgufArray::unsigned).ok_or(TokenizerError::Metadata(TYPES))?;
    if types.len() != tokens.len() {
        return Err(TokenizerError::Build(format!("{} tokens have {} types", tokens.len(), types.len())));
    }
    let added = tokens.iter().zip(types).filter_map(|(token, kind)| match kind {
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

fn text<'a>(gguf: &'a Gguf, key: &'static str) -> Result<&'a str, TokenizerError> {
    gguf.metadata.get(key).and_then(GgufValue::str).ok_or(TokenizerError::Metadata(key))
}

fn strings(gguf: &Gguf, key: &'static str) -> Result<Vec<String>, TokenizerError> {
    let array = gguf.metadata.get(key).and_then(GgufValue::array);
    let strings = array.and_then(GgufArray::strings).ok_or(TokenizerError::Metadata(key))?;
    Ok(strings.collect())
}
