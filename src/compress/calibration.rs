use serde::{Deserialize, Serialize};

use super::recipe::Tokens;
use super::self_written::WriteParams;
use crate::model::Tokenizer;
use crate::model::text::{Text, TextError, TextFile, Windows};

/// Which windows of the texts calibrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalibrationParams {
    /// Tokens of a window.
    pub window: usize,
    /// Tokens to fit on and to judge by, rounded down to whole windows of each text. `None`: the recipe's, or what a
    /// shorter text holds, the same share of it held out.
    pub fit_tokens: Option<usize>,
    pub heldout_tokens: Option<usize>,
}

/// A text that calibrates, and its share of the tokens; shares count relative to each other.
#[derive(Clone)]
pub struct Source {
    pub content: Content,
    pub share: f64,
}

#[derive(Clone)]
pub enum Content {
    Given(Text),
    /// The model writes it.
    SelfWritten(WriteParams),
}

impl Source {
    /// One given text.
    pub fn text(text: Text) -> Vec<Self> {
        vec![Self { content: Content::Given(text), share: 1.0 }]
    }

    /// A given text, and as many tokens that the model writes; those alone where no text is given.
    pub fn mixed(text: Option<Text>, params: WriteParams) -> Vec<Self> {
        let contents = text.map(Content::Given).into_iter().chain([Content::SelfWritten(params)]);
        contents.map(|content| Self { content, share: 1.0 }).collect()
    }
}

/// How much of a text is tokenised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    AsNeeded,
    Whole,
}

/// A calibration whose windows are counted, the self-written ones still to be written.
pub struct Draft {
    len: usize,
    bos: Option<u32>,
    parts: Vec<Part>,
}

struct Part {
    fit: usize,
    heldout: usize,
    /// Windows beside them.
    more: usize,
    content: PartContent,
}

enum PartContent {
    Given { windows: Windows, files: Vec<TextFile> },
    SelfWritten(WriteParams),
}

/// The calibration windows: fit windows of all texts first, then those held out.
pub struct Calibration {
    pub windows: Windows,
    pub fit: usize,
    pub heldout: usize,
    /// More of the same texts, to fit the whole model on.
    pub more: Windows,
}

/// What calibration did, for packing.json.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationRecord {
    pub texts: Vec<TextFile>,
    pub window: usize,
    pub fit_tokens: usize,
    pub heldout_tokens: usize,
    /// Tokens beside them that the whole model is fitted on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_tokens: usize,
    /// What each source gave, in their order, where there are several; files without a share are one source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceTokens>,
    /// What of these tokens the model wrote itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_written: Option<SelfWritten>,
}

/// Tokens of one source of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceTokens {
    /// File names, or `self`.
    pub source: String,
    pub fit_tokens: usize,
    pub heldout_tokens: usize,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_tokens: usize,
}

