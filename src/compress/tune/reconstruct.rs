use std::time::Instant;

use super::best::{Course, judged_after};
use super::block::{InputGradient, Sum, TunedBlock};
use super::linear::{Form, StoreError};
use super::optimiser::Optimiser;
use super::plan::{Plan, Subject};
use super::windows::shuffle;
use super::{TuneError, TuneParams, Weighting, Windows, forms_in_words};
use crate::device::Device;
#[cfg(feature = "cuda")]
use crate::device::arena::Program;
use crate::device::arena::{Arena, Precision, View};
#[cfg(feature = "cuda")]
use crate::device::cuda::prepare;
use crate::model::{Block, Config, Linear, LinearName, SplitMix64};
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

/// How it went; losses are as the [`Weighting`] says, the variance that of the fit windows' target.
#[derive(Clone, Debug)]
pub struct TuneReport {
    pub fit: Change,
    pub heldout: Change,
    pub verdict: Verdict,
    pub trained: Trained,
    /// Bytes of the arena that were used.
    pub bytes: u64,
    pub seconds: f64,
}

/// The way there.
#[derive(Clone, Debug, Default)]
pub struct Trained {
    /// The mean loss of the steps of each pass.
    pub passes: Vec<f64>,
    pub steps: usize,
    /// How often it went back to the best state, see [`TuneParams`].
    pub turned_back: usize,
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

/// Numbers that an arena on a device can hold.
pub(super) fn room_on(device: &Device) -> Result<usize, TuneError> {
    Ok(Arena::largest(device)?.min(u32::MAX as usize))
}

impl Tuner {
    /// Gets a card's kernels ready.
    ///
    /// # Errors
    /// A device that tuning has no kernels for.
    pub fn new(device: &Device) -> Result<Self, TuneError> {
        Self::takes(device)?;
        #[cfg(feature = "cuda")]
        if let Device::Cuda(cuda) = device {
            let sources: Vec<_> = ops::tuning_programs().into_iter().map(Program::source).collect();
            prepare(cuda, &sources)?;
        }
        Ok(Self { device: device.clone(), arena: None })
    }

    /// Whether tuning has kernels for a device.
    pub fn takes(device: &Device) -> Result<(), TuneError> {
        match device {
            #[cfg(feature = "wgpu")]
            Device::Wgpu(_) => Err(TuneError::NoKernels { device: device.name() }),
            _ => Ok(()),
        }
    }

    /// Gives the memory back until the next block.
    pub fn release(&mut self) {
        self.arena = None;
    }

    /// Minimises the distance of what a block gives from the target, over what `params` has rates for. The best
    /// state for held-out windows is kept, where as it is stored it is closer than the block was; the same bytes from the
    /// same inputs on the same device.
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
        let plan = Plan::new(subject, params, extent, self.room()?)?;
        let arena = self.arena(plan.len)?;
        let mut run = Run { arena, plan: &plan, windows, hidden: config.hidden };
        let items = run.begin(block, params.weighting);
        if items.is_empty() {
            let forms = forms_in_words(&forms);
            return Err(TuneError::NothingTrained { layer: block.layer(), forms });
        }
        let before = run.losses()?;
        if let Some(loss) = before.iter().find(|loss| !loss.is_finite()) {
            return Err(windows.bad_number(config.hidden, block.layer(), *loss));
        }
        let trained = run.train(items, params, before[1])?;
        let Judged { linears, after, verdict } = run.judge(block, before)?;
        let [fit, heldout] = [0, 1].map(|part| Change { before: before[part], after: after[part] });
        let (bytes, seconds) = (plan.len as u64 * 4, began.elapsed().as_secs_f64());
        let report = TuneReport { fit, heldout, verdict, trained, bytes, seconds };
        Ok(Reconstruction { linears, report })
    }

    /// Numbers that an arena can hold, with the one that is there given back if need be.
    pub(super) fn room(&self) -> Result<usize, TuneError> {
        let held = self.arena.as_ref().map_or(0, Arena::len);
        Ok(room_on(&self.device)?.saturating_add(held).min(u32::MAX as usize))
    }

    pub(super) fn arena(&mut self, len: usize) -> Result<&mut Arena, TuneError> {
        if self.arena.as_ref().is_none_or(|arena| arena.len() < len) {
            // The old one goes first: there may be no room for both.
            self.arena = None;
            self.arena = Some(Arena::new(&self.device, len)?);
        }
        Ok(self.arena.as_mut().expect("made above"))
    }
}

/// The layers to keep, and the losses of fit and held-out windows with what was trained.
struct Judged {
    linears: Vec<(LinearName, Linear)>,
    after: [f64; 2],
    verdict: Verdict,
}

/// What was trained of a block as it is stored, and the block with it.
pub(super) fn read_stored(
    arena: &mut Arena,
    tuned: &TunedBlock,
    block: &Block,
) -> Result<(Vec<(LinearName, Linear)>, Block), StoreError> {
    let (mut linears, mut stored) = (Vec::new(), block.clone());
    for linear in tuned.linears() {
        if let Some(tuned) = linear.read(arena, block.layer())? {
            stored.set_linear(linear.name, tuned.clone()).expect("a tuned layer keeps its shape");
            linears.push((linear.name, tuned));
        }
    }
    Ok((linears, stored))
}

