use faer::Mat;
use rayon::prelude::*;

use super::super::batch::SiteInput;
use super::super::calibration::Calibration;
use super::super::context::Context;
use super::super::encoder::Encoder;
use super::super::error::PackError;
use super::super::recipe::Recipe;
use super::super::schedule::{Done, Scheduler, Wanted, encode_stage};
use super::super::streams::SiteGrams;
use super::super::tensor::{Input, Outcome, encode_tensor};
use super::super::threads::WholeProducts;
use crate::blr::{Budget, Payload};
use crate::model::block::Context as Positions;
use crate::model::{Block, Decoder, Linear, LinearName, NoCapture, Site, Tensor};

/// How far the output of a block moves when one of its tensors alone is packed, at a few budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The tensor's name.
    pub name: String,
    /// Its numbers.
    pub weights: usize,
    /// Bits a weight that the plan gives it.
    pub asked: f64,
    /// Bits a weight and the mean over held-out positions of `‖y − y₀‖²/‖y₀‖²`; bits rise.
    pub points: Vec<[f64; 2]>,
}

/// Budgets that are measured, relative to the plan's.
const BUDGETS: [f64; 3] = [0.6, 1.0, 1.6];

/// Held-out positions that are measured on, in whole windows, at least one.
const POSITIONS: usize = 2048;

/// Iterations of the gauge: what brings the most of it, since the shape of the response is asked for and not the result.
const GAUGE_STEPS: usize = 20;

impl Response {
    /// The response at a budget: its logarithm is linear between what was measured, and goes on beyond as it ends.
    pub fn at(&self, bits: f64) -> f64 {
        let points = &self.points;
        let [_, _, ..] = points[..] else { return points.first().map_or(0.0, |[_, error]| *error) };
        let next = points.iter().position(|[at, _]| *at >= bits).unwrap_or(points.len() - 1).max(1);
        let [[b0, e0], [b1, e1]] = [points[next - 1], points[next]];
        let [l0, l1] = [e0, e1].map(|error| error.max(f64::MIN_POSITIVE).ln());
        (l0 + (l1 - l0) * (bits - b0) / (b1 - b0)).exp()
    }
}

/// Measures block by block, with one scheduler for all.
pub struct Measure<'a> {
    decoder: &'a Decoder,
    recipe: Recipe,
    scheduler: Option<Scheduler>,
}

/// A tensor at one of its budgets.
struct Job {
    name: LinearName,
    budget: Budget,
}

impl<'a> Measure<'a> {
    pub fn new(decoder: &'a Decoder, encoder: &Encoder) -> Self {
        let mut recipe = Recipe::nvg();
        recipe.params.gauge_steps = GAUGE_STEPS;
        let scheduler = match encoder {
            Encoder::Reference => None,
            Encoder::Batch(device) => Some(Scheduler::new(device.clone())),
        };
        Self { decoder, recipe, scheduler }
    }

    /// The responses of tensors of one block at their budgets. A tensor that cannot be packed at two of them has none: nothing
    /// is known of its slope.
    pub fn block(
        &mut self,
        layer: usize,
        budgets: &[(LinearName, Budget)],
        (grams, entering): (SiteGrams, &[f32]),
        calibration: &Calibration,
    ) -> Result<Vec<Response>, PackError> {
        let jobs: Vec<Job> = (budgets.iter())
            .flat_map(|(name, budget)| {
                let scaled = |by| Budget { bits: budget.bits * by, ..*budget };
                BUDGETS.map(|by| Job { name: *name, budget: scaled(by) })
            })
            .collect();
        let payloads = match &mut self.scheduler {
            Some(scheduler) => on_device(scheduler, self.decoder.block(layer), &self.recipe, &jobs, &grams),
            None => by_reference(self.decoder.block(layer), &self.recipe, &jobs, grams),
        };
        let block = self.decoder.block(layer);
        let sample = Sample::new(self.decoder, entering, calibration);
        let exact = sample.through(block);
        let points: Vec<Option<[f64; 2]>> = (jobs.par_iter().zip(payloads))
            .map(|(job, payload)| {
                let dense = block.linear(job.name);
                let (rows, in_features) = (dense.out_features(), dense.in_features());
                let payload = payload?;
                let bits = payload.bits() as f64 / (rows * in_features) as f64;
                let mut packed = block.clone();
                packed.set_linear(job.name, Linear::Packed { payload, in_features }).ok()?;
                Some([bits, sample.apart(&sample.through(&packed), &exact)])
            })
            .collect();
        let responses = budgets.iter().zip(points.chunks(BUDGETS.len())).map(|((name, budget), points)| {
            let dense = block.linear(*name);
            let mut points: Vec<[f64; 2]> = points.iter().flatten().copied().collect();
            // Two budgets may come to the same rank.
            points.dedup_by(|b, a| b[0] <= a[0]);
            Response {
                name: name.prefix(layer),
                weights: dense.out_features() * dense.in_features(),
                asked: budget.bits * budget.factor,
                points,
            }
        });
        Ok(responses.filter(|response| response.points.len() > 1).collect())
    }
}

