//! What gradients do in a run: for a block before it is packed and after, and for the whole model at the end.

use super::error::PackError;
use super::journal::Phase;
use super::observer::{Event, Stage};
use super::pipeline::Run;
use super::plan::Assignment;
use super::stream::Stream;
use super::tune::Windows;
use super::tuning::{Payloads, Tuned, Tuning, payloads};
use crate::model::{Linear, LinearName, Site};

/// Some layers of a block.
pub type Layers = Vec<(LinearName, Linear)>;

impl Run<'_> {
    /// Before a block is packed its weights make up for what the packed blocks before it changed, where the recipe says
    /// so ("error mitigation", NanoQuant 2026): they are what is packed then. Returns the layers as they were.
    pub fn mitigate(&mut self, layer: usize, stream: &mut Stream<'_>) -> Result<Layers, PackError> {
        let tuning = self.identity.recipe.mitigate;
        let mut open = false;
        for (name, assignment) in LinearName::ALL.into_iter().zip(self.assignments[layer]) {
            let packs = matches!(assignment, Assignment::Pack(_));
            open |= packs && !self.journal.has_encoded(&name.prefix(layer))?;
        }
        if tuning.passes == 0 || !open {
            return Ok(Vec::new());
        }
        let Some((tuned, linears)) = self.brought_closer(layer, tuning, stream)? else {
            return Ok(Vec::new());
        };
        let block = self.decoder.block(layer);
        let before = linears.iter().map(|(name, _)| (*name, block.linear(*name).clone())).collect();
        for (name, linear) in linears {
            self.decoder.set_linear(layer, name, linear)?;
        }
        self.keep_tuned(Phase::Before(layer), tuned, Payloads::new())?;
        Ok(before)
    }

    /// What was not packed after all is again as it was.
    pub fn restore(&mut self, layer: usize, before: Layers) {
        for (name, linear) in before {
            if matches!(self.decoder.linear(layer, name), Linear::Dense(_)) {
                self.decoder.set_linear(layer, name, linear).expect("a layer has the shape that it had");
            }
        }
    }

    /// The packed block comes closer to what the original gives, where the recipe says so.
    pub fn reconstruct(&mut self, layer: usize, stream: &mut Stream<'_>) -> Result<(), PackError> {
        let tuning = self.identity.recipe.reconstruct;
        let phase = Phase::Block(layer);
        let packed = |name| matches!(self.decoder.linear(layer, name), Linear::Packed { .. });
        if tuning.passes == 0
            || self.journal.read_tuned(phase)?.is_some()
            || !LinearName::ALL.into_iter().any(packed)
        {
            return Ok(());
        }
        let Some((tuned, linears)) = self.brought_closer(layer, tuning, stream)? else { return Ok(()) };
        let linears = linears.into_iter().map(|(name, linear)| (layer, name, linear));
        self.keep_tuned(phase, tuned, payloads(linears))
    }

    /// What gradients did to a block, and its layers where they are to take the place of the old ones.
    fn brought_closer(
        &mut self,
        layer: usize,
        tuning: Tuning,
        stream: &mut Stream<'_>,
    ) -> Result<Option<(Tuned, Layers)>, PackError> {
        let Some(tuner) = &mut self.tuner else { return Ok(None) };
        self.observer.event(Event::Stage { layer, stage: Stage::Tune });
        let [input, target] = stream.pair(&self.decoder)?;
        let calibration = stream.calibration();
        let windows = Windows {
            input: &input,
            target: &target,
            positions: calibration.windows.positions,
            fit: calibration.fit,
        };
        let block = self.decoder.block(layer);
        match tuner.reconstruct(self.decoder.config(), block, &windows, &tuning.params()) {
            Ok(done) => Ok(Some((Tuned::new(Some(layer), &done.report), done.linears))),
            Err(error) => match Tuned::without_room(Some(layer), &error) {
                Some(tuned) => Ok(Some((tuned, Layers::new()))),
                None => Err(error.into()),
            },
        }
    }

    /// All blocks at once come closer to the original's distributions, where the recipe says so.
    pub fn distill(&mut self, layers: usize, mut stream: Stream<'_>) -> Result<(), PackError> {
        let tuning = self.identity.recipe.distill;
        let packed = |layer| {
            LinearName::ALL
                .into_iter()
                .any(|n| matches!(self.decoder.linear(layer, n), Linear::Packed { .. }))
        };
        if tuning.passes == 0 || !(0..layers).any(packed) || self.journal.read_tuned(Phase::Model)?.is_some()
        {
            return Ok(());
        }
        let Some(tuner) = &mut self.tuner else { return Ok(()) };
        self.observer.event(Event::Stage { layer: layers, stage: Stage::Tune });
        let target = stream.end(&self.decoder)?;
        let (calibration, more_target) = stream.more(&self.encoder)?;
        let fit = calibration.fit * calibration.windows.positions;
        let (tokens, more) = (calibration.windows.tokens(), calibration.more.tokens());
        let tokens = [&tokens[..fit], more, &tokens[fit..]].concat();
        let fit = fit * self.decoder.config().hidden;
        let target = [&target[..fit], &more_target, &target[fit..]].concat();
        let windows = Windows {
            input: &self.decoder.embed(&tokens)?,
            target: &target,
            positions: calibration.windows.positions,
            fit: calibration.fit + calibration.more.count(),
        };
        let done = match tuner.distill(&self.decoder, &windows, &tuning.params()) {
            Ok(done) => done,
            Err(error) => match Tuned::without_room(None, &error) {
                Some(tuned) => return self.keep_tuned(Phase::Model, tuned, Payloads::new()),
                None => return Err(error.into()),
            },
        };
        self.keep_tuned(Phase::Model, Tuned::new(None, &done.report), payloads(done.linears))
    }

    fn keep_tuned(&mut self, phase: Phase, tuned: Tuned, payloads: Payloads) -> Result<(), PackError> {
        self.journal.write_tuned(phase, &tuned, &payloads)?;
        self.observer.event(Event::Tuned { tuned: &tuned });
        match phase {
            Phase::Before(_) => Ok(()),
            Phase::Block(layer) => self.install(layer, &Site::ALL),
            Phase::Model => (0..self.assignments.len()).try_for_each(|layer| self.install(layer, &Site::ALL)),
        }
    }
}