/// One block on its way.
struct Run<'a> {
    arena: &'a mut Arena,
    plan: &'a Plan,
    windows: &'a Windows<'a>,
    hidden: usize,
}

impl Run<'_> {
    /// Writes everything that stays, and returns what is to be trained.
    fn begin(&mut self, block: &Block, weighting: Weighting) -> Vec<Adam> {
        self.arena.write(self.plan.weights.at, &self.windows.weights(self.hidden, weighting));
        if let Some([input, target]) = self.plan.resident {
            self.arena.write(input.at, self.windows.input);
            self.arena.write(target.at, self.windows.target);
        }
        self.plan.block.load(self.arena, block)
    }

    /// The losses of fit and held-out windows, in f32.
    fn losses(&mut self) -> Result<[f64; 2], TuneError> {
        self.measure(0..self.plan.errors.rows);
        let (errors, fit) = (self.errors()?, self.windows.fit * self.positions());
        Ok([&errors[..fit], &errors[fit..]].map(|part| self.loss(part)))
    }

    /// Errors of some windows, in f32.
    fn measure(&mut self, windows: std::ops::Range<usize>) {
        self.plan.block.compose(self.arena, Precision::F32);
        for some in windows.collect::<Vec<usize>>().chunks(self.plan.at_once) {
            self.bring(some);
            self.plan.block.forward(self.arena, some.len() * self.positions(), Precision::F32);
            self.compare(some, 0.0);
        }
    }

    /// The parameters are those of the best state afterwards.
    fn train(&mut self, items: Vec<Adam>, params: &TuneParams, before: f64) -> Result<Trained, TuneError> {
        let mut order: Vec<usize> = (0..self.windows.fit).collect();
        let batch = (params.batch / self.positions()).max(1);
        let a_pass = order.len().div_ceil(batch);
        let steps = params.passes * a_pass;
        let mut optimiser = Optimiser::new(items.clone(), steps);
        let mut random = SplitMix64::new(params.seed);
        let mut course = Course::begin(self.arena, self.plan.best, items, before);
        let (mut passes, fit) = (Vec::new(), self.windows.fit * self.positions());
        for _ in 0..params.passes {
            shuffle(&mut order, &mut random);
            let mut errors = Vec::new();
            for some in order.chunks(judged_after(a_pass) * batch) {
                for batch in some.chunks(batch) {
                    self.step(batch, params.precision);
                    optimiser.step(self.arena);
                }
                self.measure(self.windows.fit..self.plan.errors.rows);
                errors = self.errors()?;
                let now = self.loss(&errors[fit..]);
                course.judge(self.arena, now, std::slice::from_mut(&mut optimiser));
            }
            passes.push(self.loss(&errors[..fit]));
        }
        Ok(Trained { passes, steps, turned_back: course.end(self.arena) })
    }

    /// From the parameters as they are to their gradients over some windows.
    fn step(&mut self, batch: &[usize], precision: Precision) {
        let factor = 2.0 / (batch.len() * self.positions() * self.hidden) as f64;
        let mut sum = Sum::Begin;
        self.plan.block.compose(self.arena, precision);
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
    fn judge(&mut self, block: &Block, before: [f64; 2]) -> Result<Judged, TuneError> {
        let (linears, stored) = match read_stored(self.arena, &self.plan.block, block) {
            Ok(read) => read,
            Err(StoreError::Device(error)) => return Err(error.into()),
            Err(StoreError::Round(tensor, error)) => {
                let verdict = Verdict::Unstorable(format!("{tensor}: {error}"));
                return Ok(Judged { linears: Vec::new(), after: before, verdict });
            }
        };
        self.plan.block.load_linears(self.arena, &stored);
        let after = self.losses()?;
        Ok(if after[1] < before[1] {
            Judged { linears, after, verdict: Verdict::Kept }
        } else {
            Judged { linears: Vec::new(), after, verdict: Verdict::Worse }
        })
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
                let of = |all: View| all.part((*window, 0), (1, count)).at;
                let (out, weights) = (of(self.plan.errors), Some(of(self.plan.weights)));
                let [y, target] = [flow.y, flow.target].map(|of| rows(of, slot, count));
                SquaredError { y, target, out, factor, weights }
            })
            .collect();
        squared_error(self.arena, &items);
    }

    fn errors(&mut self) -> Result<Vec<f32>, TuneError> {
        Ok(self.arena.read(self.plan.errors.at, self.plan.errors.len())?)
    }

    fn loss(&self, errors: &[f32]) -> f64 {
        let sum: f64 = errors.iter().map(|e| f64::from(*e)).sum();
        sum / (errors.len() * self.hidden) as f64
    }

    fn positions(&self) -> usize {
        self.windows.positions
    }
}

/// The rows of a window.
fn rows(of: View, window: usize, count: usize) -> View {
    of.part((window * count, 0), (count, of.cols))
}