/// Text that the model wrote.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfWritten {
    pub fit_tokens: usize,
    pub heldout_tokens: usize,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_tokens: usize,
    #[serde(flatten)]
    pub params: WriteParams,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Draft {
    /// Cuts the given texts and counts the windows of each source. `bos` is the start token of a model that asks for
    /// one, `tokens` what is taken where the parameters name no number. Texts are tokenised as far as that needs; wholly
    /// for [`take_more`](Self::take_more), which may want more of them.
    ///
    /// Errors: a text too short for what was asked for.
    pub fn prepare(
        sources: Vec<Source>,
        tokenizer: &Tokenizer,
        bos: Option<u32>,
        params: CalibrationParams,
        tokens: Tokens,
        read: Read,
    ) -> Result<Self, TextError> {
        let shares: f64 = sources.iter().map(|source| source.share).sum();
        let parts = sources.into_iter().map(|Source { content, share }| {
            let part = |tokens: usize| (tokens as f64 * share / shares).round() as usize;
            let params = CalibrationParams {
                window: params.window,
                fit_tokens: params.fit_tokens.map(part),
                heldout_tokens: params.heldout_tokens.map(part),
            };
            let tokens = Tokens { fit: part(tokens.fit), heldout: part(tokens.heldout) };
            let (available, content) = match content {
                Content::Given(text) => {
                    let wanted = [
                        params.fit_tokens.unwrap_or(tokens.fit),
                        params.heldout_tokens.unwrap_or(tokens.heldout),
                    ];
                    let wanted = match read {
                        // At least a window of each part.
                        Read::AsNeeded => {
                            wanted.iter().fold(2 * params.window, |sum, tokens| sum.saturating_add(*tokens))
                        }
                        Read::Whole => usize::MAX,
                    };
                    let windows = Windows::cut_some(&text, tokenizer, params.window, bos, wanted)?;
                    (windows.text_tokens, PartContent::Given { windows, files: text.files })
                }
                Content::SelfWritten(params) => (usize::MAX, PartContent::SelfWritten(params)),
            };
            let (fit, heldout) = split(available, params, tokens)?;
            Ok(Part { fit, heldout, more: 0, content })
        });
        Ok(Self { len: params.window, bos, parts: parts.collect::<Result<_, TextError>>()? })
    }

    /// Takes more text beside the calibration, about `ratio` windows for each that is fitted to: of a given text its share
    /// or what is left of it, and the rest from the one that the model writes, where there is one.
    pub fn take_more(&mut self, ratio: f64) {
        let wanted = (self.fit() as f64 * ratio).round() as usize;
        let used = |part: &Part| part.fit + part.heldout;
        let all: usize = self.parts.iter().map(used).sum();
        for part in &mut self.parts {
            let share = wanted * used(part) / all.max(1);
            part.more = match &part.content {
                PartContent::Given { windows, .. } => share.min(windows.count() - used(part)),
                PartContent::SelfWritten(_) => 0,
            };
        }
        let given: usize = self.parts.iter().map(|part| part.more).sum();
        let own = |part: &&mut Part| matches!(part.content, PartContent::SelfWritten(_));
        if let Some(own) = self.parts.iter_mut().find(own) {
            own.more = wanted - given;
        }
    }

    /// The tokens of the given texts that are fitted on, which the model may continue; start tokens left out.
    pub fn given(&self) -> Vec<u32> {
        let parts = self.parts.iter().filter_map(|part| match &part.content {
            PartContent::Given { windows, .. } => Some((part, windows)),
            PartContent::SelfWritten(_) => None,
        });
        let windows = parts.flat_map(|(part, windows)| {
            let behind = part.fit + part.heldout;
            (0..part.fit).chain(behind..behind + part.more).map(|k| windows.window(k))
        });
        windows.flat_map(|window| &window[window.len() - self.len..]).copied().collect()
    }

    pub fn record(&self) -> CalibrationRecord {
        let tokens = |of: fn(&Part) -> usize| self.len * self.parts.iter().map(of).sum::<usize>();
        let files = |part: &Part| match &part.content {
            PartContent::Given { files, .. } => files.clone(),
            PartContent::SelfWritten(_) => Vec::new(),
        };
        let self_written = self.parts.iter().find_map(|part| match part.content {
            PartContent::Given { .. } => None,
            PartContent::SelfWritten(params) => Some(SelfWritten {
                fit_tokens: part.fit * self.len,
                heldout_tokens: part.heldout * self.len,
                more_tokens: part.more * self.len,
                params,
            }),
        });
        let source = |part: &Part| SourceTokens {
            source: match &part.content {
                PartContent::Given { files, .. } => {
                    files.iter().map(|file| file.file.as_str()).collect::<Vec<_>>().join(" ")
                }
                PartContent::SelfWritten(_) => "self".into(),
            },
            fit_tokens: part.fit * self.len,
            heldout_tokens: part.heldout * self.len,
            more_tokens: part.more * self.len,
        };
        let several = self.parts.len() > 1;
        CalibrationRecord {
            sources: self.parts.iter().filter(|_| several).map(source).collect(),
            texts: self.parts.iter().flat_map(files).collect(),
            window: self.len,
            fit_tokens: tokens(|part| part.fit),
            heldout_tokens: tokens(|part| part.heldout),
            more_tokens: tokens(|part| part.more),
            self_written,
        }
    }

    /// The windows to fit on.
    pub fn fit(&self) -> usize {
        self.parts.iter().map(|part| part.fit).sum()
    }

    /// The windows, with `written` in the places of the self-written ones: as many tokens as the record says.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn finish(self, written: &[u32]) -> Calibration {
        let own = Windows::of(written, self.len, self.bos);
        let windows = |part: &Part, from: usize, count: usize| -> Vec<u32> {
            let of = match &part.content {
                PartContent::Given { windows, .. } => windows,
                PartContent::SelfWritten(_) => &own,
            };
            of.tokens()[from * of.positions..(from + count) * of.positions].to_vec()
        };
        let fit = self.parts.iter().flat_map(|part| windows(part, 0, part.fit));
        let heldout = self.parts.iter().flat_map(|part| windows(part, part.fit, part.heldout));
        let more = self.parts.iter().flat_map(|part| windows(part, part.fit + part.heldout, part.more));
        let cut = |tokens: Vec<u32>| Windows::from_positions(tokens, self.len, self.bos);
        let (tokens, more) = (cut(fit.chain(heldout).collect()), cut(more.collect()));
        let count = |of: fn(&Part) -> usize| self.parts.iter().map(of).sum();
        let (fit, heldout) = (count(|part| part.fit), count(|part| part.heldout));
        Calibration { windows: tokens, fit, heldout, more }
    }
}

