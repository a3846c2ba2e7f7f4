use std::io;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::perplexity::EvalError;
use super::predictor::Predictor;
use crate::device::{Bytes, Device, write_durably};
use crate::model::Decoder;
use crate::model::on_device::LOGIT_ROWS;
use crate::model::text::{Windows, hex};
use crate::ops::coarse::Coarse;
use crate::ops::log_softmax::log_probability;

/// Tokens that are kept of each distribution.
pub const HEAD: usize = 256;
/// Numbers of 32 bits of a SHA-256.
const CHECK_WORDS: usize = 8;
/// What the file says it is.
const FORMAT: &str = "lapidary kl-base 2";

/// What an original predicts on a text, kept so that it need not be loaded again: for each scored position the
/// [`HEAD`] likeliest tokens with their log-probabilities, the mass of all others, and the log-probability of the token
/// that came. A safetensors file (docs/format.md), mapped.
pub struct KlBase {
    file: PathBuf,
    bytes: Bytes,
    /// Where the tensors are, and the byte that they count from.
    header: Metadata,
    data: usize,
    pub info: BaseInfo,
}

/// Of which model and which text predictions are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseInfo {
    /// The original's name, for people.
    pub model: String,
    /// Its fingerprint.
    pub fingerprint: String,
    /// SHA-256 of the windows' tokens, start tokens included, as little-endian u32.
    pub tokens: String,
    /// Tokens of a window, and how many windows.
    pub window: usize,
    pub windows: usize,
    /// Scored positions of a window.
    pub positions: usize,
    pub vocab: usize,
}

/// The original's prediction at one position.
pub(super) struct Prediction {
    pub coarse: Coarse,
    /// Log-probability of the token that came.
    pub next: f32,
}

/// Why predictions cannot be stored or used.
#[derive(Debug, thiserror::Error)]
pub enum KlBaseError {
    #[error("{file}: {source}")]
    Io { file: PathBuf, source: io::Error },
    #[error(
        "{file}: {problem}; it is no file of stored predictions, or damaged: remove it and store them again"
    )]
    Malformed { file: PathBuf, problem: String },
    #[error(
        "{file} was stored for another {what}: {stored} there, {asked} here; give the same model, text and windows, or \
         another file"
    )]
    Mismatch { file: PathBuf, what: &'static str, stored: String, asked: String },
}

impl BaseInfo {
    /// Of predictions of the model with this name and fingerprint on `windows`.
    pub fn new(model: String, fingerprint: String, vocab: usize, windows: &Windows) -> Self {
        let mut hash = Sha256::new();
        for token in windows.tokens() {
            hash.update(token.to_le_bytes());
        }
        Self {
            model,
            fingerprint,
            tokens: hex(&hash.finalize()),
            window: windows.len,
            windows: windows.count(),
            positions: windows.positions - 1,
            vocab,
        }
    }

    fn head(&self) -> usize {
        self.vocab.min(HEAD)
    }

    /// Name, type and shape of the tensors of a window, in the order of the file.
    fn tensors(&self, window: usize) -> [(String, Dtype, Vec<usize>); 5] {
        let (rows, wide) = (vec![self.positions], vec![self.positions, self.head()]);
        let name = |part: &str| format!("windows.{window}.{part}");
        [
            (name("tokens"), Dtype::U32, wide.clone()),
            (name("log_probabilities"), Dtype::F32, wide),
            (name("log_rest"), Dtype::F32, rows.clone()),
            (name("log_probability_of_next"), Dtype::F32, rows),
            (name("sha256"), Dtype::U32, vec![CHECK_WORDS]),
        ]
    }

