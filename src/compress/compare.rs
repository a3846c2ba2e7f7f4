//! A device's encoder against the reference, from the same Grams.

use std::path::PathBuf;
use std::time::Instant;

use faer::Mat;
use rayon::prelude::*;

use super::PackError;
use super::batch::SiteInput;
use super::calibration::{CalibrationParams, Draft, Read, Source};
use super::context::Context;
use super::encoder::EncodedBy;
use super::journal::{Identity, Journal, Record};
use super::plan::Plan;
use super::recipe::Recipe;
use super::schedule::{Done, Scheduler, Wanted, encode_stage};
use super::streams::{Blocks, SiteGrams, Streams, Which};
use super::tensor::{Grams, Input, Outcome, encode_tensor};
use super::threads::WholeProducts;
use crate::blr::{Budget, Payload};
use crate::device::Device;
use crate::model::text::Text;
use crate::model::{Checkpoint, Decoder, Linear, LinearName, Site};

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
    /// Seconds in the two encoders, contexts, spectra and rounding included; results that were kept take none.
    pub reference_s: f64,
    pub device_s: f64,
    /// Tensors that the reference had encoded before.
    pub kept: usize,
    /// Tensors that one of the two kept dense, or that the device gave back, with the reason.
    pub missing: Vec<String>,
    /// The model with the compared blocks as each of the two packed them.
    pub by_reference: Decoder,
    pub by_device: Decoder,
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
    /// Keeps the reference's results in the folder `<this>.partial`, and takes from there what it holds already: they
    /// take minutes a block on few cores, and do not depend on the device.
    pub kept: Option<PathBuf>,
}

/// Encodes the first blocks with the reference and on a device; without one, only fills the folder of kept results.
///
/// Every block's Grams are those of the original's stream, so that both fit every tensor to the same and the errors of one
/// block are not the inputs of the next.
pub fn compare(
    checkpoint: &Checkpoint,
    device: Option<&Device>,
    params: CompareParams,
    say: &dyn Fn(&str),
) -> Result<Comparison, PackError> {
    Plan::uniform(params.bits).resolve(checkpoint.config().layers)?;
    let (tokenizer, bos) = (checkpoint.tokenizer()?, checkpoint.config().start_token());
    let sources = Source::text(params.text);
    let draft =
        Draft::prepare(sources, &tokenizer, bos, params.calibration, params.recipe.tokens(), Read::AsNeeded)?;
    let identity = Identity {
        // The journal of a pack run holds tensors that were fitted to what packed blocks give.
        version: format!("{}, on the original's stream", env!("CARGO_PKG_VERSION")),
        model: checkpoint.fingerprint(),
        recipe: params.recipe.clone(),
        plan: Plan::uniform(params.bits),
        calibration: Some(draft.record()),
        encoder: EncodedBy::F64Host,
    };
    let open = |kept: PathBuf| Journal::open(&kept, &identity, Journal::folder_of(&kept).is_dir());
    let journal = params.kept.map(open).transpose()?;
    let calibration = draft.finish(&[]);
    let original = Decoder::load(checkpoint)?;
    let mut streams = Streams::new(original.embed(calibration.windows.tokens())?, false);
    let mut comparison = Comparison {
        tensors: Vec::new(),
        reference_s: 0.0,
        device_s: 0.0,
        kept: 0,
        missing: Vec::new(),
        by_reference: original.clone(),
        by_device: original.clone(),
    };
    let mut scheduler = device.map(|device| Scheduler::new(device.clone()));
    let blocks = params.blocks.min(checkpoint.config().layers);
    for layer in 0..blocks {
        let grams = streams.capture_grams(Blocks::one(original.block(layer)), &calibration, &Site::ALL)?;
        let stage = Stage {
            recipe: &params.recipe,
            budget: Budget { bits: params.bits, factor: 1.0 },
            layer,
            weights: weights(&original, layer),
        };
        let began = Instant::now();
        let by_device = scheduler.as_mut().map(|scheduler| stage.on_device(scheduler, &grams));
        comparison.device_s += began.elapsed().as_secs_f64();
        let began = Instant::now();
        let (by_reference, kept) = stage.by_reference(grams, journal.as_ref())?;
        comparison.kept += kept;
        let took = began.elapsed().as_secs_f64();
        comparison.reference_s += took;
        say(&format!("block {} of {blocks}: {took:.1} s by the reference", layer + 1));
        comparison.add(&stage, by_reference, by_device)?;
        streams.advance(Which::Packed, original.block(layer), &calibration);
    }
    Ok(comparison)
}

/// A payload with the held-out error of what it stores, or why there is none.
type Encoded = Result<(Payload, f64), String>;

impl Comparison {
    fn add(
        &mut self,
        stage: &Stage<'_>,
        by_reference: Vec<Encoded>,
        by_device: Option<Vec<Encoded>>,
    ) -> Result<(), PackError> {
        let by_device =
            by_device.map_or(vec![None; by_reference.len()], |all| all.into_iter().map(Some).collect());
        for ((weight, reference), device) in stage.weights.iter().zip(by_reference).zip(by_device) {
            let name = weight.name.prefix(stage.layer);
            let mut errors = [None; 2];
            let sides = [
                (Some(reference), &mut self.by_reference, "by the reference"),
                (device, &mut self.by_device, "on the device"),
            ];
            for ((encoded, decoder, side), error) in sides.into_iter().zip(&mut errors) {
                match encoded {
                    Some(Ok((payload, rel))) => {
                        let in_features = decoder.linear(stage.layer, weight.name).in_features();
                        let packed = Linear::Packed { payload, in_features };
                        decoder.set_linear(stage.layer, weight.name, packed)?;
                        *error = Some(rel);
                    }
                    Some(Err(reason)) => self.missing.push(format!("{name} {side}: {reason}")),
                    None => {}
                }
            }
            if let [Some(reference), Some(device)] = errors {
                self.tensors.push(Compared { name, reference, device });
            }
        }
        Ok(())
    }
}

