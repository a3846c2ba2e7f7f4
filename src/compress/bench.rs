//! Measures the encoder: a device against the reference from the same Grams, and a block of a 7B model's shapes.

use std::time::Instant;

use faer::Mat;
use rayon::prelude::*;

use super::PackError;
use super::batch::{Report, SiteInput};
use super::calibration::{CalibrationParams, Draft, Source};
use super::context::Context;
use super::recipe::Recipe;
use super::schedule::{Done, Scheduler, Wanted, encode_stage};
use super::streams::{Blocks, SiteGrams, Streams, Which};
use super::tensor::{Grams, Input, Outcome, encode_tensor};
use super::threads::WholeProducts;
use crate::blr::Budget;
use crate::device::arena::{Arena, View};
use crate::device::{Device, DeviceError};
use crate::model::text::Text;
use crate::model::{Checkpoint, Decoder, Linear, LinearName, Site};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::splitmix::SplitMix64;

/// One tensor encoded twice from the same Grams.
#[derive(Clone, Debug)]
pub struct Compared {
    pub name: String,
    /// Held-out relative errors of the stored tensors.
    pub reference: f64,
    pub device: f64,
}

/// What [`compare`] found.
pub struct Comparison {
    pub tensors: Vec<Compared>,
    /// Seconds in the two encoders; contexts, spectra and rounding included.
    pub reference_s: f64,
    pub device_s: f64,
    /// Tensors that one of the two kept dense, or that the device gave back, with the reason.
    pub missing: Vec<String>,
    /// The model as the reference packed it.
    pub packed: Decoder,
}

impl Comparison {
    /// Mean over the tensors: how far the device's mean error is above the reference's, in percent.
    pub fn mean_delta_percent(&self) -> f64 {
        let sum = |of: fn(&Compared) -> f64| self.tensors.iter().map(of).sum::<f64>();
        100.0 * (sum(|t| t.device) / sum(|t| t.reference) - 1.0)
    }

    /// The tensor with the largest difference either way, and that difference in percent.
    pub fn worst(&self) -> Option<(&Compared, f64)> {
        let delta = |t: &Compared| 100.0 * (t.device / t.reference - 1.0);
        let by_size = |a: &&Compared, b: &&Compared| delta(a).abs().total_cmp(&delta(b).abs());
        self.tensors.iter().max_by(by_size).map(|tensor| (tensor, delta(tensor)))
    }
}

/// What is to be compared.
pub struct CompareParams {
    pub text: Text,
    pub calibration: CalibrationParams,
    pub recipe: Recipe,
    pub bits: f64,
    /// The first blocks of the model.
    pub blocks: usize,
}

/// Packs the first blocks with the reference; each is encoded on the device as well, from the same Grams.
pub fn compare(
    checkpoint: &Checkpoint,
    device: &Device,
    params: CompareParams,
    say: &dyn Fn(&str),
) -> Result<Comparison, PackError> {
    let (tokenizer, bos) = (checkpoint.tokenizer()?, checkpoint.config().start_token());
    let sources = Source::text(params.text);
    let draft = Draft::prepare(sources, &tokenizer, bos, params.calibration, params.recipe.tokens())?;
    let calibration = draft.finish(&[]);
    let mut decoder = Decoder::load(checkpoint)?;
    let mut streams = Streams::new(decoder.embed(calibration.windows.tokens())?, false);
    let mut scheduler = Scheduler::new(device.clone());
    let (mut tensors, mut missing) = (Vec::new(), Vec::new());
    let (mut reference_s, mut device_s) = (0.0, 0.0);
    for layer in 0..params.blocks.min(checkpoint.config().layers) {
        say(&format!("block {} of {}", layer + 1, params.blocks));
        let grams = streams.capture_grams(Blocks::one(decoder.block(layer)), &calibration, &Site::ALL)?;
        let weights: Vec<(LinearName, Vec<f32>, usize)> = (LinearName::ALL.into_iter())
            .filter_map(|name| match decoder.linear(layer, name) {
                Linear::Dense(tensor) => Some((name, tensor.to_f32(), tensor.rows())),
                Linear::Packed { .. } => None,
            })
            .collect();
        let budget = Budget { bits: params.bits, factor: 1.0 };
        let began = Instant::now();
        let on_device = on_device(&mut scheduler, &params.recipe, &grams, &weights, budget, layer);
        device_s += began.elapsed().as_secs_f64();
        let began = Instant::now();
        let by_reference = by_reference(&params.recipe, grams, &weights, budget);
        reference_s += began.elapsed().as_secs_f64();
        for (((name, _, _), device), reference) in weights.iter().zip(on_device).zip(by_reference) {
            let name_of = name.prefix(layer);
            let in_features = decoder.linear(layer, *name).in_features();
            match (reference, device) {
                (Outcome::Packed(reference), device) => {
                    match device {
                        Ok(device) => tensors.push(Compared {
                            name: name_of,
                            reference: reference.quality.heldout_rel.unwrap_or(f64::NAN),
                            device,
                        }),
                        Err(reason) => missing.push(format!("{name_of} on the device: {reason}")),
                    }
                    let payload = reference.payload.clone();
                    decoder.set_linear(layer, *name, Linear::Packed { payload, in_features })?;
                }
                (Outcome::Dense(reason), _) => missing.push(format!("{name_of}: {reason}")),
            }
        }
        streams.advance(Which::Packed, decoder.block(layer), &calibration);
    }
    Ok(Comparison { tensors, reference_s, device_s, missing, packed: decoder })
}

