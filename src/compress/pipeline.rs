use std::path::PathBuf;

use super::block::{BlockEncoder, Job};
use super::calibration::{Calibration, CalibrationParams, CalibrationRecord, Draft, Read, Source};
use super::encoder::Encoder;
use super::error::PackError;
use super::fit::{check_fits, check_outputs_count, gradient_device, positions};
use super::journal::{Identity, Journal, Phase, difference};
use super::observer::{Event, Observer, Stage};
use super::output;
use super::output_weights::OutputWeights;
use super::packing::Packing;
use super::plan::{Assignment, Plan};
use super::recipe::Recipe;
use super::schedule::Scheduler;
use super::self_written::write;
use super::stream::Stream;
use super::streams::SiteGrams;
use super::tune::Tuner;
use crate::device::Device;
use crate::model::text::TextError;
use crate::model::{Checkpoint, Decoder, Linear, LinearName, Site, Tokenizer};

/// Why a tensor is dense that the plan does not pack.
pub const KEPT_BY_PLAN: &str = "kept dense by the plan";

/// What to pack, how, and where to.
pub struct PackParams {
    /// The folder to write; it must not exist.
    pub output: PathBuf,
    pub plan: Plan,
    pub recipe: Recipe,
    pub encoder: Encoder,
    /// Calibration texts; a recipe that does not need any packs without, and then reports no error on activations.
    pub texts: Vec<Source>,
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
    let output = check(checkpoint, &params)?;
    let finished = output.symlink_metadata().is_ok();
    let config = checkpoint.config();
    let assignments = params.plan.resolve(config.layers)?;
    let tokenizer = checkpoint.tokenizer()?;
    let (texts, calibration, recipe) = (params.texts, params.calibration, &params.recipe);
    // What neither reads nor writes anything of the user's: the kernels are loaded meanwhile.
    let ((draft, prepared), (checked, (model, decoder))) = rayon::join(
        || {
            rayon::join(
                || draft(checkpoint, &tokenizer, texts, calibration, recipe),
                || params.encoder.prepare(),
            )
        },
        || {
            rayon::join(
                || output::check_numbers(checkpoint, &assignments),
                || rayon::join(|| checkpoint.fingerprint(), || Decoder::load(checkpoint)),
            )
        },
    );
    checked?;
    let (draft, decoder) = (draft?, decoder?);
    prepared?;
    if let Some(draft) = &draft {
        warn_about_few_tokens(config.hidden.max(config.intermediate), &draft.record(), observer);
    }
    let on = gradients_on(&params.recipe, &params.encoder, observer);
    let tuner = params.recipe.needs_gradients().then(|| Tuner::new(on)).transpose()?;
    let identity = Identity {
        version: env!("CARGO_PKG_VERSION").into(),
        model,
        recipe: params.recipe,
        plan: params.plan,
        calibration: draft.as_ref().map(Draft::record),
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
        decoder,
        identity: &identity,
        encoder: params.encoder,
        assignments,
        journal,
        tuner,
        weights: None,
        observer,
    };
    let calibration = draft.map(|draft| run.written(draft, &tokenizer)).transpose()?;
    run.all_blocks(checkpoint, calibration)?;
    observer.event(Event::Writing);
    let packing = output::write(checkpoint, &tokenizer, &identity, &run.journal, &output)?;
    run.journal.remove()?;
    Ok(packing)
}

/// Where gradients are found, said where that is another device than the encoder's.
fn gradients_on<'a>(recipe: &Recipe, encoder: &'a Encoder, observer: &dyn Observer) -> &'a Device {
    let (device, on) = (encoder.device(), gradient_device(recipe, encoder.device()));
    if recipe.needs_gradients() && !std::ptr::eq(device, on) {
        observer.event(Event::Warning(&format!(
            "what outputs count is found on the host, {} has no kernels for gradients; --set output_weights=0 leaves it out",
            device.name()
        )));
    }
    on
}

/// What can be said before anything is done; returns the output's path without a trailing slash or `.`, so that the journal
/// lies beside it.
pub fn check(checkpoint: &Checkpoint, params: &PackParams) -> Result<PathBuf, PackError> {
    let output: PathBuf = params.output.components().collect();
    let finished = output.symlink_metadata().is_ok();
    if finished && !(params.resume && Journal::folder_of(&output).is_dir()) {
        return Err(PackError::OutputExists(output));
    }
    let config = checkpoint.config();
    params.recipe.check()?;
    if params.texts.is_empty() && params.recipe.calibrates() {
        return Err(PackError::NoText(params.recipe.name.to_string()));
    }
    let window = params.calibration.window;
    if params.recipe.output_weights > 0.0 && positions(config, window) < 2 {
        return Err(PackError::NoNextToken { window });
    }
    // A run that is taken up may have found them already.
    if !params.resume {
        check_outputs_count(params.encoder.device(), &params.recipe, config, window)?;
    }
    let assignments = params.plan.resolve(config.layers)?;
    if let Some(packed) = first_packed(checkpoint) {
        return Err(PackError::AlreadyPacked { path: checkpoint.path().into(), tensor: packed });
    }
    if params.recipe.mitigate.passes > 0 {
        let dense = |assignment: &Assignment| matches!(assignment, Assignment::KeepDense);
        let mixed = |block: &[Assignment; 7]| block.iter().any(dense) && !block.iter().all(dense);
        if let Some(layer) = assignments.iter().position(mixed) {
            return Err(PackError::Mitigate { layer });
        }
    }
    if let Encoder::Batch(device) = &params.encoder {
        check_fits(device, &params.recipe, config, &assignments)?;
    }
    Ok(output)
}

