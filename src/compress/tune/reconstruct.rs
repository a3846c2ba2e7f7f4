use std::time::Instant;

use rayon::prelude::*;

use super::block::{InputGradient, Sum};
use super::linear::{Form, StoreError};
use super::optimiser::Optimiser;
use super::plan::{Extent, Plan, Subject};
use super::{TuneError, TuneParams, Windows, forms_in_words};
use crate::device::Device;
#[cfg(feature = "cuda")]
use crate::device::arena::Program;
use crate::device::arena::{Arena, Precision, View};
#[cfg(feature = "cuda")]
use crate::device::cuda::prepare;
use crate::model::{Block, Config, Linear, LinearName, SplitMix64, first_non_finite};
#[cfg(feature = "cuda")]
use crate::ops;
use crate::ops::adam::Adam;
use crate::ops::scale::{Scale, scale};
use crate::ops::squared_error::{SquaredError, squared_error};

/// Tunes blocks on one device; the memory stays from one block to the next.
pub struct Tuner {
    device: Device,
    arena: Option<Arena>,
}

/// What came of tuning a block.
#[derive(Clone, Debug)]
pub struct Reconstruction {
    /// The layers that were trained, as they are stored; none where the verdict is not to keep them.
    pub linears: Vec<(LinearName, Linear)>,
    pub report: TuneReport,
}

/// How it went. Losses are `Σ(y − target)² / Σ(target − mean)²`, both over fit windows in the denominator's variance.
#[derive(Clone, Debug)]
pub struct TuneReport {
    pub fit: Change,
    pub heldout: Change,
    pub verdict: Verdict,
    /// The mean loss of the steps of each pass.
    pub passes: Vec<f64>,
    pub steps: usize,
    /// Bytes of the arena that were used.
    pub bytes: u64,
    pub seconds: f64,
}

/// A loss before and after, the latter of the result as it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    pub before: f64,
    pub after: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The held-out loss fell.
    Kept,
    /// It did not.
    Worse,
    /// The result cannot be stored, and why.
    Unstorable(String),
}

impl Tuner {
    /// Gets a card's kernels ready.
    ///
    /// # Errors
    /// A device that tuning has no kernels for.
    pub fn new(device: &Device) -> Result<Self, TuneError> {
        match device {
            #[cfg(feature = "wgpu")]
            Device::Wgpu(_) => return Err(TuneError::NoKernels { device: device.name() }),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => {
                let sources: Vec<_> = ops::tuning_programs().into_iter().map(Program::source).collect();
                prepare(cuda, &sources)?;
            }
            Device::Host => {}
        }
        Ok(Self { device: device.clone(), arena: None })
    }

    /// Gives the memory back until the next block.
    pub fn release(&mut self) {
        self.arena = None;
    }

    /// Minimises the distance of what a block gives from the target, over what `params` has rates for. Kept where the
    /// held-out loss of the result as it is stored fell; the same bytes from the same inputs on the same device.
    pub fn reconstruct(
        &mut self,
        config: &Config,
        block: &Block,
        windows: &Windows<'_>,
        params: &TuneParams,
    ) -> Result<Reconstruction, TuneError> {
        let began = Instant::now();
        let extent = windows.check(config.hidden, block.layer())?;
        let forms = Form::of(block);
        let subject = Subject { config, layer: block.layer(), forms: &forms };
        let room = Arena::largest(&self.device)?.max(self.arena.as_ref().map_or(0, Arena::len));
        let plan = Plan::new(subject, params, extent, room)?;
        let arena = self.arena(plan.len)?;
        let variance = windows.variance(config.hidden);
        let mut run = Run { arena, plan: &plan, windows, hidden: config.hidden, variance };
        let items = run.begin(block);
        if items.is_empty() {
            let forms = forms_in_words(&forms);
            return Err(TuneError::NothingTrained { layer: block.layer(), forms });
        }
        let before = run.losses()?;
        if before.iter().any(|loss| !loss.is_finite()) {
            return Err(windows.bad_number(config.hidden, block.layer(), before[0]));
        }
        let (passes, steps) = run.train(items, params)?;
        let (linears, after, verdict) = run.judge(block, before)?;
        let [fit, heldout] = [0, 1].map(|part| Change { before: before[part], after: after[part] });
        let (bytes, seconds) = (plan.len as u64 * 4, began.elapsed().as_secs_f64());
        let report = TuneReport { fit, heldout, verdict, passes, steps, bytes, seconds };
        Ok(Reconstruction { linears, report })
    }