/// Held-out errors of the stored tensors.
fn on_device(
    scheduler: &mut Scheduler,
    recipe: &Recipe,
    grams: &SiteGrams,
    weights: &[(LinearName, Vec<f32>, usize)],
    budget: Budget,
    layer: usize,
) -> Vec<Result<f64, String>> {
    let sites = [0, 1, 2, 3].map(|s| SiteInput {
        width: grams[s].as_ref().map_or(0, |grams| grams.fit.nrows()),
        grams: grams[s].as_ref(),
        damping: recipe.needs_text().then_some(recipe.damping),
    });
    let wanted: Vec<Wanted<'_>> = (weights.iter())
        .map(|(name, weight, rows)| Wanted {
            name: name.prefix(layer),
            weight,
            rows: *rows,
            site: name.site() as usize,
            budget,
        })
        .collect();
    let mut results: Vec<Result<f64, String>> = vec![Err("nothing was returned".into()); weights.len()];
    encode_stage(scheduler, recipe, &sites, &wanted, |k, done| {
        results[k] = match done {
            Done::Packed(packed) => Ok(packed.quality.heldout_rel.unwrap_or(f64::NAN)),
            Done::Dense(reason) | Done::Retry(reason) => Err(reason),
        };
    });
    results
}

fn by_reference(
    recipe: &Recipe,
    grams: SiteGrams,
    weights: &[(LinearName, Vec<f32>, usize)],
    budget: Budget,
) -> Vec<Outcome> {
    let inputs: Vec<Result<Input, String>> = (Vec::from(grams).into_par_iter())
        .map(|grams| {
            let grams = grams.ok_or("its input was not calibrated")?;
            let context = Context::build(&grams.fit, recipe.damping).map_err(|e| e.to_string())?;
            Ok(Input { context, grams: Some(grams) })
        })
        .collect();
    let _whole = WholeProducts::on_many_threads();
    (weights.par_iter())
        .map(|(name, weight, rows)| {
            let cols = weight.len() / rows;
            let dense = Mat::from_fn(*rows, cols, |i, j| f64::from(weight[i * cols + j]));
            match &inputs[name.site() as usize] {
                Ok(input) => encode_tensor(dense, input, budget, recipe),
                Err(reason) => Outcome::Dense(reason.clone()),
            }
        })
        .collect()
}

/// The linear layers of one block of a 7B Llama: outputs, inputs, and the input that they read.
const BLOCK_7B: [(&str, usize, usize, Site); 7] = [
    ("down", 4096, 11008, Site::Down),
    ("gate", 11008, 4096, Site::Mlp),
    ("up", 11008, 4096, Site::Mlp),
    ("q", 4096, 4096, Site::Attention),
    ("k", 4096, 4096, Site::Attention),
    ("v", 4096, 4096, Site::Attention),
    ("o", 4096, 4096, Site::Output),
];