/// Held-out windows on their way through a block.
struct Sample<'a> {
    entering: &'a [f32],
    window: usize,
    width: usize,
}

impl<'a> Sample<'a> {
    fn new(decoder: &Decoder, entering: &'a [f32], calibration: &Calibration) -> Self {
        let (window, width) = (calibration.windows.positions, decoder.config().hidden);
        let windows = (POSITIONS / window).clamp(1, calibration.heldout);
        let first = calibration.fit * window * width;
        Self { entering: &entering[first..first + windows * window * width], window, width }
    }

    fn through(&self, block: &Block) -> Vec<f32> {
        let mut x = self.entering.to_vec();
        block.forward(&mut x, Positions::Windows { len: self.window }, &mut NoCapture);
        x
    }

    /// The mean over positions of the squared distance, relative to the position's own size.
    fn apart(&self, found: &[f32], exact: &[f32]) -> f64 {
        let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let rows = found.chunks_exact(self.width).zip(exact.chunks_exact(self.width));
        let one = |(found, exact): (&[f32], &[f32])| {
            let size = squares(&mut exact.iter().copied());
            let off = squares(&mut found.iter().zip(exact).map(|(f, e)| f - e));
            if size > 0.0 { off / size } else { 0.0 }
        };
        rows.map(one).sum::<f64>() / (exact.len() / self.width) as f64
    }
}

fn dense(block: &Block, name: LinearName) -> Option<&Tensor> {
    match block.linear(name) {
        Linear::Dense(tensor) => Some(tensor),
        Linear::Packed { .. } => None,
    }
}

fn by_reference(block: &Block, recipe: &Recipe, jobs: &[Job], grams: SiteGrams) -> Vec<Option<Payload>> {
    let inputs: Vec<Option<Input>> = (grams.into_par_iter())
        .map(|grams| {
            let grams = grams?;
            let context = Context::build(&grams.fit, recipe.damping).ok()?;
            Some(Input { context, grams: Some(grams) })
        })
        .collect();
    let _whole = WholeProducts::on_many_threads();
    let encode = |job: &Job| {
        let (tensor, input) = (dense(block, job.name)?, inputs[job.name.site() as usize].as_ref()?);
        let (rows, cols, values) = (tensor.rows(), tensor.cols(), tensor.to_f32());
        let weight = Mat::from_fn(rows, cols, |i, j| f64::from(values[i * cols + j]));
        match encode_tensor(weight, input, job.budget, recipe) {
            Outcome::Packed(packed) => Some(packed.payload),
            Outcome::Dense(_) => None,
        }
    };
    jobs.par_iter().map(encode).collect()
}

fn on_device(
    scheduler: &mut Scheduler,
    block: &Block,
    recipe: &Recipe,
    jobs: &[Job],
    grams: &SiteGrams,
) -> Vec<Option<Payload>> {
    let tensors: Vec<(&Job, &Tensor)> =
        jobs.iter().filter_map(|job| Some((job, dense(block, job.name)?))).collect();
    let weights: Vec<Vec<f32>> = tensors.par_iter().map(|(_, tensor)| tensor.to_f32()).collect();
    let wanted: Vec<Wanted<'_>> = (tensors.iter().zip(&weights))
        .map(|((job, tensor), weight)| {
            let (name, rows) = (tensor.name.clone(), tensor.rows());
            Wanted { name, weight, rows, site: job.name.site() as usize, budget: job.budget }
        })
        .collect();
    let sites = Site::ALL.map(|site| SiteInput {
        width: block.linear(site.linears()[0]).in_features(),
        grams: grams[site as usize].as_ref(),
        damping: Some(recipe.damping),
    });
    let mut payloads: Vec<Option<Payload>> = vec![None; jobs.len()];
    encode_stage(scheduler, recipe, &sites, &wanted, |k, done| {
        if let Done::Packed(packed) = done {
            payloads[k] = Some(packed.payload);
        }
    });
    payloads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_exponential_between_and_beyond_what_was_measured() {
        let points = [0.5, 1.0, 2.0].map(|bits: f64| [bits, 3.0 * (-2.0 * bits).exp()]);
        let response = Response { name: String::new(), weights: 1, asked: 1.0, points: points.into() };
        for bits in [0.25f64, 0.5, 0.7, 1.0, 1.3, 2.0, 3.0] {
            let expected = 3.0 * (-2.0 * bits).exp();
            assert!((response.at(bits) / expected - 1.0).abs() < 1e-12, "at {bits}");
        }
        let one = Response { points: vec![[1.0, 0.3]], ..response };
        assert_eq!((one.at(0.5), one.at(2.0)), (0.3, 0.3));
    }
}
