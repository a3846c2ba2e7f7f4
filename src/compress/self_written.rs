//! Calibration text that the model writes itself (Liu et al. 2023, "LLM-QAT", section 3.1): samples from its own
//! distribution, so every domain that it knows has its share.

use std::iter::successors;

use serde::{Deserialize, Serialize};

use super::error::PackError;
use super::observer::{Event, Observer};
use crate::device::Device;
use crate::model::on_device::{DecodeParams, DeviceDecoder, ForwardError, Request};
use crate::model::sample::{SampleError, SampleParams, Sampler};
use crate::model::{Cache, Decoder, Tokenizer};
use crate::ops::splitmix::SplitMix64;

/// How a model writes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WriteParams {
    pub temperature: f32,
    pub top_p: f32,
    pub seed: u64,
    /// The share of the texts that begin with a piece of a given text and go on from there: more of what that text is
    /// about. The others begin where a document would.
    #[serde(default)]
    pub continued: f64,
}

impl Default for WriteParams {
    /// The model's own distribution.
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, seed: 0, continued: 0.0 }
    }
}

impl WriteParams {
    /// Whether they make a distribution.
    pub fn check(self) -> Result<(), ForwardError> {
        Ok(Sampler::new(self.sample(self.seed)).map(|_| ())?)
    }

    fn sample(self, seed: u64) -> SampleParams {
        SampleParams { temperature: self.temperature, top_p: self.top_p, seed }
    }
}

/// Tokens that begin a document, by the names that vocabularies give them.
const DOCUMENT_STARTS: [&str; 3] = ["<|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>"];

/// Sequences that are written side by side at most: enough that weights are read seldom.
const SIDE_BY_SIDE_ON_HOST: usize = 256;

/// The same on a device: a step of 1,024 takes twice as long as one of 256.
const SIDE_BY_SIDE: usize = 1024;

/// Tokens of a given text that a continued one begins with; at most a quarter of it.
const PIECE: usize = 32;

/// Writes `count` texts of `len` tokens each, one behind another. `given` is the text that some of them continue.
///
/// Each begins where a document would, or with a piece of the given text, and goes on behind a document's end; its tokens
/// depend on the model, the given text, the seed and its own index alone, up to what the device's rounding decides where
/// two tokens are nearly equally likely. The start token is not part of it, a piece is.
///
/// A model that the batched decoder does not take, or has no room for, writes its texts one by one on the host, with a
/// warning. Errors: the device's, parameters that make no distribution, logits that are not finite.
pub fn write(
    decoder: &Decoder,
    tokenizer: &Tokenizer,
    device: &Device,
    (count, len): (usize, usize),
    params: WriteParams,
    given: &[u32],
    observer: &dyn Observer,
) -> Result<Vec<u32>, PackError> {
    let mut seeds = SplitMix64::new(params.seed);
    let samples: Vec<SampleParams> = (0..count).map(|_| params.sample(seeds.next_u64())).collect();
    let start = start(decoder, tokenizer);
    let pieces = pieces(given, count, PIECE.min(len / 4), params);
    let prompts: Vec<Vec<u32>> = pieces.iter().map(|piece| [&[start], *piece].concat()).collect();
    let requests: Vec<Request<'_>> = (prompts.iter().zip(samples))
        .map(|(prompt, sample)| Request { prompt, sample, most: len + 1 - prompt.len(), ends: &[] })
        .collect();
    let wrote = |tokens| observer.event(Event::Wrote { tokens });
    // The last token is written, not read: a text of `len` has as many positions with its start.
    let texts = match open(decoder, device, (count, len)) {
        Ok(mut on_device) => on_device.generate(&requests, &wrote)?,
        Err(error) if error.is_unsupported() || error.is_memory() => {
            observer
                .event(Event::Warning(&format!("texts are written one by one on the host, slowly: {error}")));
            one_by_one(decoder, &requests, &wrote)?
        }
        Err(error) => return Err(error.into()),
    };
    Ok(pieces.into_iter().zip(&texts).flat_map(|(piece, text)| [piece, text].concat()).collect())
}

/// What each of `count` texts begins with: pieces from anywhere in the given text, spread evenly over the texts, and
/// nothing for the others.
fn pieces(given: &[u32], count: usize, len: usize, params: WriteParams) -> Vec<&[u32]> {
    let mut random = SplitMix64::new(!params.seed);
    let places = (given.len() + 1).saturating_sub(len) as u64;
    let piece = |index: usize| {
        let so_far = |texts: usize| (texts as f64 * params.continued) as u64;
        if places == 0 || so_far(index + 1) == so_far(index) {
            return &given[..0];
        }
        let from = (random.next_u64() % places) as usize;
        &given[from..from + len]
    };
    (0..count).map(piece).collect()
}

