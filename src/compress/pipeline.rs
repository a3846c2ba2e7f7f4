use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use faer::Mat;
use rayon::prelude::*;

use super::batch::SiteInput;
use super::calibration::{ActivationError, Calibration, CalibrationParams, advance, capture_grams};
use super::context::Context;
use super::device_calibration::{CaptureError, DeviceCalibration};
use super::encoder::Encoder;
use super::journal::{Identity, Journal, JournalError, difference};
use super::observer::{Event, Observer, Stage};
use super::output::{self, OutputError};
use super::packing::Packing;
use super::plan::{Assignment, Plan, PlanError};
use super::recipe::Recipe;
use super::schedule::{Done, Scheduler, Wanted, encode_stage};
use super::tensor::{Grams, Input, Outcome, encode_tensor};
use crate::blr::Budget;
use crate::device::{Device, DeviceError};
use crate::model::on_device::ForwardError;
use crate::model::text::{Text, TextError};
use crate::model::{
    Checkpoint, CheckpointError, Decoder, DecoderError, Linear, LinearName, Site, Tensor, Tokenizer,
};

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

#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("{0} exists already; choose another output folder or remove it")]
    OutputExists(PathBuf),
    #[error("{path}: the model is packed already ({tensor}.blr); pack the original instead")]
    AlreadyPacked { path: PathBuf, tensor: String },
    #[error("the recipe {0} fits to calibration text: name a file with --text")]
    NoText(String),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    #[error(transparent)]
    Activation(#[from] ActivationError),
    #[error(transparent)]
    Forward(#[from] ForwardError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Output(#[from] OutputError),
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
    let mut run = Run {
        decoder: Decoder::load(checkpoint)?,
        identity: &identity,
        encoder: params.encoder,
        assignments,
        calibration,
        journal: Arc::new(journal),
        writing: None,
        observer,
    };
    run.all_blocks()?;
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
    calibration: Option<Calibration>,
    journal: Arc<Journal>,
    /// The stream on its way into the journal.
    writing: Option<JoinHandle<Result<(), JournalError>>>,
    observer: &'a dyn Observer,
}

/// A tensor still to be encoded.
struct Job {
    name: LinearName,
    budget: Budget,
}

impl Run<'_> {
    fn all_blocks(&mut self) -> Result<(), PackError> {
        let layers = self.assignments.len();
        let (first, mut hidden) = self.start(layers)?;
        self.observer.event(Event::Begin { layers });
        let packs = |block: &[Assignment; 7]| block.iter().any(|a| matches!(a, Assignment::Pack(_)));
        let last = self.assignments.iter().rposition(packs).unwrap_or(0);
        let (mut scheduler, mut calibrator) = (None, self.calibrator()?);
        for layer in 0..layers {
            let jobs = self.open_jobs(layer)?;
            if !jobs.is_empty() {
                let grams = self.grams(layer, &hidden, &mut calibrator)?;
                self.observer.event(Event::Stage { layer, stage: Stage::Encode });
                match &self.encoder {
                    Encoder::Reference => self.encode_by_reference(layer, &jobs, grams)?,
                    Encoder::Batch(device) => {
                        let scheduler = scheduler.get_or_insert_with(|| Scheduler::new(device.clone()));
                        self.encode_on_device(scheduler, layer, &jobs, grams)?;
                    }
                }
            }
            self.install(layer)?;
            if let Some(calibration) = self.calibration.as_ref().filter(|_| (first..last).contains(&layer)) {
                self.observer.event(Event::Stage { layer, stage: Stage::Advance });
                self.advance(layer, calibration, &mut hidden, &mut calibrator);
                self.keep_hidden(layer + 1, hidden.clone())?;
            }
        }
        self.wait_for_hidden()
    }

    /// Writes the stream that enters a block, while the run goes on.
    fn keep_hidden(&mut self, layer: usize, hidden: Vec<f32>) -> Result<(), PackError> {
        self.wait_for_hidden()?;
        let journal = self.journal.clone();
        self.writing = Some(std::thread::spawn(move || journal.write_hidden(layer, &hidden)));
        Ok(())
    }

    fn wait_for_hidden(&mut self) -> Result<(), PackError> {
        match self.writing.take() {
            Some(thread) => Ok(thread.join().expect("writing does not panic")?),
            None => Ok(()),
        }
    }

    /// The first block to calibrate, and the residual stream that enters it.
    fn start(&self, layers: usize) -> Result<(usize, Vec<f32>), PackError> {
        let Some(calibration) = &self.calibration else { return Ok((0, Vec::new())) };
        // A stream that enters a block behind an open one was left by a run whose tensors were since removed.
        let open = self.first_open(layers)?;
        match self.journal.read_hidden(layers)?.filter(|(layer, _)| *layer <= open) {
            Some((layer, hidden)) => {
                let expected = calibration.windows.tokens().len() * self.decoder.config().hidden;
                if hidden.len() != expected {
                    let file = self.journal.folder().join(format!("hidden-{layer}.f32"));
                    let problem = format!("it holds {} numbers instead of {expected}", hidden.len());
                    return Err(JournalError::Damaged { file, problem }.into());
                }
                Ok((layer, hidden))
            }
            None => Ok((0, self.decoder.embed(calibration.windows.tokens())?)),
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

    /// The device's memory for calibration, where the encoder has a device.
    fn calibrator(&self) -> Result<Option<DeviceCalibration>, PackError> {
        match (&self.encoder, &self.calibration) {
            (Encoder::Reference | Encoder::Batch(Device::Host), _) | (_, None) => Ok(None),
            (Encoder::Batch(device), Some(calibration)) => {
                match DeviceCalibration::new(device, self.decoder.config(), calibration) {
                    Ok(calibrator) => Ok(Some(calibrator)),
                    Err(error) if error.is_unsupported() => {
                        self.observer
                            .event(Event::Warning(&format!("calibration runs on the host: {error}")));
                        Ok(None)
                    }
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    /// What the inputs of a block look like, in the order of [`Site::ALL`].
    fn grams(
        &self,
        layer: usize,
        hidden: &[f32],
        calibrator: &mut Option<DeviceCalibration>,
    ) -> Result<[Option<Grams>; 4], PackError> {
        let Some(calibration) = &self.calibration else { return Ok([const { None }; 4]) };
        self.observer.event(Event::Stage { layer, stage: Stage::Calibrate });
        let block = self.decoder.block(layer);
        if let Some(on_device) = calibrator {
            match on_device.capture_grams(block, calibration, hidden) {
                Ok(grams) => return Ok(grams.map(Some)),
                Err(CaptureError::Activation(error)) => return Err(error.into()),
                Err(CaptureError::Device(error)) => self.back_to_host(calibrator, &error),
            }
        }
        Ok(capture_grams(block, calibration, hidden)?.map(Some))
    }

    /// Runs the packed block over the calibration positions.
    fn advance(
        &self,
        layer: usize,
        calibration: &Calibration,
        hidden: &mut [f32],
        calibrator: &mut Option<DeviceCalibration>,
    ) {
        let block = self.decoder.block(layer);
        if let Some(on_device) = calibrator {
            let before = hidden.to_vec();
            match on_device.advance(block, hidden) {
                Ok(()) => return,
                Err(error) => {
                    hidden.copy_from_slice(&before);
                    self.back_to_host(calibrator, &error);
                }
            }
        }
        advance(block, calibration, hidden);
    }

    fn back_to_host(&self, calibrator: &mut Option<DeviceCalibration>, error: &DeviceError) {
        *calibrator = None;
        self.observer.event(Event::Warning(&format!("calibration goes on on the host: {error}")));
    }

    /// All tensors side by side; an input whose Gram cannot be factored keeps its layers dense.
    fn encode_by_reference(
        &self,
        layer: usize,
        jobs: &[Job],
        grams: [Option<Grams>; 4],
    ) -> Result<(), PackError> {
        let sites: Vec<_> = Site::ALL.into_iter().zip(grams).collect();
        let inputs: Vec<_> = sites
            .into_par_iter()
            .map(|(site, grams)| {
                let reader = jobs.iter().find(|job| job.name.site() == site)?;
                let width = self.decoder.linear(layer, reader.name).in_features();
                Some(self.input(grams, width))
            })
            .collect();
        jobs.par_iter().try_for_each(|job| {
            let began = Instant::now();
            let outcome = match &inputs[job.name.site() as usize] {
                Some(Ok(input)) => {
                    encode_tensor(self.weight(layer, job.name)?, input, job.budget, &self.identity.recipe)
                }
                Some(Err(reason)) => Outcome::Dense(reason.clone()),
                None => Outcome::Dense("its input was not calibrated".into()),
            };
            self.keep(layer, job.name, outcome, began)
        })
    }

    fn input(&self, grams: Option<Grams>, width: usize) -> Result<Input, String> {
        let recipe = &self.identity.recipe;
        let context = match &grams {
            Some(grams) if recipe.needs_text() => {
                Context::build(&grams.fit, recipe.damping).map_err(|e| e.to_string())?
            }
            _ => Context::identity(width),
        };
        Ok(Input { context, grams })
    }

    /// As many tensors at once as the device has room for. What it cannot do is done again by the reference, and the
    /// record says so.
    fn encode_on_device(
        &self,
        scheduler: &mut Scheduler,
        layer: usize,
        jobs: &[Job],
        mut grams: [Option<Grams>; 4],
    ) -> Result<(), PackError> {
        let recipe = &self.identity.recipe;
        let began = Instant::now();
        let weights: Vec<(Vec<f32>, usize)> = jobs
            .iter()
            .map(|job| self.dense(layer, job.name).map(|t| (t.to_f32(), t.rows())))
            .collect::<Result<_, _>>()?;
        let wanted: Vec<Wanted<'_>> = (jobs.iter().zip(&weights))
            .map(|(job, (weight, rows))| {
                let name = job.name.prefix(layer);
                Wanted { name, weight, rows: *rows, site: job.name.site() as usize, budget: job.budget }
            })
            .collect();
        let sites = Site::ALL.map(|site| SiteInput {
            width: self.decoder.linear(layer, site.linears()[0]).in_features(),
            grams: grams[site as usize].as_ref(),
            damping: recipe.needs_text().then_some(recipe.damping),
        });
        let mut retries = Vec::new();
        let mut kept = Ok(());
        let report = encode_stage(scheduler, recipe, &sites, &wanted, |k, done| {
            let outcome = match done {
                Done::Packed(packed) => Outcome::Packed(packed),
                Done::Dense(reason) => Outcome::Dense(reason),
                Done::Retry(reason) => return retries.push((k, reason)),
            };
            if kept.is_ok() {
                kept = self.keep(layer, jobs[k].name, outcome, began);
            }
        });
        kept?;
        self.observer.event(Event::Encoded { layer, report: &report });
        let mut inputs: [Option<Result<Input, String>>; 4] = [const { None }; 4];
        for (k, reason) in retries {
            let (job, site) = (&jobs[k], jobs[k].name.site() as usize);
            let width = wanted[k].weight.len() / wanted[k].rows;
            let input = inputs[site].get_or_insert_with(|| self.input(grams[site].take(), width));
            let outcome = match input {
                Ok(input) => match encode_tensor(self.weight(layer, job.name)?, input, job.budget, recipe) {
                    Outcome::Packed(mut packed) => {
                        packed.quality.retried = Some(reason);
                        Outcome::Packed(packed)
                    }
                    dense => dense,
                },
                Err(reason) => Outcome::Dense(reason.clone()),
            };
            self.keep(layer, job.name, outcome, began)?;
        }
        Ok(())
    }

    fn keep(
        &self,
        layer: usize,
        name: LinearName,
        outcome: Outcome,
        began: Instant,
    ) -> Result<(), PackError> {
        let name = name.prefix(layer);
        let mut moved = 0;
        let record = match outcome {
            Outcome::Packed(packed) => {
                moved = packed.moved;
                self.journal.write_packed(&name, &packed.payload, packed.quality)?
            }
            Outcome::Dense(reason) => self.journal.write_dense(&name, reason)?,
        };
        self.observer.event(Event::Tensor {
            name: &name,
            record: &record,
            took: Some(began.elapsed()),
            moved,
        });
        Ok(())
    }

    /// The stored weight of a layer that is not packed yet.
    fn dense(&self, layer: usize, name: LinearName) -> Result<&Tensor, PackError> {
        match self.decoder.linear(layer, name) {
            Linear::Dense(tensor) => Ok(tensor),
            Linear::Packed { .. } => Err(PackError::AlreadyPacked {
                path: self.journal.folder().into(),
                tensor: name.prefix(layer),
            }),
        }
    }

    /// The weight in f64, out x in.
    fn weight(&self, layer: usize, name: LinearName) -> Result<Mat<f64>, PackError> {
        let tensor = self.dense(layer, name)?;
        let (rows, cols, values) = (tensor.rows(), tensor.cols(), tensor.to_f32());
        Ok(Mat::from_fn(rows, cols, |i, j| f64::from(values[i * cols + j])))
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