    fn arena(&mut self, len: usize) -> Result<&mut Arena, TuneError> {
        if self.arena.as_ref().is_none_or(|arena| arena.len() < len) {
            // The old one goes first: there may be no room for both.
            self.arena = None;
            self.arena = Some(Arena::new(&self.device, len)?);
        }
        Ok(self.arena.as_mut().expect("made above"))
    }
}

/// One block on its way.
struct Run<'a> {
    arena: &'a mut Arena,
    plan: &'a Plan,
    windows: &'a Windows<'a>,
    hidden: usize,
    /// Of the target.
    variance: f64,
}

impl Run<'_> {
    /// Writes everything that stays, and returns what is to be trained.
    fn begin(&mut self, block: &Block) -> Vec<Adam> {
        if let Some([input, target]) = self.plan.resident {
            self.arena.write(input.at, self.windows.input);
            self.arena.write(target.at, self.windows.target);
        }
        self.plan.block.load(self.arena, block)
    }

    /// The losses of fit and held-out windows, in f32.
    fn losses(&mut self) -> Result<[f64; 2], TuneError> {
        let all: Vec<usize> = (0..self.plan.errors.rows).collect();
        for some in all.chunks(self.plan.at_once) {
            self.bring(some);
            self.plan.block.forward(self.arena, some.len() * self.positions(), Precision::F32);
            self.compare(some, 0.0);
        }
        let (errors, fit) = (self.errors()?, self.windows.fit * self.positions());
        Ok([&errors[..fit], &errors[fit..]].map(|part| self.loss(part)))
    }

    /// The mean loss of each pass, and the number of steps.
    fn train(&mut self, items: Vec<Adam>, params: &TuneParams) -> Result<(Vec<f64>, usize), TuneError> {
        let mut order: Vec<usize> = (0..self.windows.fit).collect();
        let batch = (params.batch / self.positions()).max(1);
        let steps = params.passes * order.len().div_ceil(batch);
        let mut optimiser = Optimiser::new(items, steps);
        let mut random = SplitMix64::new(params.seed);
        let mut passes = Vec::new();
        for _ in 0..params.passes {
            shuffle(&mut order, &mut random);
            for batch in order.chunks(batch) {
                self.step(batch, params.precision);
                optimiser.step(self.arena);
                self.plan.block.compose(self.arena);
            }
            let errors = self.errors()?;
            passes.push(self.loss(&errors[..self.windows.fit * self.positions()]));
        }
        Ok((passes, steps))
    }

    /// From the parameters as they are to their gradients over some windows.
    fn step(&mut self, batch: &[usize], precision: Precision) {
        let factor = 2.0 / ((batch.len() * self.positions() * self.hidden) as f64 * self.variance);
        let mut sum = Sum::Begin;
        for some in batch.chunks(self.plan.at_once) {
            let rows = some.len() * self.positions();
            self.bring(some);
            self.plan.block.forward(self.arena, rows, precision);
            self.compare(some, factor as f32);
            self.plan.block.backward(self.arena, rows, precision, (sum, InputGradient::Unwanted));
            sum = Sum::Continue;
        }
        self.plan.block.differentiate(self.arena, precision);
    }

    /// Reads what was trained as it is stored, and judges it on the held-out windows.
    fn judge(
        &mut self,
        block: &Block,
        before: [f64; 2],
    ) -> Result<(Vec<(LinearName, Linear)>, [f64; 2], Verdict), TuneError> {
        let mut linears = Vec::new();
        let mut stored = block.clone();
        for linear in self.plan.block.linears() {
            match linear.read(self.arena, block.layer()) {
                Ok(None) => {}
                Ok(Some(tuned)) => {
                    stored.set_linear(linear.name, tuned.clone()).expect("a tuned layer keeps its shape");
                    linears.push((linear.name, tuned));
                }
                Err(StoreError::Device(error)) => return Err(error.into()),
                Err(StoreError::Round(error)) => {
                    let reason = format!("{}: {error}", linear.name.prefix(block.layer()));
                    return Ok((Vec::new(), before, Verdict::Unstorable(reason)));
                }
            }
        }
        self.plan.block.load_linears(self.arena, &stored);
        let after = self.losses()?;
        if after[1] < before[1] {
            Ok((linears, after, Verdict::Kept))
        } else {
            Ok((Vec::new(), after, Verdict::Worse))
        }
    }

    /// Puts windows where the block reads its input and the target.
    fn bring(&mut self, some: &[usize]) {
        let (flow, rows) = (*self.plan.block.flow(), self.positions());
        let places = [(flow.x, self.windows.input), (flow.target, self.windows.target)];
        let Some(resident) = self.plan.resident else {
            for (slot, window) in some.iter().enumerate() {
                let numbers = rows * self.hidden;
                for (to, from) in places {
                    self.arena.write(to.at + slot * numbers, &from[window * numbers..][..numbers]);
                }
            }
            return;
        };
        let copies: Vec<Scale> = (some.iter().enumerate())
            .flat_map(|(slot, window)| {
                let copy = move |(from, (to, _)): (View, (View, _))| {
                    Scale::new(self::rows(from, *window, rows), self::rows(to, slot, rows))
                };
                resident.into_iter().zip(places).map(copy)
            })
            .collect();
        scale(self.arena, &copies);
    }

    /// Errors of windows that went through the block, and `factor·(y − target)` in the place of y.
    fn compare(&mut self, some: &[usize], factor: f32) {
        let (flow, count) = (*self.plan.block.flow(), self.positions());
        let items: Vec<SquaredError> = (some.iter().enumerate())
            .map(|(slot, window)| {
                let out = self.plan.errors.part((*window, 0), (1, count)).at;
                let [y, target] = [flow.y, flow.target].map(|of| rows(of, slot, count));
                SquaredError { y, target, out, factor }
            })
            .collect();
        squared_error(self.arena, &items);
    }

    fn errors(&mut self) -> Result<Vec<f32>, TuneError> {
        Ok(self.arena.read(self.plan.errors.at, self.plan.errors.len())?)
    }

    fn loss(&self, errors: &[f32]) -> f64 {
        let sum: f64 = errors.iter().map(|e| f64::from(*e)).sum();
        sum / ((errors.len() * self.hidden) as f64 * self.variance)
    }

    fn positions(&self) -> usize {
        self.windows.positions
    }
}