    /// The length of the header and the header, as safetensors begin.
    fn header(&self) -> Vec<u8> {
        let mut header = Map::new();
        header.insert(
            "__metadata__".into(),
            json!({
                "format": FORMAT,
                "model": self.model,
                "fingerprint": self.fingerprint,
                "tokens": self.tokens,
                "window": self.window.to_string(),
                "windows": self.windows.to_string(),
                "positions": self.positions.to_string(),
                "vocab": self.vocab.to_string(),
            }),
        );
        let mut at = 0;
        for (name, dtype, shape) in (0..self.windows).flat_map(|window| self.tensors(window)) {
            let end = at + 4 * shape.iter().product::<usize>();
            let kind = if dtype == Dtype::U32 { "U32" } else { "F32" };
            header.insert(name, json!({"dtype": kind, "shape": shape, "data_offsets": [at, end]}));
            at = end;
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut out = (text.len() as u64).to_le_bytes().to_vec();
        out.extend(text);
        out
    }

    /// That predictions of `self` serve where `asked` is wanted; an empty fingerprint there asks for any model.
    fn check(&self, file: &Path, asked: &Self) -> Result<(), KlBaseError> {
        let number = |value: usize| value.to_string();
        let pairs = [
            ("model", self.fingerprint.clone(), asked.fingerprint.clone()),
            ("window", number(self.window), number(asked.window)),
            ("number of windows", number(self.windows), number(asked.windows)),
            ("use of a start token", number(self.positions), number(asked.positions)),
            ("vocabulary", number(self.vocab), number(asked.vocab)),
            ("text or tokenizer (SHA-256 of the tokens)", self.tokens.clone(), asked.tokens.clone()),
        ];
        let other = pairs.into_iter().find(|(_, stored, asked)| !asked.is_empty() && stored != asked);
        other.map_or(Ok(()), |(what, stored, asked)| {
            Err(KlBaseError::Mismatch { file: file.into(), what, stored, asked })
        })
    }
}

impl KlBase {
    /// Opens stored predictions, which must be of `asked`; an empty fingerprint asks for any model.
    pub fn open(file: &Path, asked: &BaseInfo) -> Result<Self, KlBaseError> {
        let io_error = |source| KlBaseError::Io { file: file.into(), source };
        let bytes = Bytes::map(file).map_err(io_error)?;
        let malformed = |problem: String| KlBaseError::Malformed { file: file.into(), problem };
        let (length, header) =
            SafeTensors::read_metadata(bytes.as_slice()).map_err(|error| malformed(error.to_string()))?;
        let fields =
            header.metadata().as_ref().filter(|fields| fields.get("format").is_some_and(|f| f == FORMAT));
        let fields = fields.ok_or_else(|| malformed(format!("it does not say `{FORMAT}`")))?;
        let text =
            |key: &str| fields.get(key).cloned().ok_or_else(|| malformed(format!("`{key}` is missing")));
        let number =
            |key: &str| text(key)?.parse::<usize>().map_err(|_| malformed(format!("`{key}` is no number")));
        let info = BaseInfo {
            model: text("model")?,
            fingerprint: text("fingerprint")?,
            tokens: text("tokens")?,
            window: number("window")?,
            windows: number("windows")?,
            positions: number("positions")?,
            vocab: number("vocab")?,
        };
        info.check(file, asked)?;
        // The header's length is eight bytes.
        Ok(Self { file: file.into(), bytes, data: 8 + length, header, info })
    }

