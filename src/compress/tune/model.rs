use super::TuneError;
use super::block::{InputGradient, Sum, TunedBlock};
use super::flow::Flow;
use super::head::{Head, Models, part};
use super::linear::Form;
use super::optimiser::{Optimiser, Rates};
use super::room::Room;
use crate::device::arena::{Arena, Precision, View};
use crate::model::{Config, Decoder};
use crate::ops::adam::Adam;
use crate::ops::scale::{Scale, scale};

/// A whole model in an arena. Where there is room, all that flows through its blocks is kept for the way back; else the
/// residual stream between blocks is, and each block is computed again from what entered it (Chen et al. 2016): memory
/// then grows with the depth by one stream a block.
#[derive(Clone, Debug)]
pub(super) struct TunedModel {
    blocks: Vec<TunedBlock>,
    /// What enters each block, and what leaves the last: rows of a batch.
    streams: Vec<View>,
    /// The original's stream behind its last block.
    pub teacher: View,
    /// The gradient with respect to a stream.
    slope: View,
    /// Divergences of the rows of a batch.
    lines: usize,
    head: Head,
    /// Rows that go through a block together.
    rows: usize,
    keep: Keep,
}

/// Windows of how many positions, in a batch and through a block together, and what is kept of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batches {
    pub positions: usize,
    pub batch: usize,
    pub at_once: usize,
    pub keep: Keep,
}

/// What stays of the way forward for the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Everything; all rows of a batch go through a block together.
    Blocks,
    /// What enters each block.
    Streams,
}

impl TunedModel {
    pub fn place(
        room: &mut Room,
        decoder: &Decoder,
        rates: &Rates,
        batches: Batches,
    ) -> Result<Self, TuneError> {
        let config = decoder.config();
        let Config { hidden, layers, .. } = *config;
        let rows = batches.batch * batches.positions;
        let mut blocks = Vec::new();
        for layer in 0..layers {
            if batches.keep == Keep::Streams {
                room.scratch.back_to(0);
            }
            let forms = Form::of(decoder.block(layer));
            let window = (batches.positions, batches.at_once);
            blocks.push(TunedBlock::place(room, (config, layer), &forms, rates, window)?);
        }
        if batches.keep == Keep::Streams {
            room.scratch.back_to(0);
        }
        let head = Head::place(room, config, rows, Models::Two);
        Ok(Self {
            blocks,
            streams: (0..=layers).map(|_| room.kept.matrix(rows, hidden)).collect(),
            teacher: room.kept.matrix(rows, hidden),
            slope: room.kept.matrix(rows, hidden),
            lines: room.kept.vector(rows),
            head,
            rows: batches.at_once * batches.positions,
            keep: batches.keep,
        })
    }

    /// Writes the model, and returns what is to be trained of each block.
    pub fn load(&self, arena: &mut Arena, decoder: &Decoder) -> Vec<Vec<Adam>> {
        self.head.load(arena, decoder);
        (self.blocks.iter().enumerate())
            .map(|(layer, block)| block.load(arena, decoder.block(layer)))
            .collect()
    }

    pub fn blocks(&self) -> &[TunedBlock] {
        &self.blocks
    }

    /// Room for a number for each row of a batch.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// Where a batch enters.
    pub fn input(&self) -> View {
        self.streams[0]
    }

    /// From the stream that enters to the one that leaves.
    pub fn forward(&self, arena: &mut Arena, rows: usize, precision: Precision) {
        for (block, streams) in self.blocks.iter().zip(self.streams.windows(2)) {
            block.compose(arena, precision);
            for (at, count) in self.rounds(rows) {
                self.enter(arena, block, streams[0], (at, count));
                block.forward(arena, count, precision);
                copy(
                    arena,
                    block.flow().y.part((0, 0), (count, streams[1].cols)),
                    part(streams[1], at, count),
                );
            }
        }
    }

    /// The divergence of each row from the original's distribution goes to `out`; where there is a factor, the gradient
    /// of `factor·Σ divergence` with respect to the last stream is made.
    pub fn diverge(
        &self,
        arena: &mut Arena,
        rows: usize,
        (out, factor): (usize, Option<f32>),
        precision: Precision,
    ) {
        let some = |of| part(of, 0, rows);
        let streams = [self.streams[self.blocks.len()], self.teacher, self.slope].map(some);
        self.head.diverge(arena, streams, (out, factor), precision);
    }

    /// From the gradient with respect to the last stream back through all blocks; each takes its step as soon as its
    /// gradients are there, since no block before it needs its parameters again.
    pub fn backward(
        &self,
        arena: &mut Arena,
        rows: usize,
        precision: Precision,
        optimisers: &mut [Optimiser],
    ) {
        // Blocks before the first that is trained or measured need no gradient.
        let needed =
            |layer: &usize| !optimisers[*layer].is_empty() || self.blocks[*layer].squares().is_some();
        let first = (0..self.blocks.len()).find(needed).unwrap_or(self.blocks.len());
        for layer in (first..self.blocks.len()).rev() {
            let block = &self.blocks[layer];
            let input = if layer > first { InputGradient::Wanted } else { InputGradient::Unwanted };
            if self.keep == Keep::Streams {
                block.compose(arena, precision);
            }
            for (round, (at, count)) in self.rounds(rows).enumerate() {
                if self.keep == Keep::Streams {
                    self.enter(arena, block, self.streams[layer], (at, count));
                    block.forward(arena, count, precision);
                }
                let y = block.flow().y.part((0, 0), (count, self.slope.cols));
                let slope = part(self.slope, at, count);
                copy(arena, slope, y);
                let sum = if round == 0 { Sum::Begin } else { Sum::Continue };
                block.backward(arena, count, precision, (sum, input));
                copy(arena, y, slope);
            }
            block.differentiate(arena, precision);
            optimisers[layer].step(arena);
        }
    }

