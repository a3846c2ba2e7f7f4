use rayon::prelude::*;

use super::plan::Extent;
use super::{TuneError, Weighting};
use crate::model::{SplitMix64, first_non_finite};

/// What a block gets and what it should give: windows of `positions` rows of the residual stream, fit ones first.
#[derive(Clone, Copy, Debug)]
pub struct Windows<'a> {
    /// The stream that enters the packed block.
    pub input: &'a [f32],
    /// The stream that leaves the original block in the original model.
    pub target: &'a [f32],
    pub positions: usize,
    /// Windows that are fitted to; the others are held out.
    pub fit: usize,
}

impl Windows<'_> {
    pub(super) fn check(&self, hidden: usize, layer: usize) -> Result<Extent, TuneError> {
        let window = self.positions * hidden;
        let windows = self.input.len().checked_div(window).unwrap_or(0);
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

    /// What the error of each position counts in the mean of all.
    pub(super) fn weights(&self, hidden: usize, weighting: Weighting) -> Vec<f32> {
        let rows = self.target.par_chunks_exact(hidden);
        let squares: Vec<f64> =
            rows.map(|row| row.iter().map(|t| f64::from(*t).powi(2)).sum::<f64>() / hidden as f64).collect();
        match weighting {
            Weighting::Uniform => vec![(1.0 / self.variance(hidden)) as f32; squares.len()],
            // Rows of zeros count nothing.
            Weighting::Relative => {
                squares.iter().map(|square| if *square > 0.0 { (1.0 / square) as f32 } else { 0.0 }).collect()
            }
        }
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
    pub(super) fn bad_number(&self, hidden: usize, layer: usize, loss: f64) -> TuneError {
        for (what, part) in [("input", self.input), ("target", self.target)] {
            if let Some((position, column)) = first_non_finite(part, hidden) {
                let value = part[position * hidden + column];
                return TuneError::NonFinite { what, layer, position, value };
            }
        }
        TuneError::NonFinite { what: "output", layer, position: 0, value: loss as f32 }
    }
}

/// Fisher and Yates; the modulo's bias is below 2^-40 for as many windows as there may be.
pub(super) fn shuffle(order: &mut [usize], random: &mut SplitMix64) {
    for last in (1..order.len()).rev() {
        order.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
    }
}
