use super::activations::{Activations, products};
use super::turns::Turns;
use super::weights::{Factors, Weights, write_linear};
use super::{ForwardError, check};
use crate::device::arena::{Arena, Layout, View};
use crate::device::{Device, DeviceError};
use crate::model::block::heads;
use crate::model::{Config, Decoder, DecoderError, first_non_finite};
use crate::ops::attention_batch::{CachedAttention, attention_cached};
use crate::ops::draw::{Draw, draw_batch};
use crate::ops::gemm::{TILE, gemm};
use crate::ops::non_finite::{NonFinite, non_finite};
use crate::ops::rms_norm::{RmsNorm, rms_norm_batch};
use crate::ops::rope::{Positions, Rope, rope_batch};
use crate::ops::scatter::{Scatter, scatter};

/// How much a [`DeviceDecoder`] makes room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeParams {
    /// Sequences side by side.
    pub sequences: usize,
    /// Positions of the longest one.
    pub positions: usize,
}

/// A whole decoder on a device, with the keys and values of many sequences, which go on one position at a time.
///
/// Products go in groups of [`TILE`] rows whatever the number of sequences, so that what one sequence sees does not
/// depend on the others, and not on how many there are.
pub struct DeviceDecoder<'a> {
    pub(super) decoder: &'a Decoder,
    pub(super) params: DecodeParams,
    arena: Arena,
    places: Places,
}

/// Where everything lies.
struct Places {
    blocks: Vec<Weights>,
    /// Keys and values of each block: row s·positions + p is position p of sequence s.
    caches: Vec<[View; 2]>,
    norm: usize,
    head: View,
    factors: Factors,
    turns: Turns,
    flow: Activations,
    normed: View,
    logits: View,
    /// Of each sequence, its position, and its row in a cache.
    positions: usize,
    rows: usize,
    /// Of each sequence, the temperature and number that draw its token; the token, and the first logit that is not
    /// finite.
    draws: View,
    drawn: View,
}

impl Places {
    fn plan(layout: &mut Layout, config: &Config, params: DecodeParams) -> Self {
        let DecodeParams { sequences, positions } = params;
        let rows = sequences.next_multiple_of(TILE);
        let kv_width = heads(config).kv_width();
        let blocks = (0..config.layers).map(|_| Weights::place(layout, config)).collect();
        let cache = |_| [(); 2].map(|()| layout.matrix(sequences * positions, kv_width));
        let caches = (0..config.layers).map(cache).collect();
        let norm = layout.vector(config.hidden);
        let head = layout.matrix(config.vocab, config.hidden);
        let turns = Turns::place(layout, config, positions);
        // Weights are written first.
        let start = layout.mark();
        let factors = Factors::place(layout, config);
        layout.back_to(start);
        Self {
            blocks,
            caches,
            norm,
            head,
            factors,
            turns,
            flow: Activations::place(layout, config, rows, TILE),
            normed: layout.matrix(rows, config.hidden),
            logits: layout.matrix(rows, config.vocab),
            positions: layout.vector(sequences),
            rows: layout.vector(sequences),
            draws: layout.matrix(2, sequences),
            drawn: layout.matrix(2, sequences),
        }
    }
}

impl<'a> DeviceDecoder<'a> {
    /// Brings a decoder to a device.
    ///
    /// Errors: the memory that it needs there, where one arena cannot hold that.
    pub fn new(device: &Device, decoder: &'a Decoder, params: DecodeParams) -> Result<Self, ForwardError> {
        let config = decoder.config();
        let DecodeParams { sequences, positions } = params;
        check(config)?;
        if positions > config.max_positions {
            let most = config.max_positions;
            return Err(DecoderError::TooLong { needed: positions, most }.into());
        }
        // Rows of a cache are numbers of the arena, whole ones below 2²⁴.
        if sequences.saturating_mul(positions) > 1 << 24 {
            return Err(ForwardError::Places { sequences, positions });
        }
        let mut layout = Layout::default();
        let places = Places::plan(&mut layout, config, params);
        let largest = Arena::largest(device)?;
        if layout.most() > largest {
            let what = format!("the decoder with {sequences} sequences of {positions} positions");
            let [needed, free] = [layout.most(), largest].map(|numbers| numbers as u64 * 4);
            return Err(DeviceError::memory(what, needed, free).into());
        }
        let arena = Arena::new(device, layout.most())?;
        let mut opened = Self { decoder, params, arena, places };
        opened.write_weights();
        Ok(opened)
    }

    fn write_weights(&mut self) {
        let (arena, places) = (&mut self.arena, &self.places);
        for (layer, weights) in places.blocks.iter().enumerate() {
            weights.write(arena, self.decoder.block(layer), &places.factors);
        }
        write_linear(arena, &self.decoder.head, places.head, &places.factors);
        arena.write(places.norm, &self.decoder.norm);
        places.turns.write(arena);
        // Rows that fill a group up stay zero, so nothing wild is ever computed from them.
        arena.write(places.flow.x.at, &vec![0.0; places.flow.x.len()]);
    }