/// What a document begins behind.
fn start(decoder: &Decoder, tokenizer: &Tokenizer) -> u32 {
    let config = decoder.config();
    let named = || DOCUMENT_STARTS.into_iter().find_map(|name| tokenizer.token_id(name));
    config.start_token().or_else(named).or(config.bos).or(config.eos.first().copied()).unwrap_or(0)
}

/// A decoder with as many sequences side by side as there is room for.
fn open<'a>(
    decoder: &'a Decoder,
    device: &Device,
    (count, positions): (usize, usize),
) -> Result<DeviceDecoder<'a>, ForwardError> {
    let most = if matches!(device, Device::Host) { SIDE_BY_SIDE_ON_HOST } else { SIDE_BY_SIDE };
    for sequences in sizes(count, most) {
        match DeviceDecoder::new(device, decoder, DecodeParams { sequences, positions }) {
            Err(error) if error.is_memory() && sequences > 1 => {}
            opened => return opened,
        }
    }
    unreachable!("the last size is 1, which is returned as it is")
}

/// How many of `count` texts may go side by side, most first: equal rounds, since an idle place costs as much as a text.
fn sizes(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let first = count.div_ceil(most).max(1);
    let rounds =
        successors(Some(first), move |rounds| (*rounds < count).then(|| rounds + rounds.div_ceil(4)));
    rounds.map(move |rounds| count.div_ceil(rounds).max(1))
}

/// For models that the batched decoder does not take.
fn one_by_one(
    decoder: &Decoder,
    requests: &[Request<'_>],
    wrote: &(dyn Fn(usize) + Sync),
) -> Result<Vec<Vec<u32>>, PackError> {
    let samplers = requests.iter().map(|request| Sampler::new(request.sample));
    let samplers = samplers.collect::<Result<Vec<_>, SampleError>>().map_err(ForwardError::from)?;
    let mut texts = Vec::new();
    for (request, mut sampler) in requests.iter().zip(samplers) {
        let (mut cache, mut text) =
            (Cache::new(decoder.config(), request.prompt.len() + request.most), Vec::new());
        let mut next = request.prompt.to_vec();
        while text.len() < request.most {
            let token = sampler.next(&decoder.next_logits(&next, &mut cache)?);
            text.push(token);
            next = vec![token];
            wrote(1);
        }
        texts.push(text);
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_go_in_equal_rounds() {
        let first = |count, most| sizes(count, most).take(3).collect::<Vec<_>>();
        assert_eq!(first(1252, 1024), [626, 418, 313]);
        assert_eq!(first(1024, 1024), [1024, 512, 342]);
        assert_eq!([first(1, 256), first(0, 256)], [[1], [1]]);
        for count in 1..300 {
            let sizes: Vec<usize> = sizes(count, 256).collect();
            assert_eq!(sizes.last(), Some(&1), "{count}: one fits where anything does");
            assert!(sizes[0] <= 256 && sizes.is_sorted_by(|a, b| a >= b), "{count}: {sizes:?}");
        }
    }

    #[test]
    fn the_share_that_continues_is_spread_over_the_texts() {
        let given: Vec<u32> = (0..100).collect();
        let some = |given, count, continued| {
            pieces(given, count, 10, WriteParams { continued, ..WriteParams::default() })
        };
        let pieces = some(&given, 8, 0.25);
        let found: Vec<usize> = (0..8).filter(|k| !pieces[*k].is_empty()).collect();
        assert_eq!(found, [3, 7]);
        for piece in [pieces[3], pieces[7]] {
            let whole = piece.len() == 10 && piece.windows(2).all(|pair| pair[1] == pair[0] + 1);
            assert!(whole, "a piece of the given text, not {piece:?}");
        }
        assert_eq!(some(&given, 4, 0.25), pieces[..4], "pieces do not depend on how many there are");
        assert!(some(&given[..9], 4, 1.0).concat().is_empty(), "there is no such piece");
        assert!(some(&given, 4, 0.0).concat().is_empty());
        assert_eq!(some(&given[..10], 4, 1.0).concat().len(), 40);
    }
}