/// What a synthetic block took.
pub struct BlockRun {
    pub seconds: f64,
    pub report: Report,
    /// Name, rank, and relative error on the held-out Gram.
    pub tensors: Vec<(&'static str, usize, f64)>,
    pub missing: Vec<String>,
}

/// Encodes one block of a 7B model's shapes, each side divided by `divisor`, whose weights and inputs are made up: a
/// power-law spectrum, inputs that depend on each other, every 61st channel ten times as strong.
pub fn block_7b(
    device: &Device,
    divisor: usize,
    bits: f64,
    say: &dyn Fn(&str),
) -> Result<BlockRun, DeviceError> {
    let shapes = BLOCK_7B.map(|(name, m, n, site)| (name, m / divisor, n / divisor, site));
    let width = |site: Site| shapes.iter().find(|s| s.3 == site).map_or(0, |s| s.2);
    let mut grams = Vec::new();
    for site in Site::ALL {
        say(&format!("making up the inputs of {site:?}"));
        grams.push(made_up_grams(device, width(site), site as u64)?);
    }
    let weights: Vec<Vec<f32>> = (shapes.iter().enumerate())
        .map(|(k, (_, m, n, _))| made_up_weight(device, *m, *n, 100 + k as u64))
        .collect::<Result<_, _>>()?;
    let recipe = Recipe::nvg();
    let sites: Vec<SiteInput<'_>> = (grams.iter())
        .map(|g| SiteInput { width: g.fit.nrows(), grams: Some(g), damping: Some(recipe.damping) })
        .collect();
    let budget = Budget { bits, factor: 1.0 };
    let wanted: Vec<Wanted<'_>> = (shapes.iter().zip(&weights))
        .map(|((name, m, _, site), weight)| Wanted {
            name: (*name).into(),
            weight,
            rows: *m,
            site: *site as usize,
            budget,
        })
        .collect();
    let (mut tensors, mut missing) = (Vec::new(), Vec::new());
    say("encoding");
    let began = Instant::now();
    let report =
        encode_stage(&mut Scheduler::new(device.clone()), &recipe, &sites, &wanted, |k, done| match done {
            Done::Packed(packed) => {
                let quality = &packed.quality;
                tensors.push((shapes[k].0, quality.rank, quality.heldout_rel.unwrap_or(f64::NAN)));
            }
            Done::Dense(reason) | Done::Retry(reason) => missing.push(format!("{}: {reason}", shapes[k].0)),
        });
    Ok(BlockRun { seconds: began.elapsed().as_secs_f64(), report, tensors, missing })
}

/// Sources of strength `(1+j)^−½` through one fixed mixture of n/2 of them, with noise that every channel has of its
/// own; the products run on the device.
fn made_up_grams(device: &Device, n: usize, seed: u64) -> Result<Grams, DeviceError> {
    let sources = (n / 2).max(8);
    let mut random = SplitMix64::new(seed);
    let mixture: Vec<f32> = (0..n * sources)
        .map(|k| {
            let heavy = if (k / sources) % 61 == 17 { 10.0 } else { 1.0 };
            heavy * (2.0 * random.uniform() as f32 - 1.0) / (1.0 + (k % sources) as f32).sqrt()
        })
        .collect();
    let mut gram = |tokens: usize| -> Result<Mat<f64>, DeviceError> {
        let (mix, data) = (View::new(0, n, sources), View::new(n * sources, tokens, sources));
        let x = View::new(data.at + data.len(), tokens, n);
        let h = View::new(x.at + x.len(), n, n);
        let mut arena = Arena::new(device, h.at + h.len())?;
        arena.write(mix.at, &mixture);
        let noise: Vec<f32> = (0..data.len()).map(|_| 2.0 * random.uniform() as f32 - 1.0).collect();
        arena.write(data.at, &noise);
        let own: Vec<f32> = (0..x.len()).map(|_| 0.2 * random.uniform() as f32 - 0.1).collect();
        arena.write(x.at, &own);
        gemm(&mut arena, &[Gemm::new(data, mix, x).b_transposed().beta(1.0)]);
        gemm(&mut arena, &[Gemm::new(x, x, h).a_transposed().alpha(1.0 / tokens as f32)]);
        let values = arena.read(h.at, h.len())?;
        // A product's two triangles differ by rounding.
        Ok(Mat::from_fn(n, n, |i, j| f64::from(values[i.max(j) * n + i.min(j)])))
    };
    Ok(Grams { fit: gram(2 * n)?, heldout: gram(n)?, cross: None })
}

/// A product of n/4 directions whose strengths fall like `(1+j)^−½`, with noise.
fn made_up_weight(device: &Device, m: usize, n: usize, seed: u64) -> Result<Vec<f32>, DeviceError> {
    let rank = (m.min(n) / 4).max(8);
    let mut random = SplitMix64::new(seed);
    let mut matrix = |count: usize, size: f32| -> Vec<f32> {
        (0..count).map(|_| size * (2.0 * random.uniform() as f32 - 1.0)).collect()
    };
    let (left, right) = (View::new(0, m, rank), View::new(m * rank, rank, n));
    let w = View::new(right.at + right.len(), m, n);
    let mut arena = Arena::new(device, w.at + w.len())?;
    let mut strengths = matrix(left.len(), 0.05);
    strengths.iter_mut().enumerate().for_each(|(k, l)| *l /= (1.0 + (k % rank) as f32).sqrt());
    arena.write(left.at, &strengths);
    arena.write(right.at, &matrix(right.len(), 1.0));
    arena.write(w.at, &matrix(w.len(), 0.02));
    gemm(&mut arena, &[Gemm::new(left, right, w).beta(1.0)]);
    arena.read(w.at, w.len())
}
