use std::time::Instant;

use faer::Mat;
use rayon::prelude::*;

use super::batch::SiteInput;
use super::context::Context;
use super::error::PackError;
use super::journal::Journal;
use super::observer::{Event, Observer};
use super::output_weights::OutputWeights;
use super::recipe::Recipe;
use super::schedule::{Done, Scheduler, Wanted, encode_stage};
use super::streams::SiteGrams;
use super::target::Target;
use super::tensor::{Grams, Input, Outcome, encode_tensor};
use super::threads::WholeProducts;
use crate::blr::Budget;
use crate::blr::payload::{Payload, PayloadError};
use crate::model::{Decoder, Linear, LinearName, Site, Tensor};

/// A tensor still to be encoded.
pub struct Job {
    pub name: LinearName,
    pub budget: Budget,
}

/// Encodes the tensors of one block, and keeps each in the journal as it is done.
pub struct BlockEncoder<'a> {
    pub layer: usize,
    pub decoder: &'a Decoder,
    pub recipe: &'a Recipe,
    /// What outputs count, where they are not all alike.
    pub weights: Option<&'a OutputWeights>,
    pub journal: &'a Journal,
    pub observer: &'a dyn Observer,
}

/// What the weights of each site are fitted to, in the order of [`Site::ALL`]; `None` for the weights themselves.
pub type Targets = [Option<Target>; 4];