    fn enter(&self, arena: &mut Arena, block: &TunedBlock, stream: View, (at, count): (usize, usize)) {
        let Flow { x, .. } = *block.flow();
        copy(arena, part(stream, at, count), part(x, 0, count));
    }

    /// The first row and the number of rows of each round.
    fn rounds(&self, rows: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let most = self.rows;
        (0..rows).step_by(most).map(move |at| (at, most.min(rows - at)))
    }
}

fn copy(arena: &mut Arena, from: View, to: View) {
    scale(arena, &[Scale::new(from, to)]);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use faer::Mat;

    use super::*;
    use crate::compress::factors;
    use crate::compress::round::round_to_payload;
    use crate::compress::tune::room::placed;
    use crate::device::Device;
    use crate::model::{Checkpoint, Linear, LinearName, SplitMix64};

    const RATES: Rates = Rates { scales: Some(1e-3), signs: None, dense: None };
    const BATCHES: [Batches; 2] = [
        Batches { positions: 12, batch: 3, at_once: 2, keep: Keep::Streams },
        Batches { positions: 12, batch: 3, at_once: 3, keep: Keep::Blocks },
    ];

    /// The embedded model with random factors in two of its four blocks.
    fn half_packed(original: &Decoder) -> Decoder {
        let mut decoder = original.clone();
        let mut random = SplitMix64::new(3);
        for (layer, name) in [1, 3].into_iter().flat_map(|layer| LinearName::ALL.map(|name| (layer, name))) {
            let [m, n] = name.shape(original.config());
            let mut sign = |_, _| if random.next_u64() & 1 == 1 { 1.0 } else { -1.0 };
            let (u, v) = (Mat::from_fn(m, 8, &mut sign), Mat::from_fn(n, 8, &mut sign));
            let mut scales = |len: usize| (0..len).map(|_| 0.5 + random.uniform()).collect::<Vec<f64>>();
            let (h, g) = (scales(m), scales(n));
            let l = scales(8).iter().map(|l| l * 0.3 / (n as f64).sqrt()).collect();
            let payload = round_to_payload(&[factors::Path { h, u, l, v, g }]).unwrap();
            decoder.set_linear(layer, name, Linear::Packed { payload, in_features: n }).unwrap();
        }
        decoder
    }

    /// The sum of the divergences of a batch.
    fn loss(arena: &mut Arena, model: &TunedModel, rows: usize) -> f64 {
        model.forward(arena, rows, Precision::F32);
        model.diverge(arena, rows, (model.lines(), None), Precision::F32);
        arena.read(model.lines(), rows).unwrap().iter().map(|kl| f64::from(*kl)).sum()
    }

    #[test]
    fn gradients_through_all_blocks_are_central_differences() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny");
        let original = Decoder::load(&Checkpoint::open(&folder).unwrap()).unwrap();
        let decoder = half_packed(&original);
        let tokens: Vec<u32> = (0..36).map(|k| 100 + k * 37 % 700).collect();
        let run = crate::model::Run::Windows { len: 12 };
        let teacher = original.hidden(&tokens, run, &mut crate::model::NoCapture).unwrap();
        for batches in BATCHES {
            check_gradients(&decoder, &tokens, &teacher, batches);
        }
    }

    fn check_gradients(decoder: &Decoder, tokens: &[u32], teacher: &[f32], batches: Batches) {
        let (model, len) = placed(|room| TunedModel::place(room, decoder, &RATES, batches)).unwrap();
        let mut arena = Arena::new(&Device::Host, len).unwrap();
        arena.write(0, &vec![f32::NAN; len]);
        let items = model.load(&mut arena, decoder);
        arena.write(model.teacher.at, teacher);
        arena.write(model.input().at, &decoder.embed(tokens).unwrap());
        // Steps of no length, after which the optimiser's mean is a tenth of the gradient.
        let still = |items: &Vec<Adam>| items.iter().map(|item| Adam { rate: 0.0, ..*item }).collect();
        let mut optimisers: Vec<Optimiser> =
            items.iter().map(|items| Optimiser::new(still(items), 1)).collect();
        model.forward(&mut arena, 36, Precision::F32);
        model.diverge(&mut arena, 36, (model.lines(), Some(1.0)), Precision::F32);
        model.backward(&mut arena, 36, Precision::F32, &mut optimisers);
        for layer in [1, 3] {
            for item in &items[layer] {
                let gradient: Vec<f64> =
                    arena.read(item.mean, item.len).unwrap().iter().map(|m| f64::from(*m) * 10.0).collect();
                let size = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
                let start = arena.read(item.parameters, item.len).unwrap();
                // Along the gradient, by a thousandth of the parameters' size.
                let length = start.iter().map(|p| f64::from(*p).powi(2)).sum::<f64>().sqrt();
                let mut at = |step: f64| {
                    let moved =
                        start.iter().zip(&gradient).map(|(p, g)| p + (step * length * g / size) as f32);
                    arena.write(item.parameters, &moved.collect::<Vec<f32>>());
                    loss(&mut arena, &model, 36)
                };
                let slope = (at(1e-3) - at(-1e-3)) / (2e-3 * length);
                arena.write(item.parameters, &start);
                // f32 sums on one side, the third derivative on the other.
                assert!(
                    (slope / size - 1.0).abs() < 5e-3,
                    "block {layer}, {batches:?}, {item:?}: {slope}, found {size}"
                );
            }
        }
    }
}