    /// One more token of each sequence, at the position that follows those in its cache (0 starts a new one). Returns
    /// the logits after each: a row of `vocab` numbers a sequence.
    ///
    /// # Panics
    /// When there are not as many tokens and positions as sequences, or no room for a position.
    pub fn step(&mut self, tokens: &[u32], positions: &[usize]) -> Result<Vec<f32>, ForwardError> {
        self.advance(tokens, positions)?;
        let logits = self.logits()?;
        match first_non_finite(&logits, self.decoder.config().vocab) {
            None => Ok(logits),
            Some((sequence, token)) => Err(self.bad_logit(sequence, token, positions)),
        }
    }

    /// Queues a step, up to its logits.
    pub(super) fn advance(&mut self, tokens: &[u32], positions: &[usize]) -> Result<(), ForwardError> {
        let DecodeParams { sequences, positions: room } = self.params;
        assert_eq!([tokens.len(), positions.len()], [sequences; 2], "one token a sequence");
        assert!(positions.iter().all(|position| *position < room), "{positions:?} of {room} positions");
        let (places, config) = (&self.places, self.decoder.config());
        let embedded = self.decoder.embed(tokens)?;
        let numbers = |of: &dyn Fn(usize) -> usize| (0..sequences).map(|s| of(s) as f32).collect::<Vec<_>>();
        self.arena.write(places.flow.x.at, &embedded);
        self.arena.write(places.positions, &numbers(&|s| positions[s]));
        self.arena.write(places.rows, &numbers(&|s| s * room + positions[s]));
        for layer in 0..config.layers {
            self.queue_block(layer);
        }
        let places = &self.places;
        let norm = RmsNorm { x: places.flow.x, weight: places.norm, y: places.normed };
        rms_norm_batch(&mut self.arena, config.rms_eps, &[norm]);
        let items: Vec<_> = products(places.normed, places.head, places.logits, TILE).collect();
        gemm(&mut self.arena, &items);
        Ok(())
    }

    /// The logits of a step.
    pub(super) fn logits(&mut self) -> Result<Vec<f32>, ForwardError> {
        let view = self.used_logits();
        Ok(self.arena.read(view.at, view.len())?)
    }

    /// A token of each sequence after a step at `positions`, drawn on the device by a temperature and a number each; see
    /// [`draw`](crate::ops::draw::draw). Logits stay there.
    pub(super) fn draw(&mut self, draws: &[[f32; 2]], positions: &[usize]) -> Result<Vec<u32>, ForwardError> {
        let sequences = self.params.sequences;
        let (logits, Places { draws: given, drawn, .. }) = (self.used_logits(), &self.places);
        let of = |k: usize| draws.iter().map(move |draw| draw[k]);
        self.arena.write(given.at, &of(0).chain(of(1)).collect::<Vec<_>>());
        let [temperatures, uniforms] = [given.at, given.at + sequences];
        let [tokens, bad] = [drawn.at, drawn.at + sequences];
        draw_batch(&mut self.arena, &[Draw { logits, temperatures, uniforms, tokens }]);
        non_finite(&mut self.arena, &[NonFinite { a: logits, out: bad }]);
        let numbers = self.arena.read(drawn.at, drawn.len())?;
        let (tokens, bad) = numbers.split_at(sequences);
        match bad.iter().position(|token| (*token as usize) < logits.cols) {
            None => Ok(tokens.iter().map(|token| *token as u32).collect()),
            Some(sequence) => Err(self.bad_logit(sequence, bad[sequence] as usize, positions)),
        }
    }

    /// Rows of logits that belong to sequences.
    fn used_logits(&self) -> View {
        let logits = self.places.logits;
        logits.part((0, 0), (self.params.sequences, logits.cols))
    }

    fn bad_logit(&mut self, sequence: usize, token: usize, positions: &[usize]) -> ForwardError {
        let logits = self.used_logits();
        match self.arena.read(logits.at + sequence * logits.stride + token, 1) {
            Ok(value) => {
                ForwardError::Logit { sequence, position: positions[sequence], token, value: value[0] }
            }
            Err(error) => error.into(),
        }
    }

    fn queue_block(&mut self, layer: usize) {
        let (arena, places, config) = (&mut self.arena, &self.places, self.decoder.config());
        let Places { turns, flow, positions, rows, .. } = *places;
        let (weights, [keys, values]) = (&places.blocks[layer], places.caches[layer]);
        let used = |view: View| view.part((0, 0), (self.params.sequences, view.cols));
        let [q, k, v, out] = [flow.q, flow.k, flow.v, flow.mixed].map(used);
        flow.normalise(arena, weights, config.rms_eps);
        flow.project(arena, weights, config.rms_eps);
        let listed = Positions::Listed { at: positions };
        let mask = config.mask(layer);
        rope_batch(arena, &[q, k].map(|x| Rope { x, turns: turns.of(mask), positions: listed }));
        scatter(arena, &[(k, keys), (v, values)].map(|(a, out)| Scatter { a, out, places: rows }));
        let heads = heads(config);
        attention_cached(arena, heads, mask, &[CachedAttention { q, keys, values, positions, out }]);
        flow.mix(arena, weights, config.rms_eps);
        flow.gate(arena, weights);
        flow.down(arena, weights, config.rms_eps);
    }
}
