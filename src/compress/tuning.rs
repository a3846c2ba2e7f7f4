use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::tune::{Rates, TuneError, TuneParams, TuneReport, Verdict, Weighting};
use crate::blr::Payload;
use crate::device::DeviceError;
use crate::device::arena::Precision;
use crate::model::{Linear, LinearName};

/// How far gradients go: a part of a recipe. See [`tune`](super::tune).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// How often every fit window is seen; 0 leaves it out.
    pub passes: usize,
    /// Positions of a step.
    pub batch: usize,
    /// Rates of scales and of signs at the start; 0 leaves them as they are.
    pub scales: f64,
    pub signs: f64,
    /// The same of weights that are not packed.
    #[serde(default)]
    pub dense: f64,
    /// Whether a position of a reconstruction counts by its own size.
    pub relative: bool,
    /// Of the order of windows.
    pub seed: u64,
}

impl Tuning {
    /// Of blocks.
    pub fn reconstruction() -> Self {
        Self::of(&TuneParams::default())
    }

    /// Of blocks before they are packed.
    pub fn mitigation() -> Self {
        Self::of(&TuneParams::mitigate())
    }

    /// Of the whole model.
    pub fn distillation() -> Self {
        Self::of(&TuneParams::distill())
    }

    fn of(params: &TuneParams) -> Self {
        let TuneParams { passes, batch, rates, seed, weighting, .. } = *params;
        let rate = |rate: Option<f64>| rate.unwrap_or(0.0);
        let relative = weighting == Weighting::Relative;
        let [scales, signs, dense] = [rates.scales, rates.signs, rates.dense].map(rate);
        Self { passes, batch, scales, signs, dense, relative, seed }
    }

    pub(super) fn params(&self) -> TuneParams {
        let rate = |rate: f64| (rate > 0.0).then_some(rate);
        TuneParams {
            passes: self.passes,
            batch: self.batch,
            rates: Rates { scales: rate(self.scales), signs: rate(self.signs), dense: rate(self.dense) },
            seed: self.seed,
            weighting: if self.relative { Weighting::Relative } else { Weighting::Uniform },
            precision: Precision::Tf32,
        }
    }
}

/// What tuning did, for packing.json: of one block, or of the whole model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<usize>,
    /// Losses before and after, the latter of the result as it is stored; none where there was no room to train.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<[f64; 2]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heldout: Option<[f64; 2]>,
    /// Why the result was not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
    pub steps: usize,
    /// How often it went back to the best state and on at half the rates.
    #[serde(default, skip_serializing_if = "none")]
    pub turned_back: usize,
}

fn none(count: &usize) -> bool {
    *count == 0
}

impl Tuned {
    pub(super) fn new(layer: Option<usize>, report: &TuneReport) -> Self {
        let dropped = match &report.verdict {
            Verdict::Kept => None,
            Verdict::Worse => Some("held-out windows did not come closer".into()),
            Verdict::Unstorable(reason) => Some(reason.clone()),
        };
        Self {
            layer,
            fit: Some([report.fit.before, report.fit.after]),
            heldout: Some([report.heldout.before, report.heldout.after]),
            dropped,
            steps: report.trained.steps,
            turned_back: report.trained.turned_back,
        }
    }
}

impl Tuned {
    /// Where a device has no room to train: what is packed stays as it is, and the record says so.
    pub(super) fn without_room(layer: Option<usize>, error: &TuneError) -> Option<Self> {
        let TuneError::Device(DeviceError::Memory { .. }) = error else { return None };
        Some(Self {
            layer,
            fit: None,
            heldout: None,
            dropped: Some(error.to_string()),
            steps: 0,
            turned_back: 0,
        })
    }
}

/// Payloads by the name of their tensor.
pub(super) type Payloads = BTreeMap<String, Payload>;

/// The packed ones of some layers.
pub(super) fn payloads(linears: impl IntoIterator<Item = (usize, LinearName, Linear)>) -> Payloads {
    let packed = linears.into_iter().filter_map(|(layer, name, linear)| match linear {
        Linear::Packed { payload, .. } => Some((name.prefix(layer), payload)),
        Linear::Dense(_) => None,
    });
    packed.collect()
}
