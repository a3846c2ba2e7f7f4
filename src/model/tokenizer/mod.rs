//! Text to token ids and back.

mod gguf;
mod json;
mod spm;

use super::checkpoint::Gguf;

/// A tokenizer, from tokenizer.json or from the vocabulary in GGUF metadata.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocab_len: usize,
}

/// Why a tokenizer cannot be built or used. The caller adds the file.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("the tokenizer cannot be built: {0}")]
    Build(String),
    #[error("the tokenizer's metadata `{0}` is missing or of another type")]
    Metadata(&'static str),
    #[error("the tokenizer is of the kind {found}; this version reads {known}")]
    UnknownKind { found: String, known: &'static str },
    #[error("the tokenizer splits words the way of {found}; this version knows {known}")]
    UnknownSplit { found: String, known: String },
    #[error("the tokenizer's ids reach {tokens}, but the embedding has only {rows} rows")]
    LargerThanEmbedding { tokens: usize, rows: usize },
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
    #[error("the tokens cannot be decoded: {0}")]
    Decode(String),
}

impl Tokenizer {
    /// Reads the contents of a tokenizer.json. Truncation and padding that it asks for are left out.
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        json::check(json)?;
        let inner = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|error| TokenizerError::Build(error.to_string()))?;
        Self::new(inner)
    }

    pub(crate) fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        Self::new(gguf::build(gguf)?)
    }

    fn new(mut inner: tokenizers::Tokenizer) -> Result<Self, TokenizerError> {
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| TokenizerError::Build(error.to_string()))?;
        let last = inner.get_vocab(true).into_values().max();
        let vocab_len = last.map_or(0, |last| last as usize + 1);
        Ok(Self { inner, vocab_len })
    }

    /// The ids of a text; special tokens are recognised where the text spells them, but none is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding =
            self.inner.encode_fast(text, false).map_err(|error| TokenizerError::Encode(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of ids, special tokens included; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.inner.decode(ids, false).map_err(|error| TokenizerError::Decode(error.to_string()))
    }

    /// A decoder that takes one id after the other.
    pub fn stream(&self) -> TextStream<'_> {
        self.stream_after(&[])
    }

    /// The same behind ids whose text is known already: some tokenizers drop a space at the start of a text.
    pub fn stream_after(&self, before: &[u32]) -> TextStream<'_> {
        TextStream { tokenizer: self, ids: before.to_vec(), shown: before.len() }
    }

    /// Largest id + 1: the rows that an embedding must have.
    pub fn vocab_len(&self) -> usize {
        self.vocab_len
    }

    /// The id of a token as the vocabulary spells it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether the token is one that is found in a text before it is split: `<|im_end|>` and the like.
    pub fn is_added(&self, id: u32) -> bool {
        self.inner.get_added_tokens_decoder().contains_key(&id)
    }

    /// Every token with its id.
    pub fn vocabulary(&self) -> std::collections::BTreeMap<String, u32> {
        self.inner.get_vocab(true).into_iter().collect()
    }

    /// The token of this id, as the vocabulary spells it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The contents of a tokenizer.json that gives the same ids.
    pub fn to_json(&self) -> Result<String, TokenizerError> {
        self.inner.to_string(false).map_err(|error| TokenizerError::Build(error.to_string()))
    }
}

/// Turns ids into text as they come. A character may be spread over several tokens: it appears when it is complete.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The last ids whose text was given out, then those whose text was not; the former are context, since the text
    /// of a token may depend on what is before it.
    ids: Vec<u32>,
    /// How many of `ids` were given out.
    shown: usize,
}

impl TextStream<'_> {
    /// Takes the next id; gives the text that is complete now, if there is any.
    pub fn push(&mut self, id: u32) -> Result<Option<String>, TokenizerError> {
        self.ids.push(id);
        let text = self.pending()?;
        if text.is_empty() || text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(None);
        }
        self.ids.drain(..self.shown);
        self.shown = self.ids.len();
        Ok(Some(text))
    }

    /// What is left at the end: characters that were never completed, as U+FFFD.
    pub fn finish(self) -> Result<Option<String>, TokenizerError> {
        let text = self.pending()?;
        Ok((!text.is_empty()).then_some(text))
    }

    /// The text after what was given out. A character is at most four bytes, so four tokens are enough to wait for.
    fn pending(&self) -> Result<String, TokenizerError> {
        let given = self.tokenizer.decode(&self.ids[..self.shown])?;
        let all = self.tokenizer.decode(&self.ids)?;
        Ok(all.get(given.len()..).unwrap_or_default().to_owned())
    }
}
