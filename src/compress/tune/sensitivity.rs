use super::TuneError;
use super::block::{InputGradient, Sum, TunedBlock};
use super::head::{Head, Models, part};
use super::linear::Form;
use super::optimiser::Rates;
use super::reconstruct::{Tuner, room_on};
use super::room::{Room, placed};
use crate::device::arena::{Arena, Precision, View};
use crate::device::{Device, DeviceError};
use crate::model::{Config, Decoder, LinearName};
use crate::ops::cross_entropy::NO_TOKEN;
use crate::ops::scale::{Scale, scale};

/// Positions of a step.
const BATCH: usize = 4096;

const FROZEN: Rates = Rates { scales: None, signs: None, dense: None };

/// What each layer of a model is worth by its outputs, in the order of blocks and of [`LinearName::ALL`]: for each output y
/// the mean over positions of `(∂(−log p)/∂y)²`, p the probability of the token that came.
pub type Sensitivities = Vec<[Vec<f64>; 7]>;

impl Tuner {
    /// Sensitivities of a dense model over windows of `positions` tokens, in f32. Where the model wrote the text itself
    /// this is the diagonal of its Fisher information for what the layers give: half of it is what a small change of an
    /// output adds to the divergence (Amari 1998). One block of the model is on the device at a time.
    ///
    /// # Errors
    /// What tuning lacks for the model; the figure, where not even one window has room; gradients that are not finite.
    ///
    /// # Panics
    /// Where the tokens are no whole windows of at least two positions.
    pub fn sensitivities(
        &mut self,
        decoder: &Decoder,
        tokens: &[u32],
        positions: usize,
    ) -> Result<Sensitivities, TuneError> {
        assert!(positions > 1 && !tokens.is_empty() && tokens.len().is_multiple_of(positions));
        let (plan, len, batch) =
            places(self.room()?, decoder.config(), (tokens.len() / positions, positions))?;
        let arena = self.arena(len)?;
        plan.head.load(arena, decoder);
        let sizes = LinearName::ALL.map(|name| name.shape(decoder.config())[0]);
        let mut found = vec![sizes.map(|size| vec![0.0; size]); plan.blocks.len()];
        for some in tokens.chunks(batch * positions) {
            let rows = some.len();
            plan.forward(arena, decoder, some, positions);
            for (layer, found) in found.iter_mut().enumerate().rev() {
                plan.backward(arena, decoder, (layer, rows), sizes);
                for (sums, at) in found.iter_mut().zip(plan.squares(layer)) {
                    let squares = arena.read(at, sums.len())?;
                    if let Some(position) = squares.iter().position(|square| !square.is_finite()) {
                        let (what, value) = ("gradient", squares[position]);
                        return Err(TuneError::NonFinite { what, layer, position, value });
                    }
                    sums.iter_mut().zip(squares).for_each(|(sum, square)| *sum += f64::from(square));
                }
            }
        }
        let terms = (tokens.len() / positions * (positions - 1)) as f64;
        found.iter_mut().flatten().flatten().for_each(|sum| *sum /= terms);
        Ok(found)
    }
}

/// Whether [`Tuner::sensitivities`] can be found on a device for windows of `positions` tokens, asked before anything is
/// done.
///
/// # Errors
/// As there.
pub fn check_sensitivities(device: &Device, config: &Config, positions: usize) -> Result<(), TuneError> {
    Tuner::takes(device)?;
    places(room_on(device)?, config, (1, positions)).map(drop)
}

/// The places for as many windows at once as have room, with the numbers they take and those windows.
fn places(
    room: usize,
    config: &Config,
    (windows, positions): (usize, usize),
) -> Result<(Places, usize, usize), TuneError> {
    let mut batch = (BATCH / positions).clamp(1, windows);
    loop {
        let (places, len) = placed(|room| Places::new(room, config, (positions, batch)))?;
        match () {
            () if len <= room => return Ok((places, len, batch)),
            () if batch > 1 => batch = batch.div_ceil(2),
            () => {
                let what = format!(
                    "finding what outputs count over {positions} positions (--set output_weights=0 leaves it out)"
                );
                return Err(DeviceError::memory(what, len as u64 * 4, room as u64 * 4).into());
            }
        }
    }
}

/// Where everything lies: streams between all blocks, and one block, in whose place the next goes.
struct Places {
    blocks: Vec<TunedBlock>,
    head: Head,
    /// What enters each block, and what leaves the last.
    streams: Vec<View>,
    /// The gradient with respect to a stream.
    slope: View,
    /// The token behind each position, and `−log p` of it.
    next: usize,
    terms: usize,
}

impl Places {
    fn new(
        room: &mut Room,
        config: &Config,
        (positions, windows): (usize, usize),
    ) -> Result<Self, TuneError> {
        let (rows, hidden) = (positions * windows, config.hidden);
        let head = Head::place(room, config, rows, Models::One);
        let streams = (0..=config.layers).map(|_| room.kept.matrix(rows, hidden)).collect();
        let slope = room.kept.matrix(rows, hidden);
        let [next, terms] = [(); 2].map(|()| room.kept.vector(rows));
        let (mark, mut blocks) = (room.kept.mark(), Vec::new());
        for layer in 0..config.layers {
            room.kept.back_to(mark);
            room.scratch.back_to(0);
            let (forms, window) = ([Form::Dense; 7], (positions, windows));
            let mut block = TunedBlock::place(room, (config, layer), &forms, &FROZEN, window)?;
            block.add_squares(room, config);
            blocks.push(block);
        }
        Ok(Self { blocks, head, streams, slope, next, terms })
    }

    fn squares(&self, layer: usize) -> impl Iterator<Item = usize> {
        self.blocks[layer].squares().into_iter().flatten()
    }

