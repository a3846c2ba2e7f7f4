use super::room::Room;
use crate::device::arena::{Arena, Precision, View};
use crate::model::{Config, Decoder, Linear};
use crate::ops::cross_entropy::{CrossEntropy, cross_entropy};
use crate::ops::divergence::{Divergence, divergence};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::rms_norm::{RmsNorm, rms_norm_batch};
use crate::ops::rms_norm_backward::{Added, RmsNormGradient, rms_norm_backward};

/// Rows whose logits are on the device at the same time.
const LOGIT_ROWS: usize = 2048;

/// What stands behind the last block: the norm and the head, forward and backward.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    norm: usize,
    weight: View,
    /// Normed streams and logits of some rows: ours, and the original's where they are compared.
    normed: [View; 2],
    logits: [View; 2],
    rms_eps: f64,
}

/// Whose logits are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Models {
    One,
    /// Ours and the original's.
    Two,
}

impl Head {
    pub fn place(room: &mut Room, config: &Config, rows: usize, models: Models) -> Self {
        let Config { hidden, vocab, rms_eps, .. } = *config;
        let some = LOGIT_ROWS.min(rows);
        let mut pair = |cols| {
            let ours = room.scratch.matrix(some, cols);
            [ours, if models == Models::Two { room.scratch.matrix(some, cols) } else { ours }]
        };
        let (normed, logits) = (pair(hidden), pair(vocab));
        let (norm, weight) = (room.kept.vector(hidden), room.kept.matrix(vocab, hidden));
        Self { norm, weight, normed, logits, rms_eps }
    }

    pub fn load(&self, arena: &mut Arena, decoder: &Decoder) {
        arena.write(self.norm, decoder.norm());
        if let Linear::Dense(head) = decoder.head() {
            arena.write(self.weight.at, &head.to_f32());
        }
    }

    /// The divergence of each row of a stream from the original's distribution goes to `out`; where there is a factor, the
    /// gradient of `factor·Σ divergence` with respect to the stream goes to `slope`.
    pub fn diverge(
        &self,
        arena: &mut Arena,
        [stream, teacher, slope]: [View; 3],
        (out, factor): (usize, Option<f32>),
        precision: Precision,
    ) {
        for (at, count) in self.parts(stream.rows) {
            let [ours, theirs] = [stream, teacher].map(|of| part(of, at, count));
            self.forward(arena, &[ours, theirs], precision);
            let [logits, target] = self.logits.map(|of| part(of, 0, count));
            let scale = factor.unwrap_or(0.0);
            divergence(arena, &[Divergence { logits, target, out: out + at, factor: scale }]);
            if factor.is_some() {
                self.backward(arena, ours, part(slope, at, count), precision);
            }
        }
    }

    /// `−log p` of the token of each row of a stream goes to `out`, and the gradient of their sum with respect to the
    /// stream to `slope`; `tokens` is where they stand.
    pub fn surprise(
        &self,
        arena: &mut Arena,
        [stream, slope]: [View; 2],
        (tokens, out): (usize, usize),
        precision: Precision,
    ) {
        for (at, count) in self.parts(stream.rows) {
            let x = part(stream, at, count);
            self.forward(arena, &[x], precision);
            let logits = part(self.logits[0], 0, count);
            let item = CrossEntropy { logits, tokens: tokens + at, out: out + at, factor: 1.0 };
            cross_entropy(arena, &[item]);
            self.backward(arena, x, part(slope, at, count), precision);
        }
    }

    /// The logits of streams, in our place and the other.
    fn forward(&self, arena: &mut Arena, streams: &[View], precision: Precision) {
        let norm = |(x, y): (&View, View)| RmsNorm { x: *x, weight: self.norm, y: part(y, 0, x.rows) };
        let norms: Vec<RmsNorm> = streams.iter().zip(self.normed).map(norm).collect();
        rms_norm_batch(arena, self.rms_eps, &norms);
        let product = |(RmsNorm { y, .. }, logits): (&RmsNorm, View)| {
            Gemm::new(*y, self.weight, part(logits, 0, y.rows)).b_transposed().precision(precision)
        };
        gemm(arena, &norms.iter().zip(self.logits).map(product).collect::<Vec<_>>());
    }

    /// From the gradient of our logits, in their place, to that of the stream.
    fn backward(&self, arena: &mut Arena, x: View, dx: View, precision: Precision) {
        let [normed, logits] = [self.normed, self.logits].map(|pair| part(pair[0], 0, x.rows));
        gemm(arena, &[Gemm::new(logits, self.weight, normed).precision(precision)]);
        let item = RmsNormGradient { x, weight: self.norm, dy: normed, dx, result: Added::Replace };
        rms_norm_backward(arena, self.rms_eps, &[item]);
    }

    /// The first row and the number of rows of each part that has room.
    fn parts(&self, rows: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let most = self.normed[0].rows;
        (0..rows).step_by(most).map(move |at| (at, most.min(rows - at)))
    }
}

pub(super) fn part(of: View, at: usize, rows: usize) -> View {
    of.part((at, 0), (rows, of.cols))
}
