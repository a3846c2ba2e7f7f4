use std::path::PathBuf;
use std::sync::Arc;

use super::block::{BlockEncoder, Job};
use super::calibration::{Calibration, CalibrationParams};
use super::encoder::Encoder;
use super::error::PackError;
use super::fit::check_fits;
use super::journal::{Identity, Journal, difference};
use super::observer::{Event, Observer, Stage};
use super::output;
use super::packing::Packing;
use super::plan::{Assignment, Plan};
use super::recipe::Recipe;
use super::schedule::Scheduler;
use super::stream::Stream;
use super::tensor::Grams;
use crate::model::text::{Text, TextError};
use crate::model::{Checkpoint, Decoder, Linear, LinearName, Tokenizer};

/// What to pack, how, and where to.
pub struct PackParams {
    /// The folder to write; it must not exist.
    pub output: PathBuf,
    pub plan: Plan,
    pub recipe: Recipe,
    pub encoder: Encoder,
    /// Calibration text; a recipe that does not need it packs without, and then reports no error on activations.
    pub text: Option<Text>,
    pub calibration: CalibrationParams,
    /// Continue an interrupted run of the same identity.
    pub resume: bool,
}

/// Packs a model block by block: calibrate, encode, run the block packed, go on. Cost is linear in depth.
///
/// Interrupted at any moment, a run with `resume` continues and gives the same bytes. Returns what packing.json says.
pub fn pack(
    checkpoint: &Checkpoint,
    params: PackParams,
    observer: &dyn Observer,
) -> Result<Packing, PackError> {
    // Without a trailing slash or `.`, so that the journal lies beside the output.
    let output: PathBuf = params.output.components().collect();
    let finished = output.symlink_metadata().is_ok();
    if finished && !(params.resume && Journal::folder_of(&output).is_dir()) {
        return Err(PackError::OutputExists(output));
    }
    let config = checkpoint.config();
    let assignments = params.plan.resolve(config.layers)?;
    if let Some(packed) = first_packed(checkpoint) {
        return Err(PackError::AlreadyPacked { path: checkpoint.path().into(), tensor: packed });
    }
    if let Encoder::Batch(device) = &params.encoder {
        check_fits(device, &params.recipe, config, &assignments)?;
    }
    let tokenizer = checkpoint.tokenizer()?;
    output::check_numbers(checkpoint, &assignments)?;
    let calibration = prepare_calibration(checkpoint, &tokenizer, params.text, params.calibration)?;
    match &calibration {
        Some(calibration) => {
            warn_about_few_tokens(config.hidden.max(config.intermediate), calibration, observer)
        }
        None if params.recipe.needs_text() => return Err(PackError::NoText(params.recipe.name.to_string())),
        None => {}
    }
    let identity = Identity {
        version: env!("CARGO_PKG_VERSION").into(),
        model: checkpoint.fingerprint(),
        recipe: params.recipe,
        plan: params.plan,
        calibration: calibration.as_ref().map(Calibration::record),
        encoder: params.encoder.name(),
    };
    let journal = Journal::open(&output, &identity, params.resume)?;
    if finished {
        // A run killed between putting the result in place and removing its journal has only the latter left to do.
        return match Packing::read(&output) {
            Ok(packing) if difference(&packing.identity(), &identity).is_none() => {
                journal.remove()?;
                Ok(packing)
            }
            _ => Err(PackError::OutputExists(output)),
        };
    }
    params.encoder.prepare()?;
    let mut run = Run {
        decoder: Decoder::load(checkpoint)?,
        identity: &identity,
        encoder: params.encoder,
        assignments,
        journal: Arc::new(journal),
        observer,
    };
    run.all_blocks(calibration)?;
    observer.event(Event::Writing);
    let packing = output::write(checkpoint, &tokenizer, &identity, &run.journal, &output)?;
    Arc::into_inner(run.journal).expect("nothing is being written any more").remove()?;
    Ok(packing)
}

fn prepare_calibration(
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    text: Option<Text>,
    params: CalibrationParams,
) -> Result<Option<Calibration>, PackError> {
    let config = checkpoint.config();
    let bos = config.start_token();
    let Some(text) = text else { return Ok(None) };
    let positions = params.window + usize::from(bos.is_some());
    if positions > config.max_positions {
        return Err(TextError::Window { positions, most: config.max_positions }.into());
    }
    Ok(Some(Calibration::prepare(text, tokenizer, bos, params)?))
}

fn first_packed(checkpoint: &Checkpoint) -> Option<String> {
    checkpoint.names().find_map(|name| name.strip_suffix(".blr").map(str::to_owned))
}

fn warn_about_few_tokens(widest: usize, calibration: &Calibration, observer: &dyn Observer) {
    let tokens = calibration.fit * calibration.windows.len;
    if tokens < widest {
        observer.event(Event::Warning(&format!(
            "{tokens} fit tokens are fewer than the {widest} columns of the widest layer, whose Gram cannot have full \
             rank; give at least {widest} (--fit-tokens)"
        )));
    }
}

