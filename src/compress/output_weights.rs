//! What the outputs of a layer count in its fit, from gradients of the original model.
//!
//! To second order the errors `e_i` of a layer's outputs add `½·Σ_i E[(∂(−log p)/∂y_i)²]·e_i²` to the divergence, where they
//! are independent. The fit minimises `Σ_i d_i²·e_i²`: rows of the weight are multiplied by `d_i` before they are encoded, and
//! what is stored is divided by it. Each d is a power of two, so that both are exact.

use super::calibration::Calibration;
use super::error::PackError;
use super::journal::{Exponents, Journal};
use super::tune::{Sensitivities, Tuner};
use crate::model::{Decoder, LinearName};

/// Positions that gradients are taken at, at most, and half of them at least where there are as many: of their squares'
/// means, powers of two are needed alone.
const POSITIONS: usize = 8192;

/// Binary orders by which a row may count more or less than the others' mean.
const MOST: i32 = 6;

/// `log2 d` of each output of each layer.
#[derive(Debug)]
pub struct OutputWeights(Exponents);

impl OutputWeights {
    /// From gradients of a model that is not packed yet, at windows all over the fit part of the calibration; once a run, then
    /// from its journal. At a `share` of 1 they are as above, at 0 all the same.
    pub fn find(
        journal: &Journal,
        tuner: &mut Tuner,
        original: &Decoder,
        calibration: &Calibration,
        share: f64,
    ) -> Result<Self, PackError> {
        if let Some(kept) = journal.read_output_weights()? {
            return Ok(Self(kept));
        }
        let found = Self::measure(tuner, original, calibration, share)?;
        journal.write_output_weights(&found.0)?;
        Ok(found)
    }

    fn measure(
        tuner: &mut Tuner,
        original: &Decoder,
        calibration: &Calibration,
        share: f64,
    ) -> Result<Self, PackError> {
        let positions = calibration.windows.positions;
        let step = calibration.fit.div_ceil((POSITIONS / positions).max(1));
        let tokens: Vec<u32> = (calibration.windows.tokens().chunks(positions).take(calibration.fit))
            .step_by(step)
            .flatten()
            .copied()
            .collect();
        Ok(Self::of(&tuner.sensitivities(original, &tokens, positions)?, share))
    }

    fn of(sensitivities: &Sensitivities, share: f64) -> Self {
        Self(sensitivities.iter().map(|block| block.each_ref().map(|of| exponents(of, share))).collect())
    }

    /// `log2 d` of the outputs of a layer.
    pub fn exponents(&self, layer: usize, name: LinearName) -> &[i32] {
        &self.0[layer][name as usize]
    }
}

/// Relative to the geometric mean of those that matter at all; those that do not count least.
fn exponents(sensitivities: &[f64], share: f64) -> Vec<i32> {
    let logs = sensitivities.iter().map(|s| s.log2());
    let (sum, count) =
        logs.clone().filter(|log| log.is_finite()).fold((0.0, 0), |(s, n), log| (s + log, n + 1));
    let mean = sum / f64::from(count.max(1));
    // From the log of d² to that of d.
    let one = |log: f64| (0.5 * share * (log - mean)).round().clamp(-f64::from(MOST), f64::from(MOST)) as i32;
    logs.map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_half_the_logarithm_around_the_mean() {
        // log2: 0, 4, 8, and nothing; their mean is 4.
        assert_eq!(exponents(&[1.0, 16.0, 256.0, 0.0], 1.0), [-2, 0, 2, -MOST]);
        assert_eq!(exponents(&[1.0, 16.0, 256.0], 0.5), [-1, 0, 1]);
        assert_eq!(exponents(&[0.0, 0.0], 1.0), [-MOST, -MOST]);
        assert_eq!(exponents(&[1e-30, 1.0, 1e30], 1.0), [-MOST, 0, MOST]);
    }
}
