use std::time::Instant;

use super::best::{Best, Course, judged_after};
use super::linear::StoreError;
use super::model::{Batches, Keep, TunedModel};
use super::optimiser::Optimiser;
use super::reconstruct::{Change, Trained, TuneReport, Tuner, Verdict, read_stored};
use super::room::placed;
use super::windows::shuffle;
use super::{TuneError, TuneParams, Windows};
use crate::device::DeviceError;
use crate::device::arena::{Arena, Precision, View};
use crate::model::{Decoder, Linear, LinearName, SplitMix64};
use crate::ops::adam::Adam;
use crate::ops::scale::{Scale, scale};

/// What came of distilling a model.
#[derive(Clone, Debug)]
pub struct Distillation {
    /// The layers that were trained, as they are stored, with their block; none where they are not kept.
    pub linears: Linears,
    /// Losses are mean divergences a position from the original's distribution, in nats.
    pub report: TuneReport,
}

/// Layers of a model, with their blocks.
pub type Linears = Vec<(usize, LinearName, Linear)>;

impl Tuner {
    /// Minimises `KL(original ‖ packed)` of the next token over all packed layers at once (Hinton et al. 2015 at
    /// temperature 1); usually over scales alone, with signs as they are. `windows.input` is the stream of embeddings,
    /// `windows.target` the original's stream behind its last block.
    ///
    /// Held-out windows are judged as [`TuneParams`] says. The best state is kept where, as it is stored, it is closer than
    /// the model was before.
    pub fn distill(
        &mut self,
        decoder: &Decoder,
        windows: &Windows<'_>,
        params: &TuneParams,
    ) -> Result<Distillation, TuneError> {
        let began = Instant::now();
        let extent = windows.check(decoder.config().hidden, 0)?;
        let (plan, len) = self.plan(decoder, params, (extent.positions, extent.windows))?;
        let arena = self.arena(len)?;
        let loaded = plan.model.load(arena, decoder);
        let mut run = Run { arena, plan: &plan, windows, hidden: decoder.config().hidden };
        if loaded.iter().all(Vec::is_empty) {
            let forms = format!("{} blocks", plan.model.blocks().len());
            return Err(TuneError::NothingTrained { layer: 0, forms });
        }
        let before = run.losses()?;
        if let Some(loss) = before.iter().find(|loss| !loss.is_finite()) {
            return Err(windows.bad_number(run.hidden, 0, *loss));
        }
        let trained = run.train(&loaded, params, before[1])?;
        let (linears, after, verdict) = match run.stored(decoder) {
            Ok((linears, stored)) => {
                plan.model.load(run.arena, &stored);
                let after = run.losses()?;
                let kept = after[1] < before[1];
                let verdict = if kept { Verdict::Kept } else { Verdict::Worse };
                (if kept { linears } else { Vec::new() }, after, verdict)
            }
            Err(StoreError::Device(error)) => return Err(error.into()),
            Err(StoreError::Round(tensor, error)) => {
                (Vec::new(), before, Verdict::Unstorable(format!("{tensor}: {error}")))
            }
        };
        let [fit, heldout] = [0, 1].map(|part| Change { before: before[part], after: after[part] });
        let (bytes, seconds) = (len as u64 * 4, began.elapsed().as_secs_f64());
        let report = TuneReport { fit, heldout, verdict, trained, bytes, seconds };
        Ok(Distillation { linears, report })
    }

    /// The plan that keeps everything for the way back; else the one that takes most rows through a block at once.
    ///
    /// # Errors
    /// The figure, where not even one window at a time fits.
    fn plan(
        &self,
        decoder: &Decoder,
        params: &TuneParams,
        (positions, windows): (usize, usize),
    ) -> Result<(Plan, usize), TuneError> {
        let room = self.room()?;
        let batch = (params.batch / positions).clamp(1, windows);
        let (mut at_once, mut keep) = (batch, Keep::Blocks);
        loop {
            let batches = Batches { positions, batch, at_once, keep };
            let (plan, len) = placed(|room| {
                let model = TunedModel::place(room, decoder, &params.rates, batches)?;
                let errors = room.kept.matrix(windows, positions);
                let best = Best::place(room, model.blocks().iter().flat_map(|block| block.trained()));
                Ok(Plan { model, batch, errors, best })
            })?;
            if len <= room {
                return Ok((plan, len));
            }
            match keep {
                Keep::Blocks => keep = Keep::Streams,
                Keep::Streams if at_once > 1 => at_once = at_once.div_ceil(2),
                Keep::Streams => {
                    let what =
                        format!("distilling the model in steps of {batch} windows of {positions} positions");
                    return Err(DeviceError::memory(what, len as u64 * 4, room as u64 * 4).into());
                }
            }
        }
    }
}

/// Where everything lies.
struct Plan {
    model: TunedModel,
    /// Windows of a step.
    batch: usize,
    /// The divergence of each position, a row a window.
    errors: View,
    best: Best,
}