impl BlockEncoder<'_> {
    /// The targets of the jobs. A layer whose input has none stays dense, and is no longer among them.
    pub fn targets(&self, jobs: &mut Vec<Job>, grams: &SiteGrams) -> Result<Targets, PackError> {
        let Recipe { damping, blend, .. } = *self.recipe;
        let of = |grams: &Grams| {
            let cross = grams.cross.as_ref()?;
            Some(Target::new(&grams.fit, cross, damping, blend).map_err(|error| error.to_string()))
        };
        let built: Vec<_> = grams.par_iter().map(|grams| grams.as_ref().and_then(of)).collect();
        let mut targets: Targets = [const { None }; 4];
        for (site, built) in Site::ALL.into_iter().zip(built) {
            match built {
                Some(Ok(target)) => targets[site as usize] = Some(target),
                Some(Err(reason)) => {
                    for job in jobs.extract_if(.., |job| job.name.site() == site) {
                        self.keep(job.name, Outcome::Dense(reason.clone()), Instant::now())?;
                    }
                }
                None => {}
            }
        }
        Ok(targets)
    }

    /// All tensors side by side; an input whose Gram cannot be factored keeps its layers dense.
    pub fn encode_by_reference(
        &self,
        jobs: &[Job],
        targets: &Targets,
        grams: SiteGrams,
    ) -> Result<(), PackError> {
        let sites: Vec<_> = Site::ALL.into_iter().zip(grams).collect();
        let inputs: Vec<_> = sites
            .into_par_iter()
            .map(|(site, grams)| {
                let reader = jobs.iter().find(|job| job.name.site() == site)?;
                let width = self.decoder.linear(self.layer, reader.name).in_features();
                Some(self.input(grams, width))
            })
            .collect();
        let _whole = WholeProducts::on_many_threads();
        jobs.par_iter().try_for_each(|job| {
            let began = Instant::now();
            let outcome = match &inputs[job.name.site() as usize] {
                Some(Ok(input)) => {
                    encode_tensor(self.aim(job.name, targets)?, input, job.budget, self.recipe)
                }
                Some(Err(reason)) => Outcome::Dense(reason.clone()),
                None => Outcome::Dense("its input was not calibrated".into()),
            };
            self.keep(job.name, outcome, began)
        })
    }

    fn input(&self, grams: Option<Grams>, width: usize) -> Result<Input, String> {
        let recipe = self.recipe;
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
    pub fn encode_on_device(
        &self,
        scheduler: &mut Scheduler,
        jobs: &[Job],
        targets: &Targets,
        mut grams: SiteGrams,
    ) -> Result<(), PackError> {
        let recipe = self.recipe;
        let began = Instant::now();
        let weights: Vec<(Vec<f32>, usize)> =
            jobs.par_iter().map(|job| self.aim_f32(job.name, targets)).collect::<Result<_, _>>()?;
        let wanted: Vec<Wanted<'_>> = (jobs.iter().zip(&weights))
            .map(|(job, (weight, rows))| {
                let name = job.name.prefix(self.layer);
                Wanted { name, weight, rows: *rows, site: job.name.site() as usize, budget: job.budget }
            })
            .collect();
        let sites = Site::ALL.map(|site| SiteInput {
            width: self.decoder.linear(self.layer, site.linears()[0]).in_features(),
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
                kept = self.keep(jobs[k].name, outcome, began);
            }
        });
        kept?;
        self.observer.event(Event::Encoded { layer: self.layer, report: &report });
        let mut inputs: [Option<Result<Input, String>>; 4] = [const { None }; 4];
        for (k, reason) in retries {
            let (job, site) = (&jobs[k], jobs[k].name.site() as usize);
            let width = wanted[k].weight.len() / wanted[k].rows;
            let input = inputs[site].get_or_insert_with(|| self.input(grams[site].take(), width));
            let outcome = match input {
                Ok(input) => match encode_tensor(self.aim(job.name, targets)?, input, job.budget, recipe) {
                    Outcome::Packed(mut packed) => {
                        packed.quality.retried = Some(reason);
                        Outcome::Packed(packed)
                    }
                    dense => dense,
                },
                Err(reason) => Outcome::Dense(reason.clone()),
            };
            self.keep(job.name, outcome, began)?;
        }
        Ok(())
    }

    fn keep(&self, name: LinearName, outcome: Outcome, began: Instant) -> Result<(), PackError> {
        let (layer_name, name) = (name, name.prefix(self.layer));
        let mut moved = 0;
        let record = match outcome {
            Outcome::Packed(packed) => {
                moved = packed.moved;
                match self.unweighted(layer_name, &packed.payload) {
                    Ok(payload) => self.journal.write_packed(&name, &payload, packed.quality)?,
                    Err(error) => self.journal.write_dense(
                        &name,
                        format!("what its outputs count leaves f16's range ({error}); --set output_weights=0 packs it"),
                    )?,
                }
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

    /// What is stored of a layer whose rows were multiplied by what they count.
    fn unweighted(&self, name: LinearName, payload: &Payload) -> Result<Payload, PayloadError> {
        match self.exponents(name) {
            Some(exponents) => payload.with_rows_times(exponents.iter().map(|e| -e)),
            None => Ok(payload.clone()),
        }
    }

    fn exponents(&self, name: LinearName) -> Option<&[i32]> {
        self.weights.map(|weights| weights.exponents(self.layer, name))
    }

    /// The stored weight of a layer that is not packed yet.
    fn dense(&self, name: LinearName) -> Result<&Tensor, PackError> {
        match self.decoder.linear(self.layer, name) {
            Linear::Dense(tensor) => Ok(tensor),
            Linear::Packed { .. } => Err(PackError::AlreadyPacked {
                path: self.journal.folder().into(),
                tensor: name.prefix(self.layer),
            }),
        }
    }

    /// What a layer is fitted to, in f64, out x in; rows times what they count.
    fn aim(&self, name: LinearName, targets: &Targets) -> Result<Mat<f64>, PackError> {
        let tensor = self.dense(name)?;
        let (rows, cols, values) = (tensor.rows(), tensor.cols(), tensor.to_f32());
        let weight = Mat::from_fn(rows, cols, |i, j| f64::from(values[i * cols + j]));
        let mut aim = match &targets[name.site() as usize] {
            Some(target) => target.of(weight.as_ref()),
            None => weight,
        };
        for (row, exponent) in self.exponents(name).into_iter().flatten().enumerate() {
            aim.row_mut(row).iter_mut().for_each(|w| *w *= 2f64.powi(*exponent));
        }
        Ok(aim)
    }

    /// The same in f32, row-major, and its rows.
    fn aim_f32(&self, name: LinearName, targets: &Targets) -> Result<(Vec<f32>, usize), PackError> {
        let tensor = self.dense(name)?;
        let (rows, cols) = (tensor.rows(), tensor.cols());
        if targets[name.site() as usize].is_none() && self.weights.is_none() {
            return Ok((tensor.to_f32(), rows));
        }
        let aim = self.aim(name, targets)?;
        Ok(((0..rows * cols).map(|k| aim[(k / cols, k % cols)] as f32).collect(), rows))
    }
}