/// A dense layer of a block.
struct Weight {
    name: LinearName,
    values: Vec<f32>,
    rows: usize,
}

fn weights(decoder: &Decoder, layer: usize) -> Vec<Weight> {
    let dense = |name: LinearName| match decoder.linear(layer, name) {
        Linear::Dense(tensor) => Some(Weight { name, values: tensor.to_f32(), rows: tensor.rows() }),
        Linear::Packed { .. } => None,
    };
    LinearName::ALL.into_iter().filter_map(dense).collect()
}

/// One block's tensors.
struct Stage<'a> {
    recipe: &'a Recipe,
    budget: Budget,
    layer: usize,
    weights: Vec<Weight>,
}

impl Stage<'_> {
    fn on_device(&self, scheduler: &mut Scheduler, grams: &SiteGrams) -> Vec<Encoded> {
        let sites = [0, 1, 2, 3].map(|s| SiteInput {
            width: grams[s].as_ref().map_or(0, |grams| grams.fit.nrows()),
            grams: grams[s].as_ref(),
            damping: self.recipe.needs_text().then_some(self.recipe.damping),
        });
        let wanted: Vec<Wanted<'_>> = (self.weights.iter())
            .map(|Weight { name, values, rows }| Wanted {
                name: name.prefix(self.layer),
                weight: values,
                rows: *rows,
                site: name.site() as usize,
                budget: self.budget,
            })
            .collect();
        let mut results: Vec<Encoded> = vec![Err("nothing was returned".into()); wanted.len()];
        encode_stage(scheduler, self.recipe, &sites, &wanted, |k, done| {
            results[k] = match done {
                Done::Packed(packed) => Ok((packed.payload, packed.quality.heldout_rel.unwrap_or(f64::NAN))),
                Done::Dense(reason) | Done::Retry(reason) => Err(reason),
            };
        });
        results
    }

    /// What the journal holds, and the rest computed, which goes there; and how many it held.
    fn by_reference(
        &self,
        grams: SiteGrams,
        journal: Option<&Journal>,
    ) -> Result<(Vec<Encoded>, usize), PackError> {
        let mut results: Vec<Option<Encoded>> = Vec::new();
        for weight in &self.weights {
            let kept =
                journal.map(|journal| journal.read_tensor(&weight.name.prefix(self.layer))).transpose()?;
            results.push(kept.flatten().map(|kept| match kept {
                (Record::Packed { quality, .. }, Some(payload)) => {
                    Ok((payload, quality.heldout_rel.unwrap_or(f64::NAN)))
                }
                (Record::Dense { reason }, _) => Err(reason),
                (Record::Packed { .. }, None) => Err("its payload is gone".into()),
            }));
        }
        let open: Vec<usize> = (0..results.len()).filter(|k| results[*k].is_none()).collect();
        let kept = results.len() - open.len();
        if !open.is_empty() {
            let outcomes = self.encode(&open, grams);
            for (k, outcome) in open.into_iter().zip(outcomes) {
                results[k] = Some(self.keep(k, outcome, journal)?);
            }
        }
        Ok((results.into_iter().flatten().collect(), kept))
    }

    /// Those of the tensors, by the reference.
    fn encode(&self, which: &[usize], grams: SiteGrams) -> Vec<Outcome> {
        let input = |grams: Option<Grams>| -> Result<Input, String> {
            let grams = grams.ok_or("its input was not calibrated")?;
            let context = Context::build(&grams.fit, self.recipe.damping).map_err(|e| e.to_string())?;
            Ok(Input { context, grams: Some(grams) })
        };
        let inputs: Vec<_> = Vec::from(grams).into_par_iter().map(input).collect();
        let _whole = WholeProducts::on_many_threads();
        let one = |k: &usize| {
            let Weight { name, values, rows } = &self.weights[*k];
            let cols = values.len() / rows;
            let dense = Mat::from_fn(*rows, cols, |i, j| f64::from(values[i * cols + j]));
            match &inputs[name.site() as usize] {
                Ok(input) => encode_tensor(dense, input, self.budget, self.recipe),
                Err(reason) => Outcome::Dense(reason.clone()),
            }
        };
        which.par_iter().map(one).collect()
    }

    fn keep(&self, k: usize, outcome: Outcome, journal: Option<&Journal>) -> Result<Encoded, PackError> {
        let name = self.weights[k].name.prefix(self.layer);
        Ok(match outcome {
            Outcome::Packed(packed) => {
                let rel = packed.quality.heldout_rel.unwrap_or(f64::NAN);
                if let Some(journal) = journal {
                    journal.write_packed(&name, &packed.payload, packed.quality)?;
                }
                Ok((packed.payload, rel))
            }
            Outcome::Dense(reason) => {
                if let Some(journal) = journal {
                    journal.write_dense(&name, reason.clone())?;
                }
                Err(reason)
            }
        })
    }
}