fn draft(
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    sources: Vec<Source>,
    params: CalibrationParams,
    recipe: &Recipe,
) -> Result<Option<Draft>, PackError> {
    if sources.is_empty() {
        return Ok(None);
    }
    let config = checkpoint.config();
    let (bos, positions) = (config.start_token(), positions(config, params.window));
    if positions > config.max_positions {
        return Err(TextError::Window { positions, most: config.max_positions }.into());
    }
    let read = if recipe.distill.passes > 0 { Read::Whole } else { Read::AsNeeded };
    let mut draft = Draft::prepare(sources, tokenizer, bos, params, recipe.tokens(), read)?;
    if recipe.distill.passes > 0 {
        draft.take_more(recipe.more);
    }
    draft.record().self_written.map_or(Ok(()), |own| own.params.check())?;
    Ok(Some(draft))
}

fn first_packed(checkpoint: &Checkpoint) -> Option<String> {
    checkpoint.names().find_map(|name| name.strip_suffix(".blr").map(str::to_owned))
}

fn warn_about_few_tokens(widest: usize, record: &CalibrationRecord, observer: &dyn Observer) {
    let tokens = record.fit_tokens;
    if tokens < widest {
        observer.event(Event::Warning(&format!(
            "{tokens} fit tokens are fewer than the {widest} columns of the widest layer, whose Gram cannot have full \
             rank; give at least {widest} (--fit-tokens)"
        )));
    }
}

/// A model on its way; what gradients do for it is in [`gradients`](super::gradients).
pub(super) struct Run<'a> {
    pub decoder: Decoder,
    pub identity: &'a Identity,
    pub encoder: Encoder,
    pub assignments: Vec<[Assignment; 7]>,
    pub journal: Journal,
    pub tuner: Option<Tuner>,
    /// What outputs count, where the recipe does not take them all alike.
    weights: Option<OutputWeights>,
    pub observer: &'a dyn Observer,
}