impl Windows<'_> {
    fn check(&self, hidden: usize, layer: usize) -> Result<Extent, TuneError> {
        let window = self.positions * hidden;
        let windows = if window == 0 { 0 } else { self.input.len() / window };
        for (what, part) in [("input", self.input), ("target", self.target)] {
            if window == 0 || part.len() != windows * window {
                let (found, positions) = (part.len(), self.positions);
                return Err(TuneError::Windows { what, layer, found, positions, hidden });
            }
        }
        if self.fit == 0 || self.fit >= windows {
            return Err(TuneError::Parts { layer, windows, fit: self.fit });
        }
        Ok(Extent { positions: self.positions, windows })
    }

    /// Of the numbers of the target's fit windows; 1 where they are all the same.
    fn variance(&self, hidden: usize) -> f64 {
        let fit = &self.target[..self.fit * self.positions * hidden];
        let sums: Vec<[f64; 2]> = (fit.par_chunks(1 << 16))
            .map(|part| {
                part.iter().fold([0.0; 2], |[sum, square], t| {
                    let t = f64::from(*t);
                    [sum + t, square + t * t]
                })
            })
            .collect();
        // In order, so that the result does not depend on the number of threads.
        let [sum, square] = sums.iter().fold([0.0; 2], |all, part| [all[0] + part[0], all[1] + part[1]]);
        let mean = sum / fit.len() as f64;
        let variance = square / fit.len() as f64 - mean * mean;
        if variance == 0.0 { 1.0 } else { variance }
    }

    /// Which number makes a loss that is not finite.
    fn bad_number(&self, hidden: usize, layer: usize, loss: f64) -> TuneError {
        for (what, part) in [("input", self.input), ("target", self.target)] {
            if let Some((position, column)) = first_non_finite(part, hidden) {
                let value = part[position * hidden + column];
                return TuneError::NonFinite { what, layer, position, value };
            }
        }
        TuneError::NonFinite { what: "output", layer, position: 0, value: loss as f32 }
    }
}

/// The rows of a window.
fn rows(of: View, window: usize, count: usize) -> View {
    of.part((window * count, 0), (count, of.cols))
}

/// Fisher and Yates; the modulo's bias is below 2^-40 for as many windows as there may be.
fn shuffle(order: &mut [usize], random: &mut SplitMix64) {
    for last in (1..order.len()).rev() {
        order.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
    }
}
