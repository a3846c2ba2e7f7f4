use rayon::prelude::*;

use super::ForwardError;
use super::decoder::{DecodeParams, DeviceDecoder};
use crate::model::DecoderError;
use crate::model::sample::{SampleParams, Sampler};

/// A text to be written.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// What it starts with; at least one token.
    pub prompt: &'a [u32],
    pub sample: SampleParams,
    /// Tokens to write at most; the room of the decoder ends a text too.
    pub most: usize,
    /// Tokens that end a text, and are its last.
    pub ends: &'a [u32],
}

/// A text under way.
struct Running<'a> {
    index: usize,
    request: Request<'a>,
    sampler: Sampler,
    written: Vec<u32>,
    /// Position of the next token that goes in.
    position: usize,
}

impl DeviceDecoder<'_> {
    /// Writes all texts, as many side by side as there is room for; the next one starts where one ends. Returns what
    /// was written behind each prompt. A text depends on its request alone. `wrote` is told after each step how many
    /// tokens it added.
    pub fn generate(
        &mut self,
        requests: &[Request<'_>],
        wrote: &(dyn Fn(usize) + Sync),
    ) -> Result<Vec<Vec<u32>>, ForwardError> {
        self.check_requests(requests)?;
        let samplers = requests.iter().map(|request| Sampler::new(request.sample));
        let samplers = samplers.collect::<Result<Vec<_>, _>>()?;
        let mut results = vec![Vec::new(); requests.len()];
        let mut waiting = (requests.iter().zip(samplers).enumerate())
            .filter(|(_, (request, _))| request.most > 0)
            .map(|(index, (request, sampler))| Running {
                index,
                request: request.clone(),
                sampler,
                written: Vec::new(),
                position: 0,
            });
        let DecodeParams { sequences, positions } = self.params;
        let mut slots: Vec<Option<Running<'_>>> = (0..sequences).map(|_| None).collect();
        loop {
            for slot in slots.iter_mut().filter(|slot| slot.is_none()) {
                *slot = waiting.next();
            }
            if slots.iter().all(Option::is_none) {
                return Ok(results);
            }
            // An idle place writes the first position of its own cache again.
            let next: Vec<_> = slots.iter().map(|slot| slot.as_ref().map_or((0, 0), Running::next)).collect();
            let (tokens, at): (Vec<u32>, Vec<usize>) = next.into_iter().unzip();
            self.advance(&tokens, &at)?;
            slots.iter_mut().flatten().for_each(|running| running.position += 1);
            self.write_tokens(&mut slots, &at)?;
            let behind_prompts = |slot: &&Option<Running<'_>>| slot.as_ref().is_some_and(Running::is_writing);
            wrote(slots.iter().filter(behind_prompts).count());
            for slot in &mut slots {
                if let Some(ended) = slot.take_if(|running| running.has_ended(positions)) {
                    results[ended.index] = ended.written;
                }
            }
        }
    }

    /// The next token of every text whose prompt is behind it, after a step at these positions. It is drawn on the device;
    /// where unlikely tokens are dropped first (top-p below 1), logits come to the host.
    fn write_tokens(
        &mut self,
        slots: &mut [Option<Running<'_>>],
        positions: &[usize],
    ) -> Result<(), ForwardError> {
        let plain: Vec<Option<[f32; 2]>> = (slots.iter_mut())
            .map(|slot| slot.as_mut().filter(|running| running.is_writing())?.sampler.next_plain())
            .collect();
        // Every row is looked at for numbers that are not finite, whoever draws from it.
        let draws: Vec<[f32; 2]> = plain.iter().map(|plain| plain.unwrap_or_default()).collect();
        let drawn = self.draw(&draws, positions)?;
        let mut undrawn = Vec::new();
        for (s, slot) in slots.iter_mut().enumerate() {
            match slot.as_mut().filter(|running| running.is_writing()) {
                Some(running) if plain[s].is_some() => running.written.push(drawn[s]),
                Some(running) => undrawn.push((s, running)),
                None => {}
            }
        }
        if undrawn.is_empty() {
            return Ok(());
        }
        let (logits, vocab) = (self.logits()?, self.decoder.config().vocab);
        undrawn.into_par_iter().for_each(|(s, running)| {
            running.written.push(running.sampler.next(&logits[s * vocab..][..vocab]));
        });
        Ok(())
    }

    fn check_requests(&self, requests: &[Request<'_>]) -> Result<(), ForwardError> {
        let vocab = self.decoder.config().vocab;
        for (prompt, request) in requests.iter().enumerate() {
            if request.prompt.is_empty() {
                return Err(ForwardError::NoPrompt { prompt });
            }
            let (needed, most) = (request.prompt.len(), self.params.positions);
            if needed > most {
                return Err(DecoderError::TooLong { needed, most }.into());
            }
            if let Some(position) = request.prompt.iter().position(|id| *id as usize >= vocab) {
                return Err(DecoderError::Token { id: request.prompt[position], position, vocab }.into());
            }
        }
        Ok(())
    }
}

impl Running<'_> {
    /// The token that goes in next, and its position.
    fn next(&self) -> (u32, usize) {
        let token = match self.request.prompt.get(self.position) {
            Some(token) => *token,
            None => self.written[self.position - self.request.prompt.len()],
        };
        (token, self.position)
    }

    /// Whether its prompt is behind it.
    fn is_writing(&self) -> bool {
        self.position >= self.request.prompt.len()
    }

    fn has_ended(&self, room: usize) -> bool {
        let last = self.written.last();
        self.written.len() >= self.request.most
            || last.is_some_and(|token| self.request.ends.contains(token))
            || self.position >= room
    }
}