struct Run<'a> {
    arena: &'a mut Arena,
    plan: &'a Plan,
    windows: &'a Windows<'a>,
    hidden: usize,
}

impl Run<'_> {
    /// Mean divergences of fit and held-out windows, in f32; of the fit ones as many as are held out stand for all.
    fn losses(&mut self) -> Result<[f64; 2], TuneError> {
        let (fit, all) = (self.windows.fit, self.plan.errors.rows);
        let count = fit.min(all - fit);
        let some: Vec<usize> = (0..count).map(|k| k * fit / count).collect();
        let heldout: Vec<usize> = (fit..all).collect();
        self.measure(&some, Precision::F32);
        self.measure(&heldout, Precision::F32);
        Ok([self.loss(&some)?, self.loss(&heldout)?])
    }

    /// The divergence of some windows.
    fn measure(&mut self, windows: &[usize], precision: Precision) {
        for some in windows.chunks(self.plan.batch) {
            self.bring(some);
            let rows = some.len() * self.windows.positions;
            self.plan.model.forward(self.arena, rows, precision);
            self.compare(some, None, precision);
        }
    }

    /// The parameters are those of the best state afterwards.
    fn train(
        &mut self,
        loaded: &[Vec<Adam>],
        params: &TuneParams,
        before: f64,
    ) -> Result<Trained, TuneError> {
        let mut order: Vec<usize> = (0..self.windows.fit).collect();
        let heldout: Vec<usize> = (self.windows.fit..self.plan.errors.rows).collect();
        let a_pass = order.len().div_ceil(self.plan.batch);
        let steps = params.passes * a_pass;
        let mut optimisers: Vec<Optimiser> =
            loaded.iter().map(|items| Optimiser::new(items.clone(), steps)).collect();
        let mut random = SplitMix64::new(params.seed);
        let mut course = Course::begin(self.arena, self.plan.best, loaded.concat(), before);
        let mut passes = Vec::new();
        for _ in 0..params.passes {
            shuffle(&mut order, &mut random);
            for some in order.chunks(judged_after(a_pass) * self.plan.batch) {
                for batch in some.chunks(self.plan.batch) {
                    self.step(batch, params.precision, &mut optimisers);
                }
                self.measure(&heldout, Precision::F32);
                let now = self.loss(&heldout)?;
                course.judge(self.arena, now, &mut optimisers);
            }
            passes.push(self.loss(&order)?);
        }
        Ok(Trained { passes, steps, turned_back: course.end(self.arena) })
    }

    fn step(&mut self, batch: &[usize], precision: Precision, optimisers: &mut [Optimiser]) {
        let rows = batch.len() * self.windows.positions;
        self.bring(batch);
        self.plan.model.forward(self.arena, rows, precision);
        self.compare(batch, Some(1.0 / rows as f32), precision);
        self.plan.model.backward(self.arena, rows, precision, optimisers);
    }

    fn bring(&mut self, some: &[usize]) {
        let numbers = self.windows.positions * self.hidden;
        let model = &self.plan.model;
        for (slot, window) in some.iter().enumerate() {
            for (to, from) in [(model.input(), self.windows.input), (model.teacher, self.windows.target)] {
                self.arena.write(to.at + slot * numbers, &from[window * numbers..][..numbers]);
            }
        }
    }

    /// Divergences of windows that went through the model, each to its row.
    fn compare(&mut self, some: &[usize], factor: Option<f32>, precision: Precision) {
        let positions = self.windows.positions;
        let rows = some.len() * positions;
        let lines = self.plan.model.lines();
        self.plan.model.diverge(self.arena, rows, (lines, factor), precision);
        let copies: Vec<Scale> = (some.iter().enumerate())
            .map(|(slot, window)| {
                let to = self.plan.errors.part((*window, 0), (1, positions));
                Scale::new(View::vector(lines + slot * positions, positions), to)
            })
            .collect();
        scale(self.arena, &copies);
    }

    /// The mean divergence of windows as they were compared last.
    fn loss(&mut self, windows: &[usize]) -> Result<f64, TuneError> {
        let View { at, rows, cols, .. } = self.plan.errors;
        let errors = self.arena.read(at, rows * cols)?;
        let rows = windows.iter().map(|window| &errors[window * cols..][..cols]);
        Ok(rows.flatten().map(|e| f64::from(*e)).sum::<f64>() / (windows.len() * cols) as f64)
    }

    /// What was trained as it is stored, and the model with it.
    fn stored(&mut self, decoder: &Decoder) -> Result<(Linears, Decoder), StoreError> {
        let (mut all, mut stored) = (Vec::new(), decoder.clone());
        for (layer, tuned) in self.plan.model.blocks().iter().enumerate() {
            let (linears, _) = read_stored(self.arena, tuned, decoder.block(layer))?;
            for (name, linear) in linears {
                stored.set_linear(layer, name, linear.clone()).expect("a tuned layer keeps its shape");
                all.push((layer, name, linear));
            }
        }
        Ok((all, stored))
    }
}
