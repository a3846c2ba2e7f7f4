//! Calibration text that the model writes itself (Liu et al. 2023, "LLM-QAT", section 3.1): samples from its own
//! distribution, so every domain that it knows has its share.

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
}

impl Default for WriteParams {
    /// The model's own distribution.
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, seed: 0 }
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

/// Writes `count` texts of `len` tokens each, one behind another.
///
/// Each begins where a document would and goes on behind a document's end; its tokens depend on the model, the seed and
/// its own index alone, up to what the device's rounding decides where two tokens are nearly equally likely. The start
/// token is not part of it.
///
/// A model that the batched decoder does not take, or has no room for, writes its texts one by one on the host, with a
/// warning. Errors: the device's, parameters that make no distribution, logits that are not finite.
pub fn write(
    decoder: &Decoder,
    tokenizer: &Tokenizer,
    device: &Device,
    (count, len): (usize, usize),
    params: WriteParams,
    observer: &dyn Observer,
) -> Result<Vec<u32>, PackError> {
    let prompt = [start(decoder, tokenizer)];
    let mut seeds = SplitMix64::new(params.seed);
    let requests: Vec<Request<'_>> = (0..count)
        .map(|_| Request { prompt: &prompt, sample: params.sample(seeds.next_u64()), most: len, ends: &[] })
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
    Ok(texts.concat())
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
    let mut sequences = most.min(count);
    loop {
        match DeviceDecoder::new(device, decoder, DecodeParams { sequences, positions }) {
            Err(error) if error.is_memory() && sequences > 1 => sequences = sequences.div_ceil(2),
            opened => return opened,
        }
    }
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
        let (mut cache, mut text) = (Cache::new(decoder.config(), request.most + 1), Vec::new());
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
