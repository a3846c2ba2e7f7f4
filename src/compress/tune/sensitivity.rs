use super::model::{TunedModel, in_room};
use super::optimiser::{Optimiser, Rates};
use super::reconstruct::Tuner;
use super::room::placed;
use super::{TuneError, unsupported};
use crate::device::arena::Precision;
use crate::model::{Decoder, LinearName};
use crate::ops::cross_entropy::NO_TOKEN;

/// Positions of a step.
const BATCH: usize = 4096;

/// What each layer of a model is worth by its outputs, in the order of blocks and of [`LinearName::ALL`]: for each output y
/// the mean over positions of `(∂(−log p)/∂y)²`, p the probability of the token that came.
pub type Sensitivities = Vec<[Vec<f64>; 7]>;

impl Tuner {
    /// Sensitivities of a dense model over windows of `positions` tokens, in f32. Where the model wrote the text itself
    /// this is the diagonal of its Fisher information for what the layers give: half of it is what a small change of an
    /// output adds to the divergence (Amari 1998).
    ///
    /// # Errors
    /// As those of [`Tuner::distill`]; gradients that are not finite.
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
        let config = decoder.config();
        unsupported(config)?;
        let (windows, frozen) = (tokens.len() / positions, Rates { scales: None, signs: None, dense: None });
        let batch = (BATCH / positions).clamp(1, windows);
        let plan = |batches| {
            placed(|room| {
                let mut model = TunedModel::place(room, decoder, &frozen, batches)?;
                model.add_squares(room, config);
                Ok((model, room.kept.vector(batch * positions)))
            })
        };
        let ((model, next), len) = in_room(self.room()?, "gradients of the model", (positions, batch), plan)?;
        let arena = self.arena(len)?;
        model.load(arena, decoder);
        let sizes = LinearName::ALL.map(|name| name.shape(config)[0]);
        for block in model.blocks() {
            for (at, size) in block.squares().into_iter().flatten().zip(sizes) {
                arena.write(at, &vec![0.0; size]);
            }
        }
        let mut optimisers = vec![Optimiser::new(Vec::new(), 1); config.layers];
        for some in tokens.chunks(batch * positions) {
            arena.write(model.input().at, &decoder.embed(some).expect("the windows were cut for this model"));
            arena.write(next, &next_tokens(some, positions));
            model.forward(arena, some.len(), Precision::F32);
            model.surprise(arena, some.len(), (next, model.lines()), Precision::F32);
            model.backward(arena, some.len(), Precision::F32, &mut optimisers);
        }
        let terms = (windows * (positions - 1)) as f64;
        let mut found = Sensitivities::new();
        for (layer, block) in model.blocks().iter().enumerate() {
            let mut all = [const { Vec::new() }; 7];
            for ((squares, at), size) in all.iter_mut().zip(block.squares().into_iter().flatten()).zip(sizes)
            {
                let sums = arena.read(at, size)?;
                if let Some(position) = sums.iter().position(|sum| !sum.is_finite()) {
                    let (what, value) = ("gradient", sums[position]);
                    return Err(TuneError::NonFinite { what, layer, position, value });
                }
                *squares = sums.iter().map(|sum| f64::from(*sum) / terms).collect();
            }
            found.push(all);
        }
        Ok(found)
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
    use crate::device::Device;
    use crate::model::{Checkpoint, Linear, NoCapture, Run};

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