    /// From tokens to the gradient with respect to what leaves the last block.
    fn forward(&self, arena: &mut Arena, decoder: &Decoder, tokens: &[u32], positions: usize) {
        let rows = tokens.len();
        arena.write(self.streams[0].at, &decoder.embed(tokens).expect("the windows were cut for this model"));
        arena.write(self.next, &next_tokens(tokens, positions));
        for layer in 0..self.blocks.len() {
            self.enter(arena, decoder, (layer, rows));
            let y = part(self.blocks[layer].flow().y, 0, rows);
            scale(arena, &[Scale::new(y, part(self.streams[layer + 1], 0, rows))]);
        }
        let ends = [self.streams[self.blocks.len()], self.slope].map(|of| part(of, 0, rows));
        self.head.surprise(arena, ends, (self.next, self.terms), Precision::F32);
    }

    /// From the gradient with respect to what leaves a block to that of what enters it, and the squares of its layers'.
    fn backward(
        &self,
        arena: &mut Arena,
        decoder: &Decoder,
        (layer, rows): (usize, usize),
        sizes: [usize; 7],
    ) {
        self.enter(arena, decoder, (layer, rows));
        for (at, size) in self.squares(layer).zip(sizes) {
            arena.write(at, &vec![0.0; size]);
        }
        let block = &self.blocks[layer];
        let [y, slope] = [block.flow().y, self.slope].map(|of| part(of, 0, rows));
        scale(arena, &[Scale::new(slope, y)]);
        let input = if layer > 0 { InputGradient::Wanted } else { InputGradient::Unwanted };
        block.backward(arena, rows, Precision::F32, (Sum::Begin, input));
        scale(arena, &[Scale::new(y, slope)]);
    }

    /// Brings a block, and its stream through it.
    fn enter(&self, arena: &mut Arena, decoder: &Decoder, (layer, rows): (usize, usize)) {
        let block = &self.blocks[layer];
        block.load(arena, decoder.block(layer));
        let [stream, x] = [self.streams[layer], block.flow().x].map(|of| part(of, 0, rows));
        scale(arena, &[Scale::new(stream, x)]);
        block.forward(arena, rows, Precision::F32);
    }
}

/// The token behind each within its window.
fn next_tokens(tokens: &[u32], positions: usize) -> Vec<f32> {
    let window = |window: &[u32]| {
        let next = window[1..].iter().map(|token| *token as f32);
        next.chain([NO_TOKEN]).collect::<Vec<f32>>()
    };
    tokens.chunks(positions).flat_map(window).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::model::{Checkpoint, Linear, NoCapture, Run};

    #[test]
    fn what_has_no_room_names_the_knob_that_leaves_it_out() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny");
        let config = Checkpoint::open(&folder).unwrap().config().clone();
        let (_, len, batch) = places(usize::MAX, &config, (8, 12)).unwrap();
        assert_eq!(batch, 8);
        assert!(places(len, &config, (8, 12)).is_ok_and(|(_, of, batch)| (of, batch) == (len, 8)));
        let (_, less, batch) = places(len - 1, &config, (8, 12)).unwrap();
        assert!(less < len && batch == 4);
        let error = places(1000, &config, (8, 12)).err().unwrap().to_string();
        assert!(error.contains("--set output_weights=0"), "{error}");
    }

    /// Behind the last block positions do not mix: what its last layer gives goes through the norm and the head alone.
    #[test]
    fn the_last_layers_sensitivities_are_those_of_differences() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny");
        let decoder = Decoder::load(&Checkpoint::open(&folder).unwrap()).unwrap();
        let tokens: Vec<u32> = (0..36).map(|k| 100 + k * 37 % 700).collect();
        let found = Tuner::new(&Device::Host).unwrap().sensitivities(&decoder, &tokens, 12).unwrap();
        let config = decoder.config();
        assert_eq!(found.len(), config.layers);
        for (name, squares) in found.iter().flat_map(|block| LinearName::ALL.into_iter().zip(block)) {
            assert_eq!(squares.len(), name.shape(config)[0]);
            assert!(squares.iter().all(|s| *s >= 0.0) && squares.iter().any(|s| *s > 0.0), "{name:?}");
        }
        let stream = decoder.hidden(&tokens, Run::Windows { len: 12 }, &mut NoCapture).unwrap();
        let Linear::Dense(head) = decoder.head() else { panic!("the head is dense") };
        let (head, hidden) = (head.to_f32(), config.hidden);
        let surprise = |x: &[f64], token: u32| {
            let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / hidden as f64 + config.rms_eps).sqrt();
            let y: Vec<f64> = x.iter().zip(decoder.norm()).map(|(x, w)| x * scale * f64::from(*w)).collect();
            let logits: Vec<f64> = (head.chunks(hidden))
                .map(|row| row.iter().zip(&y).map(|(w, y)| f64::from(*w) * y).sum())
                .collect();
            logits.iter().map(|z| z.exp()).sum::<f64>().ln() - logits[token as usize]
        };
        for output in [0, 7, hidden - 1] {
            let mut sum = 0.0;
            for at in (0..36).filter(|at| at % 12 < 11) {
                let x: Vec<f64> = stream[at * hidden..][..hidden].iter().map(|x| f64::from(*x)).collect();
                let moved = |by: f64| {
                    let mut x = x.clone();
                    x[output] += by;
                    surprise(&x, tokens[at + 1])
                };
                sum += ((moved(1e-4) - moved(-1e-4)) / 2e-4).powi(2);
            }
            let (expected, found) = (sum / 33.0, found[config.layers - 1][LinearName::Down as usize][output]);
            assert!((found / expected - 1.0).abs() < 1e-3, "output {output}: {found}, expected {expected}");
        }
    }
}