struct Run<'a> {
    decoder: Decoder,
    identity: &'a Identity,
    encoder: Encoder,
    assignments: Vec<[Assignment; 7]>,
    journal: Arc<Journal>,
    observer: &'a dyn Observer,
}

impl Run<'_> {
    fn all_blocks(&mut self, calibration: Option<Calibration>) -> Result<(), PackError> {
        let layers = self.assignments.len();
        let open = self.first_open(layers)?;
        let stream = |calibration| {
            let (encoder, journal) = (&self.encoder, self.journal.clone());
            Stream::open(calibration, &self.decoder, open, encoder, journal, self.observer)
        };
        let mut stream = calibration.map(stream).transpose()?;
        self.observer.event(Event::Begin { layers });
        let packs = |block: &[Assignment; 7]| block.iter().any(|a| matches!(a, Assignment::Pack(_)));
        let last = self.assignments.iter().rposition(packs).unwrap_or(0);
        let mut scheduler = None;
        for layer in 0..layers {
            let jobs = self.open_jobs(layer)?;
            if !jobs.is_empty() {
                let grams = self.grams(layer, stream.as_mut())?;
                self.encode(layer, &jobs, grams, &mut scheduler)?;
            }
            self.install(layer)?;
            if let Some(stream) = stream.as_mut().filter(|stream| stream.at() == layer && layer < last) {
                self.observer.event(Event::Stage { layer, stage: Stage::Advance });
                stream.advance(self.decoder.block(layer))?;
            }
        }
        stream.as_mut().map_or(Ok(()), Stream::finish)
    }

    fn grams(&self, layer: usize, stream: Option<&mut Stream<'_>>) -> Result<[Option<Grams>; 4], PackError> {
        let Some(stream) = stream else { return Ok([const { None }; 4]) };
        self.observer.event(Event::Stage { layer, stage: Stage::Calibrate });
        Ok(stream.grams(self.decoder.block(layer))?.map(Some))
    }

    fn encode(
        &self,
        layer: usize,
        jobs: &[Job],
        grams: [Option<Grams>; 4],
        scheduler: &mut Option<Scheduler>,
    ) -> Result<(), PackError> {
        self.observer.event(Event::Stage { layer, stage: Stage::Encode });
        let block = BlockEncoder {
            layer,
            decoder: &self.decoder,
            recipe: &self.identity.recipe,
            journal: &self.journal,
            observer: self.observer,
        };
        match &self.encoder {
            Encoder::Reference => block.encode_by_reference(jobs, grams),
            Encoder::Batch(device) => {
                let scheduler = scheduler.get_or_insert_with(|| Scheduler::new(device.clone()));
                block.encode_on_device(scheduler, jobs, grams)
            }
        }
    }

    fn first_open(&self, layers: usize) -> Result<usize, PackError> {
        for layer in 0..layers {
            for name in LinearName::ALL {
                if self.journal.read_tensor(&name.prefix(layer))?.is_none() {
                    return Ok(layer);
                }
            }
        }
        Ok(layers)
    }

    /// The tensors of a block that the journal does not have yet, largest first.
    fn open_jobs(&self, layer: usize) -> Result<Vec<Job>, PackError> {
        let mut jobs = Vec::new();
        for (name, assignment) in LinearName::ALL.into_iter().zip(self.assignments[layer]) {
            let tensor = name.prefix(layer);
            if let Some((record, _)) = self.journal.read_tensor(&tensor)? {
                self.observer.event(Event::Tensor { name: &tensor, record: &record, took: None, moved: 0 });
                continue;
            }
            match assignment {
                Assignment::Pack(budget) => jobs.push(Job { name, budget }),
                Assignment::KeepDense => {
                    let record = self.journal.write_dense(&tensor, "kept dense by the plan".into())?;
                    self.observer.event(Event::Tensor {
                        name: &tensor,
                        record: &record,
                        took: None,
                        moved: 0,
                    });
                }
            }
        }
        let cost = |job: &Job| {
            let linear = self.decoder.linear(layer, job.name);
            linear.out_features() * linear.in_features() * linear.in_features()
        };
        jobs.sort_by_key(|job| std::cmp::Reverse(cost(job)));
        Ok(jobs)
    }

    /// Puts the packed tensors of a block in the place of the dense ones.
    fn install(&mut self, layer: usize) -> Result<(), PackError> {
        for name in LinearName::ALL {
            if let Some((_, Some(payload))) = self.journal.read_tensor(&name.prefix(layer))? {
                let in_features = self.decoder.linear(layer, name).in_features();
                self.decoder.set_linear(layer, name, Linear::Packed { payload, in_features })?;
            }
        }
        Ok(())
    }
}
