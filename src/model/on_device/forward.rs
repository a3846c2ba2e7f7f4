use super::block::DeviceBlock;
use super::weights::{Factors, write_linear};
use super::{ForwardError, check};
use crate::device::arena::{Arena, Layout, View};
use crate::device::{Device, DeviceError};
use crate::model::{Config, Decoder, DecoderError};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::log_softmax::{LogProbability, log_probability_batch};
use crate::ops::rms_norm::{RmsNorm, rms_norm_batch};
use crate::ops::scale::{Scale, scale};

/// Rows of the residual stream that go through a block at once.
const BATCH_ROWS: usize = 8192;

/// Positions whose logits are there at once, on a host too: 25 MB for a vocabulary of 49,152. Allocators give larger
/// pieces back to the system at once, and mapping them anew costs more than what they are for.
pub const LOGIT_ROWS: usize = 128;

/// A decoder on a device for whole windows of a text: the stream of all of them stays there and blocks pass by, so that
/// a model needs room for one block, its head and the text, and no more.
pub struct DeviceForward {
    arena: Arena,
    /// All positions x width
    stream: View,
    norm: usize,
    normed: View,
    head: View,
    logits: View,
    /// Tokens that came, and their log-probabilities.
    scores: View,
    epsilon: f64,
}

/// Where everything lies.
struct Places {
    room: DeviceBlock,
    stream: View,
    norm: usize,
    normed: View,
    head: View,
    logits: View,
    scores: View,
    factors: Factors,
}

impl Places {
    fn plan(
        layout: &mut Layout,
        config: &Config,
        (window, windows): (usize, usize),
        batch: usize,
    ) -> Result<Self, ForwardError> {
        let stream = layout.matrix(windows * window, config.hidden);
        let norm = layout.vector(config.hidden);
        let normed = layout.matrix(LOGIT_ROWS, config.hidden);
        let head = layout.matrix(config.vocab, config.hidden);
        let logits = layout.matrix(LOGIT_ROWS, config.vocab);
        let scores = layout.matrix(2, LOGIT_ROWS);
        // The head is written before a block comes.
        let start = layout.mark();
        let factors = Factors::place(layout, config);
        let end = layout.mark();
        layout.back_to(start);
        let room = DeviceBlock::place(layout, config, window, batch)?;
        layout.skip_to(end);
        Ok(Self { room, stream, norm, normed, head, logits, scores, factors })
    }
}

impl DeviceForward {
    /// Whether a device takes a model and a text of `windows` windows of `window` positions.
    ///
    /// Errors: what the kernels lack, or what is needed there, where there is not that much.
    pub fn fits(
        device: &Device,
        config: &Config,
        (window, windows): (usize, usize),
    ) -> Result<(), ForwardError> {
        Self::place(device, config, (window, windows)).map(|_| ())
    }

    /// Where everything lies, and the numbers that it takes in all.
    fn place(
        device: &Device,
        config: &Config,
        (window, windows): (usize, usize),
    ) -> Result<(Places, usize), ForwardError> {
        check(config)?;
        if window > config.max_positions {
            return Err(DecoderError::TooLong { needed: window, most: config.max_positions }.into());
        }
        let largest = Arena::largest(device)?.min(Arena::room(device)?);
        let plan = |batch: usize| -> Result<(Places, usize), ForwardError> {
            let mut layout = Layout::default();
            let places = Places::plan(&mut layout, config, (window, windows), batch)?;
            Ok((places, layout.most()))
        };
        let mut batch = (BATCH_ROWS / window).clamp(1, windows.max(1));
        while batch > 1 && plan(batch)?.1 > largest {
            batch /= 2;
        }
        let (places, numbers) = plan(batch)?;
        if numbers > largest {
            let what = format!("a block, the head and {windows} windows of {window} positions");
            return Err(DeviceError::memory(what, numbers as u64 * 4, largest as u64 * 4).into());
        }
        Ok((places, numbers))
    }

    /// Brings windows of `window` positions each, one behind another in `tokens`, to a device and through the model.
    ///
    /// Errors: as [`fits`](Self::fits); a token that the model does not have.
    pub fn run(
        device: &Device,
        decoder: &Decoder,
        tokens: &[u32],
        window: usize,
    ) -> Result<Self, ForwardError> {
        let config = decoder.config();
        let (places, numbers) = Self::place(device, config, (window, tokens.len() / window))?;
        let mut arena = Arena::new(device, numbers)?;
        let Places { mut room, stream, norm, normed, head, logits, scores, factors } = places;
        write_linear(&mut arena, &decoder.head, head, &factors);
        arena.write(norm, &decoder.norm);
        arena.write(stream.at, &decoder.embed(tokens)?);
        room.prepare(&mut arena);
        for layer in 0..config.layers {
            room.load(&mut arena, decoder.block(layer));
            for start in (0..stream.rows).step_by(room.most_rows()) {
                let rows = room.most_rows().min(stream.rows - start);
                let (inside, part) = (room.stream(rows), stream.part((start, 0), (rows, stream.cols)));
                scale(&mut arena, &[Scale::new(part, inside)]);
                room.inputs(&mut arena, rows);
                room.finish(&mut arena, rows);
                scale(&mut arena, &[Scale::new(inside, part)]);
            }
            arena.finish()?;
        }
        Ok(Self { arena, stream, norm, normed, head, logits, scores, epsilon: config.rms_eps })
    }

    /// Logits after `rows` positions, at most [`LOGIT_ROWS`], from position `start` of all: rows x vocabulary.
    ///
    /// # Panics
    /// When there are no such positions.
    pub fn logits(&mut self, start: usize, rows: usize) -> Result<Vec<f32>, DeviceError> {
        let logits = self.queue_logits(start, rows);
        self.arena.read(logits.at, logits.len())
    }

    /// Log-probabilities of the tokens that came behind the positions from `start` on, in nats, at most [`LOGIT_ROWS`];
    /// logits stay on the device.
    ///
    /// # Panics
    /// When there are no such positions.
    pub fn log_probabilities(&mut self, start: usize, next: &[u32]) -> Result<Vec<f32>, DeviceError> {
        let logits = self.queue_logits(start, next.len());
        let [targets, out] = [self.scores.at, self.scores.at + LOGIT_ROWS];
        self.arena.write(targets, &next.iter().map(|token| *token as f32).collect::<Vec<_>>());
        log_probability_batch(&mut self.arena, &[LogProbability { logits, targets, out }]);
        self.arena.read(out, next.len())
    }

    fn queue_logits(&mut self, start: usize, rows: usize) -> View {
        let first = |view: View| view.part((0, 0), (rows, view.cols));
        let x = self.stream.part((start, 0), (rows, self.stream.cols));
        let (normed, logits) = (first(self.normed), first(self.logits));
        let norm = RmsNorm { x, weight: self.norm, y: normed };
        rms_norm_batch(&mut self.arena, self.epsilon, &[norm]);
        gemm(&mut self.arena, &[Gemm::new(normed, self.head, logits).b_transposed()]);
        logits
    }
}
