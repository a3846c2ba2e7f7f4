use std::collections::HashMap;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Replace, Sequence};
use tokenizers::{Tokenizer, models::bpe::Merges};

use super::TokenizerError;
use super::gguf::{kinds, vocabulary};
use crate::model::checkpoint::{Gguf, GgufArray, GgufValue};

const SCORES: &str = "tokenizer.ggml.scores";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// llama.cpp's number for tokens that are made by merging.
const NORMAL: u64 = 1;
/// What SentencePiece writes for a space.
const SPACE: &str = "\u{2581}";
/// Longest token that merges are sought for, in bytes; real ones have fewer than a hundred.
const LONGEST: usize = 1024;

/// SentencePiece's BPE (Kudo & Richardson 2018): spaces become U+2581, the pair whose union has the highest score is merged
/// first, and characters that are no token fall back to their bytes. It cuts nothing: merges cross words.
pub(super) fn build(gguf: &Gguf, tokens: &[String]) -> Result<Tokenizer, TokenizerError> {
    let (ids, vocab) = vocabulary(tokens)?;
    let mut model = BPE::builder()
        .vocab_and_merges(vocab, merges(gguf, tokens, &ids)?)
        .byte_fallback(true)
        .fuse_unk(true);
    if let Some(unknown) = unknown(gguf, tokens)? {
        model = model.unk_token(unknown.clone());
    }
    let model = model.build().map_err(|error| TokenizerError::Build(error.to_string()))?;
    let mut tokenizer = Tokenizer::new(model);
    let replace = |from: &str, to: &str| {
        Replace::new(from, to).map_err(|error| TokenizerError::Build(error.to_string()))
    };
    let to_token: NormalizerWrapper = replace(" ", SPACE)?.into();
    let to_text: DecoderWrapper = replace(SPACE, " ")?.into();
    let mut decoders = vec![to_text, ByteFallback::new().into(), Fuse::new().into()];
    // SentencePiece's own default.
    let prefix = match gguf.metadata.get(SPACE_PREFIX) {
        None => true,
        Some(value) => value.bool().ok_or(TokenizerError::Metadata(SPACE_PREFIX))?,
    };
    let mut normalizers = vec![to_token];
    if prefix {
        normalizers.insert(0, Prepend::new(SPACE.into()).into());
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    let normalizer = Sequence::new(normalizers);
    tokenizer.with_normalizer(Some(normalizer)).map_err(|error| TokenizerError::Build(error.to_string()))?;
    tokenizer.with_decoder(Some(Decoders::new(decoders)));
    Ok(tokenizer)
}

fn unknown<'a>(gguf: &Gguf, tokens: &'a [String]) -> Result<Option<&'a String>, TokenizerError> {
    let Some(value) = gguf.metadata.get(UNKNOWN) else { return Ok(None) };
    let id = value.unsigned().ok_or(TokenizerError::Metadata(UNKNOWN))?;
    let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
    let past = || TokenizerError::Build(format!("`{UNKNOWN}` is {id}, past the vocabulary"));
    token.map(Some).ok_or_else(past)
}

/// Every way to make a token out of two others, best first: by the token's score, then by the lengths of the two.
fn merges(gguf: &Gguf, tokens: &[String], ids: &HashMap<&str, u32>) -> Result<Merges, TokenizerError> {
    let scores = gguf.metadata.get(SCORES).and_then(GgufValue::array).and_then(GgufArray::reals);
    let scores = scores.ok_or(TokenizerError::Metadata(SCORES))?;
    if scores.len() != tokens.len() {
        return Err(TokenizerError::Build(format!("{} tokens have {} scores", tokens.len(), scores.len())));
    }
    let kinds = kinds(gguf, tokens)?;
    let mut found = Vec::new();
    for (id, (token, score)) in tokens.iter().zip(&scores).enumerate() {
        if kinds.as_ref().is_some_and(|kinds| kinds[id] != NORMAL) {
            continue;
        }
        if token.len() > LONGEST {
            let len = token.len();
            return Err(TokenizerError::Build(format!("token {id} has {len} bytes, more than {LONGEST}")));
        }
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(l), Some(r)) = (ids.get(left), ids.get(right)) {
                found.push((*score, [left, right], [*l, *r]));
            }
        }
    }
    let length = |part: &str| part.chars().count();
    found.sort_by(|(a, [al, ar], a_ids), (b, [bl, br], b_ids)| {
        let lengths = (length(bl), length(br)).cmp(&(length(al), length(ar)));
        b.total_cmp(a).then(lengths).then(a_ids.cmp(b_ids))
    });
    Ok(found.into_iter().map(|(_, [left, right], _)| (left.to_owned(), right.to_owned())).collect())
}