    /// Runs `original` over the windows on a device and stores what it predicts; whole, or nothing. `done` is called with
    /// the number of windows that are through.
    pub fn store(
        device: &Device,
        file: &Path,
        info: &BaseInfo,
        original: &Decoder,
        windows: &Windows,
        done: &dyn Fn(usize),
    ) -> Result<(), EvalError> {
        let vocab = original.config().vocab;
        let mut original = Predictor::open(device, original, windows)?;
        let mut failed = None;
        let written = write_durably(file, |out| {
            out.write_all(&info.header())?;
            for index in 0..windows.count() {
                match predictions(&mut original, vocab, windows, index) {
                    Ok(predictions) => out.write_all(&encoded(&predictions))?,
                    Err(error) => {
                        failed = Some(error.in_window(index));
                        return Err(io::Error::other("the original failed"));
                    }
                }
                done(index + 1);
            }
            Ok(())
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(written.map_err(|source| KlBaseError::Io { file: file.into(), source })?),
        }
    }

    /// The predictions in window `index`.
    pub(super) fn window(&self, index: usize) -> Result<Vec<Prediction>, KlBaseError> {
        let malformed = |problem: String| KlBaseError::Malformed { file: self.file.clone(), problem };
        let mut words = Vec::new();
        for (name, dtype, shape) in self.info.tensors(index) {
            let missing = || malformed(format!("`{name}` is missing"));
            let tensor = self.header.info(&name).ok_or_else(missing)?;
            if (tensor.dtype, &tensor.shape) != (dtype, &shape) {
                return Err(malformed(format!("`{name}` is {:?} of {:?}", tensor.dtype, tensor.shape)));
            }
            let (start, end) = tensor.data_offsets;
            let data = self.bytes.as_slice().get(self.data + start..self.data + end).ok_or_else(missing)?;
            words.push(data.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<_>>());
        }
        if words[4] != check_of(&words[..4]) {
            return Err(malformed(format!("window {index} is not what was stored, its checksum says")));
        }
        let head = self.info.head();
        let reals = |words: &[u32]| words.iter().map(|word| f32::from_bits(*word)).collect::<Vec<_>>();
        let prediction = |row: usize| {
            let part = row * head..(row + 1) * head;
            let coarse = Coarse {
                tokens: words[0][part.clone()].to_vec(),
                log_p: reals(&words[1][part]),
                log_rest: f32::from_bits(words[2][row]),
            };
            Prediction { coarse, next: f32::from_bits(words[3][row]) }
        };
        let predictions: Vec<_> = (0..self.info.positions).map(prediction).collect();
        let valid = |p: &Prediction| {
            p.coarse.tokens.iter().all(|token| (*token as usize) < self.info.vocab)
                && p.coarse.log_p.iter().chain([&p.next]).all(|log| log.is_finite())
                && !p.coarse.log_rest.is_nan()
        };
        match predictions.iter().position(|prediction| !valid(prediction)) {
            Some(row) => Err(malformed(format!("window {index}, position {row} holds no probabilities"))),
            None => Ok(predictions),
        }
    }
}

/// What `original` predicts at every position of a window but the last.
fn predictions(
    original: &mut Predictor,
    vocab: usize,
    windows: &Windows,
    index: usize,
) -> Result<Vec<Prediction>, EvalError> {
    original.enter(windows, index)?;
    let tokens = windows.window(index);
    let scored = tokens.len() - 1;
    let mut predictions = Vec::with_capacity(scored);
    for start in (0..scored).step_by(LOGIT_ROWS) {
        let end = (start + LOGIT_ROWS).min(scored);
        let logits = original.logits(start..end)?;
        let targets = &tokens[start + 1..=end];
        let prediction = |(row, target): (&[f32], &u32)| Prediction {
            coarse: Coarse::of(row, HEAD),
            next: log_probability(row, *target as usize) as f32,
        };
        predictions.par_extend(logits.par_chunks_exact(vocab).zip(targets).map(prediction));
    }
    let finite = |p: &Prediction| p.next.is_finite() && p.coarse.log_p.iter().all(|log| log.is_finite());
    match predictions.iter().all(finite) {
        true => Ok(predictions),
        false => Err(EvalError::NotFinite { model: "the original", window: 0 }),
    }
}

/// SHA-256 of the words of a window's tensors, as words.
fn check_of(tensors: &[Vec<u32>]) -> Vec<u32> {
    let mut hash = Sha256::new();
    for tensor in tensors {
        hash.update(tensor.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    }
    hash.finalize().as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// A window's tensors, one behind the other.
fn encoded(predictions: &[Prediction]) -> Vec<u8> {
    let tokens = predictions.iter().flat_map(|p| p.coarse.tokens.iter().copied());
    let log_p = predictions.iter().flat_map(|p| p.coarse.log_p.iter().map(|log| log.to_bits()));
    let rest = predictions.iter().map(|p| p.coarse.log_rest.to_bits());
    let next = predictions.iter().map(|p| p.next.to_bits());
    let mut tensors = vec![tokens.collect(), log_p.collect(), rest.collect(), next.collect()];
    tensors.push(check_of(&tensors));
    tensors.into_iter().flatten().flat_map(u32::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_read_once() {
        let windows = Windows::from_positions((0..16).collect(), 4, None);
        let info = BaseInfo::new("original".into(), "abc".into(), 3, &windows);
        let of = |window: usize| -> Vec<Prediction> {
            let at = |row: usize| -((window * 3 + row) as f32);
            let coarse = |row| Coarse { tokens: vec![0, 1, 2], log_p: vec![at(row); 3], log_rest: at(row) };
            (0..3).map(|row| Prediction { coarse: coarse(row), next: at(row) }).collect()
        };
        let mut bytes = info.header();
        let data = bytes.len();
        (0..windows.count()).for_each(|window| bytes.extend(encoded(&of(window))));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("base.safetensors");
        std::fs::write(&file, &bytes).unwrap();
        let mut base = KlBase::open(&file, &info).unwrap();
        bytes[..data].fill(b'x');
        base.bytes = bytes.into();
        for window in 0..windows.count() {
            let next = |all: Vec<Prediction>| all.into_iter().map(|p| p.next).collect::<Vec<_>>();
            assert_eq!(next(base.window(window).unwrap()), next(of(window)));
        }
        assert!(base.window(windows.count()).is_err());
    }
}