/// Fit and held-out windows of a text of `available` tokens.
fn split(available: usize, params: CalibrationParams, tokens: Tokens) -> Result<(usize, usize), TextError> {
    let (window, windows) = (params.window, available / params.window);
    if tokens.fit == 0 || tokens.heldout == 0 {
        return Err(TextError::Part { part: "fit or held-out", tokens: tokens.total(), window });
    }
    let whole = |part: &'static str, tokens: usize| match tokens / window {
        0 => Err(TextError::Part { part, tokens, window }),
        count => Ok(count),
    };
    let (fit, heldout) = match (params.fit_tokens, params.heldout_tokens) {
        (None, None) => {
            let total = windows.min((tokens.total() / window).max(2));
            let heldout = (total * tokens.heldout).div_ceil(tokens.total());
            (total - heldout, heldout)
        }
        (Some(fit), None) => (whole("fit", fit)?, (tokens.heldout / window).max(1)),
        (None, Some(heldout)) => {
            let heldout = whole("held-out", heldout)?;
            (windows.saturating_sub(heldout).min((tokens.fit / window).max(1)), heldout)
        }
        (Some(fit), Some(heldout)) => (whole("fit", fit)?, whole("held-out", heldout)?),
    };
    let needed = fit.max(1).saturating_add(heldout.max(1));
    if needed > windows || fit == 0 {
        return Err(TextError::TooShort {
            tokens: available,
            needed: needed.max(2).saturating_mul(window),
            what: format!("a fit and a held-out part in windows of {window} tokens"),
            instead: match needed {
                ..=2 => "a shorter window",
                _ => "fewer tokens to fit on or to judge by (--fit-tokens, --heldout-tokens)",
            },
        });
    }
    Ok((fit, heldout))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: Tokens = Tokens { fit: 60, heldout: 20 };

    fn draft(
        sources: &[(usize, f64)],
        own: Option<f64>,
        params: CalibrationParams,
    ) -> Result<Draft, TextError> {
        let tokenizer = Tokenizer::from_json(include_bytes!("../../assets/tiny/tokenizer.json")).unwrap();
        // A word repeated is a token repeated: its windows can be told by their tokens.
        let text = |words: usize| Text::from_memory("t", &" Monday".repeat(words)).unwrap();
        let given = sources.iter().map(|(words, share)| (Content::Given(text(*words)), *share));
        let own = own.map(|share| (Content::SelfWritten(WriteParams::default()), share));
        let sources = given.chain(own).map(|(content, share)| Source { content, share }).collect();
        Draft::prepare(sources, &tokenizer, Some(1), params, TOKENS, Read::Whole)
    }

    fn params(fit_tokens: Option<usize>, heldout_tokens: Option<usize>) -> CalibrationParams {
        CalibrationParams { window: 10, fit_tokens, heldout_tokens }
    }

    #[test]
    fn sources_share_the_tokens_and_held_out_windows_come_last() {
        let draft = draft(&[(500, 1.0)], Some(3.0), params(Some(80), Some(40))).unwrap();
        let record = draft.record();
        assert_eq!((record.fit_tokens, record.heldout_tokens), (80, 40));
        let sources: Vec<_> = record.sources.iter().map(|s| (s.fit_tokens, s.heldout_tokens)).collect();
        assert_eq!(sources, [(20, 10), (60, 30)]);
        let own = record.self_written.unwrap();
        assert_eq!((own.fit_tokens, own.heldout_tokens), (60, 30));
        let written: Vec<u32> = (0..90).map(|k| 100 + k).collect();
        let calibration = draft.finish(&written);
        assert_eq!((calibration.fit, calibration.heldout, calibration.windows.count()), (8, 4, 12));
        let windows: Vec<&[u32]> = (0..12).map(|k| calibration.windows.window(k)).collect();
        assert!(windows.iter().all(|window| window[0] == 1), "a start token before each");
        // Two given windows, six written; then one given and three written.
        let own: Vec<usize> = (0..12).filter(|k| windows[*k][1] >= 100 && windows[*k][1] < 190).collect();
        assert_eq!(own, [2, 3, 4, 5, 6, 7, 9, 10, 11]);
        let firsts: Vec<u32> = own.iter().map(|k| windows[*k][1]).collect();
        assert_eq!(firsts, [100, 110, 120, 130, 140, 150, 160, 170, 180]);
    }

    #[test]
    fn more_windows_are_what_is_left_of_a_given_text_and_written_ones() {
        let mut draft = draft(&[(95, 1.0)], Some(1.0), params(Some(80), Some(40))).unwrap();
        draft.take_more(2.5);
        let record = draft.record();
        assert_eq!((record.fit_tokens, record.heldout_tokens, record.more_tokens), (80, 40, 200));
        let sources: Vec<_> = record.sources.iter().map(|source| source.more_tokens).collect();
        assert_eq!(sources, [30, 170], "nine windows, of which four are fitted to and two held out");
        assert_eq!(draft.given().len(), 70);
        let written: Vec<u32> = (0..230).map(|k| 100 + k).collect();
        let calibration = draft.finish(&written);
        assert_eq!((calibration.windows.count(), calibration.more.count()), (12, 20));
        let firsts: Vec<u32> = (3..20).map(|k| calibration.more.window(k)[1]).collect();
        assert_eq!(firsts, (16..33).map(|k| 100 + 10 * k - 100).collect::<Vec<u32>>());
    }

    #[test]
    fn a_short_text_gives_what_it_has_and_one_asked_for_too_much_says_so() {
        let record = draft(&[(41, 1.0)], None, params(None, None)).unwrap().record();
        assert_eq!((record.fit_tokens, record.heldout_tokens), (30, 10));
        // A share so small that it comes to no token at all.
        let error = draft(&[(500, 1.0)], Some(1e-9), params(None, None)).err().unwrap();
        assert!(matches!(error, TextError::Part { tokens: 0, .. }), "{error}");
        let error = draft(&[(41, 1.0)], None, params(Some(100), None)).err().unwrap();
        assert!(matches!(error, TextError::TooShort { tokens: 41, .. }), "{error}");
        let error = draft(&[(41, 1.0)], Some(1.0), params(Some(12), Some(12))).err().unwrap();
        assert!(matches!(error, TextError::Part { part: "fit", tokens: 6, window: 10 }), "{error}");
    }
}
