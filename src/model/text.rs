use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Tokenizer, TokenizerError};

/// Text files, concatenated in the order given, with nothing between them.
#[derive(Clone)]
pub struct Text {
    pub content: String,
    pub files: Vec<TextFile>,
}

/// Which text it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextFile {
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
}

/// Why a text cannot be read or cut.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("{file}: cannot be read: {source}")]
    Unreadable { file: PathBuf, source: std::io::Error },
    #[error(
        "{file}: line {line}, byte {at} is not UTF-8; convert the file (for instance with iconv) and try again"
    )]
    NotUtf8 { file: PathBuf, line: usize, at: usize },
    #[error("{file}: the file is empty; give a text to calibrate or measure on")]
    Empty { file: PathBuf },
    #[error("the text has {tokens} tokens, but {what} needs {needed}: give more text, or {instead}")]
    TooShort { tokens: usize, needed: usize, what: String, instead: &'static str },
    #[error(
        "a window takes {positions} positions (a start token counted), but the model knows {most}: use a shorter window"
    )]
    Window { positions: usize, most: usize },
    #[error(
        "the {part} part is {tokens} tokens, less than one window of {window}; give it at least {window} for each text \
         that is mixed (--fit-tokens, --heldout-tokens), or take a shorter --window"
    )]
    Part { part: &'static str, tokens: usize, window: usize },
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl Text {
    /// The files one behind the other, as UTF-8, with their digests.
    pub fn read(paths: &[PathBuf]) -> Result<Self, TextError> {
        let mut text = Self { content: String::new(), files: Vec::new() };
        for path in paths {
            let bytes =
                std::fs::read(path).map_err(|source| TextError::Unreadable { file: path.clone(), source })?;
            text.add(path, bytes)?;
        }
        Ok(text)
    }

    /// A text that is already in memory, under the name that reports call it.
    pub fn from_memory(name: &str, content: &str) -> Result<Self, TextError> {
        let mut text = Self { content: String::new(), files: Vec::new() };
        text.add(Path::new(name), content.as_bytes().to_vec())?;
        Ok(text)
    }

    fn add(&mut self, path: &Path, bytes: Vec<u8>) -> Result<(), TextError> {
        if bytes.is_empty() {
            return Err(TextError::Empty { file: path.into() });
        }
        let sha256 = hex(&Sha256::digest(&bytes));
        let content = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let line = 1 + error.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
            TextError::NotUtf8 { file: path.into(), line, at }
        })?;
        let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        self.files.push(TextFile { file, bytes: content.len() as u64, sha256 });
        self.content.push_str(&content);
        Ok(())
    }
}

/// A tokenised text cut into non-overlapping windows; the tail that fills no window is dropped.
///
/// Where the model asks for a start token, it stands before every window and is not one of its `len` tokens.
#[derive(Clone, Debug)]
pub struct Windows {
    tokens: Vec<u32>,
    /// Tokens of text in a window.
    pub len: usize,
    /// Positions of a window: `len`, or `len + 1` with a start token.
    pub positions: usize,
    /// Tokens of the whole text, the dropped tail included.
    pub text_tokens: usize,
}

/// Bytes of text that usually make more than a token.
const BYTES_A_TOKEN: usize = 6;

/// Tokens before the place where a text was cut that may be others than those of the whole.
const CUT_OFF: usize = 256;

impl Windows {
    /// Tokenises once, without special tokens, and cuts. `bos` is the start token of a model that asks for one.
    pub fn cut(text: &Text, tokenizer: &Tokenizer, len: usize, bos: Option<u32>) -> Result<Self, TextError> {
        Ok(Self::of(&tokenizer.encode(&text.content)?, len, bos))
    }

    /// The same of at least `tokens` tokens from the start of the text, where it has as many: no more of it is tokenised
    /// than that takes.
    pub fn cut_some(
        text: &Text,
        tokenizer: &Tokenizer,
        len: usize,
        bos: Option<u32>,
        tokens: usize,
    ) -> Result<Self, TextError> {
        let (content, mut bytes) =
            (&text.content, tokens.saturating_add(CUT_OFF).saturating_mul(BYTES_A_TOKEN));
        while bytes < content.len() {
            let end = (0..=bytes).rev().find(|at| content.is_char_boundary(*at)).unwrap_or(0);
            let part = &content[..end];
            let ids = tokenizer.encode(part)?;
            if ids.len() >= tokens + CUT_OFF {
                return Ok(Self::of(&ids[..ids.len() - CUT_OFF], len, bos));
            }
            bytes = bytes.saturating_mul(2);
        }
        Self::cut(text, tokenizer, len, bos)
    }

    /// Cuts a text of these tokens.
    pub fn of(ids: &[u32], len: usize, bos: Option<u32>) -> Self {
        let windows = ids.chunks_exact(len);
        let tokens = windows.flat_map(|window| bos.into_iter().chain(window.iter().copied())).collect();
        Self { text_tokens: ids.len(), ..Self::from_positions(tokens, len, bos) }
    }

    /// Windows that are cut already: all positions, start tokens included.
    pub fn from_positions(tokens: Vec<u32>, len: usize, bos: Option<u32>) -> Self {
        let positions = len + usize::from(bos.is_some());
        let text_tokens = tokens.len() / positions * len;
        Self { tokens, len, positions, text_tokens }
    }

    /// How many windows there are.
    pub fn count(&self) -> usize {
        self.tokens.len() / self.positions
    }

    /// Keeps the first `count` windows.
    pub fn truncate(&mut self, count: usize) {
        self.tokens.truncate(count * self.positions);
    }

    /// The positions of window `index`, the start token included.
    pub fn window(&self, index: usize) -> &[u32] {
        &self.tokens[index * self.positions..(index + 1) * self.positions]
    }

    /// All positions of all windows.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_a_text_is_its_start_token_for_token() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny");
        let tokenizer = crate::model::Checkpoint::open(&folder).unwrap().tokenizer().unwrap();
        let text = Text::read(&[folder.join("calibration.txt")]).unwrap();
        let whole = Windows::cut(&text, &tokenizer, 64, Some(0)).unwrap();
        for tokens in [1, 100, 1000, 5003] {
            let some = Windows::cut_some(&text, &tokenizer, 64, Some(0), tokens).unwrap();
            assert!(some.text_tokens >= tokens && some.text_tokens < whole.text_tokens, "{tokens}");
            assert_eq!(some.tokens(), &whole.tokens()[..some.tokens().len()]);
        }
        let all = Windows::cut_some(&text, &tokenizer, 64, Some(0), usize::MAX).unwrap();
        assert_eq!(all.tokens(), whole.tokens());
    }

    #[test]
    fn bad_texts_name_the_file_and_the_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.txt");
        std::fs::write(&path, b"one\ntwo\xff").unwrap();
        let error = Text::read(std::slice::from_ref(&path)).err().unwrap();
        assert!(matches!(error, TextError::NotUtf8 { line: 2, at: 7, .. }), "{error}");
        std::fs::write(&path, b"").unwrap();
        assert!(matches!(Text::read(&[path]).err().unwrap(), TextError::Empty { .. }));
        let gone = folder.path().join("gone.txt");
        assert!(matches!(Text::read(&[gone]).err().unwrap(), TextError::Unreadable { .. }));
    }
}