impl Run<'_> {
    /// The calibration, once the model has written its part of it.
    fn written(&self, draft: Draft, tokenizer: &Tokenizer) -> Result<Calibration, PackError> {
        let Some(own) = draft.record().self_written else { return Ok(draft.finish(&[])) };
        let tokens = own.fit_tokens + own.heldout_tokens + own.more_tokens;
        let kept = self.journal.read_tokens()?.filter(|kept| kept.len() == tokens);
        let written = match kept {
            Some(kept) => kept,
            None => {
                let device = self.encoder.device();
                let window = draft.record().window;
                self.observer.event(Event::BeginText { tokens });
                let extent = (tokens / window, window);
                let (params, given) = (own.params, draft.given());
                let written = write(&self.decoder, tokenizer, device, extent, params, &given, self.observer)?;
                self.journal.write_tokens(&written)?;
                written
            }
        };
        Ok(draft.finish(&written))
    }

    fn all_blocks(
        &mut self,
        checkpoint: &Checkpoint,
        calibration: Option<Calibration>,
    ) -> Result<(), PackError> {
        let layers = self.assignments.len();
        let last = self.last_open(layers)?;
        let original = match self.identity.recipe.two_streams() {
            true => Some(Decoder::load(checkpoint)?),
            false => None,
        };
        // Where nothing is left to encode, nothing needs to go through the model.
        let calibration = calibration.filter(|_| last.is_some());
        self.observer.event(Event::Begin { layers });
        // First, as long as all of the device is free.
        self.weigh_outputs(calibration.as_ref())?;
        let open =
            |calibration| Stream::open(calibration, &self.decoder, original, &self.encoder, self.observer);
        let mut stream = calibration.map(open).transpose()?;
        let mut scheduler = None;
        for layer in 0..layers {
            let before = match stream.as_mut() {
                Some(stream) => self.mitigate(layer, stream)?,
                None => Vec::new(),
            };
            for sites in self.identity.recipe.order.stages() {
                self.stage(layer, &sites, stream.as_mut(), &mut scheduler)?;
            }
            self.restore(layer, before);
            let Some(stream) = stream.as_mut() else { continue };
            self.reconstruct(layer, stream)?;
            if last.is_some_and(|last| layer < last) {
                self.observer.event(Event::Stage { layer, stage: Stage::Advance });
                stream.advance(&self.decoder)?;
            }
        }
        // What encoding held on the device makes room.
        drop(scheduler);
        stream.map_or(Ok(()), |stream| self.distill(layers, stream))
    }

    /// While all of the model is as it was.
    fn weigh_outputs(&mut self, calibration: Option<&Calibration>) -> Result<(), PackError> {
        let share = self.identity.recipe.output_weights;
        let (Some(calibration), Some(tuner)) = (calibration, &mut self.tuner) else { return Ok(()) };
        if share > 0.0 {
            self.observer.event(Event::Stage { layer: 0, stage: Stage::Calibrate });
            let weights = OutputWeights::find(&self.journal, tuner, &self.decoder, calibration, share)?;
            tuner.release();
            self.weights = Some(weights);
        }
        Ok(())
    }

    /// Layers that are encoded together, and then take the place of the dense ones.
    fn stage(
        &mut self,
        layer: usize,
        sites: &[Site],
        stream: Option<&mut Stream<'_>>,
        scheduler: &mut Option<Scheduler>,
    ) -> Result<(), PackError> {
        let mut jobs = self.open_jobs(layer, sites)?;
        if !jobs.is_empty() {
            let needed: Vec<Site> = sites
                .iter()
                .copied()
                .filter(|site| jobs.iter().any(|job| job.name.site() == *site))
                .collect();
            let grams = self.grams(layer, &needed, stream)?;
            self.encode(layer, &mut jobs, grams, scheduler)?;
        }
        self.install(layer, sites)
    }

    fn grams(
        &self,
        layer: usize,
        sites: &[Site],
        stream: Option<&mut Stream<'_>>,
    ) -> Result<SiteGrams, PackError> {
        let Some(stream) = stream else { return Ok([const { None }; 4]) };
        self.observer.event(Event::Stage { layer, stage: Stage::Calibrate });
        stream.grams(&self.decoder, sites)
    }

    fn encode(
        &self,
        layer: usize,
        jobs: &mut Vec<Job>,
        grams: SiteGrams,
        scheduler: &mut Option<Scheduler>,
    ) -> Result<(), PackError> {
        let block = BlockEncoder {
            layer,
            decoder: &self.decoder,
            recipe: &self.identity.recipe,
            weights: self.weights.as_ref(),
            journal: &self.journal,
            observer: self.observer,
        };
        if self.identity.recipe.two_streams() {
            self.observer.event(Event::Stage { layer, stage: Stage::Target });
        }
        let targets = block.targets(jobs, &grams)?;
        self.observer.event(Event::Stage { layer, stage: Stage::Encode });
        match &self.encoder {
            Encoder::Reference => block.encode_by_reference(jobs, &targets, grams),
            Encoder::Batch(device) => {
                let scheduler = scheduler.get_or_insert_with(|| Scheduler::new(device.clone()));
                block.encode_on_device(scheduler, jobs, &targets, grams)
            }
        }
    }

    /// The last block with something still to be done; all of them where the model is to be distilled.
    fn last_open(&self, layers: usize) -> Result<Option<usize>, PackError> {
        let recipe = &self.identity.recipe;
        let mut open = None;
        for layer in 0..layers {
            let mut packs = false;
            for (name, assignment) in LinearName::ALL.into_iter().zip(self.assignments[layer]) {
                if matches!(assignment, Assignment::Pack(_)) {
                    packs = true;
                    if !self.journal.has_encoded(&name.prefix(layer))? {
                        // Its inputs are those of the block before gradients.
                        self.journal.forget(Phase::Block(layer))?;
                        open = Some(layer);
                    }
                }
            }
            if packs
                && recipe.reconstruct.passes > 0
                && self.journal.read_tuned(Phase::Block(layer))?.is_none()
            {
                open = Some(layer);
            }
        }
        if open.is_some() {
            // What was distilled is of another model than the one that this run makes.
            self.journal.forget(Phase::Model)?;
        }
        let undistilled = recipe.distill.passes > 0 && self.journal.read_tuned(Phase::Model)?.is_none();
        Ok(if undistilled { layers.checked_sub(1) } else { open })
    }

    /// The tensors of some sites that the journal does not have yet, largest first.
    fn open_jobs(&self, layer: usize, sites: &[Site]) -> Result<Vec<Job>, PackError> {
        let mut jobs = Vec::new();
        for (name, assignment) in LinearName::ALL.into_iter().zip(self.assignments[layer]) {
            if !sites.contains(&name.site()) {
                continue;
            }
            let tensor = name.prefix(layer);
            if let Some((record, _)) = self.journal.read_tensor(&tensor)? {
                self.observer.event(Event::Tensor { name: &tensor, record: &record, took: None, moved: 0 });
                continue;
            }
            match assignment {
                Assignment::Pack(budget) => jobs.push(Job { name, budget }),
                Assignment::KeepDense => {
                    let record = self.journal.write_dense(&tensor, KEPT_BY_PLAN.into())?;
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

    /// Puts the packed tensors of some sites in the place of the dense ones.
    pub fn install(&mut self, layer: usize, sites: &[Site]) -> Result<(), PackError> {
        for name in LinearName::ALL.into_iter().filter(|name| sites.contains(&name.site())) {
            if let Some((_, Some(payload))) = self.journal.read_tensor(&name.prefix(layer))? {
                let in_features = self.decoder.linear(layer, name).in_features();
                self.decoder.set_linear(layer, name, Linear::Packed { payload, in_features })?;
            }
        }
        Ok(())
    }
}
