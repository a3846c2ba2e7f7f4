use super::SweepError;
use crate::atoms::wide::Source;
use crate::device::Device;
use crate::device::arena::{Arena, Layout};

/// Spread below this share of the rows' size is rounding: a few last places of f32.
const ROUNDING: f64 = 4.0 * f32::EPSILON as f64;

/// Rows that are read at once.
const BATCH: usize = 1024;

/// What explained variance on the held-out rows of wide fits is held against; those of races are f64, and
/// [`explained_variance`](crate::atoms::measure::explained_variance) knows.
#[derive(Default)]
pub(super) struct HeldOut {
    rows: f64,
    /// The first row: sums of differences from it cost no digits where rows are alike
    first: Vec<f64>,
    shifts: Vec<f64>,
    shift_squares: f64,
    squares: f64,
}

impl HeldOut {
    /// Of the rows of a source from `from` on, in f32.
    ///
    /// # Errors
    /// Rows that do not vary beyond rounding, or cannot be read.
    pub fn of_source(source: &dyn Source, from: usize) -> Result<Self, SweepError> {
        let (mut held, mut layout, width) = (Self::default(), Layout::default(), source.width());
        let at = layout.mark();
        source.place(&mut layout, BATCH);
        let into = layout.matrix(BATCH, width);
        let mut arena = Arena::new(&Device::Host, layout.most()).map_err(crate::atoms::AtomsError::from)?;
        source.prepare(&mut arena, at, BATCH);
        for first in (from..source.rows()).step_by(BATCH) {
            let rows = BATCH.min(source.rows() - first);
            source.load(&mut arena, (at, BATCH), first, into.part((0, 0), (rows, width)))?;
            let x = arena.read(into.at, rows * width).map_err(crate::atoms::AtomsError::from)?;
            x.chunks_exact(width).for_each(|row| held.add(row.iter().map(|v| f64::from(*v))));
        }
        held.varies()
    }

    fn add(&mut self, row: impl Iterator<Item = f64> + Clone) {
        if self.first.is_empty() {
            self.first = row.clone().collect();
            self.shifts = vec![0.0; self.first.len()];
        }
        self.rows += 1.0;
        for ((x, first), sum) in row.zip(&self.first).zip(&mut self.shifts) {
            let shift = x - first;
            *sum += shift;
            self.shift_squares += shift * shift;
            self.squares += x * x;
        }
    }

    fn variance(&self) -> f64 {
        let of_mean: f64 = self.shifts.iter().map(|sum| (sum / self.rows).powi(2)).sum();
        self.shift_squares / self.rows - of_mean
    }

    fn varies(self) -> Result<Self, SweepError> {
        let flat = self.rows > 0.0 && self.variance() <= ROUNDING * ROUNDING * self.squares / self.rows;
        if flat { Err(SweepError::Flat) } else { Ok(self) }
    }

    /// Whether their variance can be told from f32 sums of squares around this mean.
    pub fn varies_around(&self, mean: &[f32]) -> bool {
        let centre = self.first.iter().zip(&self.shifts).map(|(first, sum)| first + sum / self.rows);
        let away: f64 = centre.zip(mean).map(|(centre, m)| (centre - f64::from(*m)).powi(2)).sum();
        let variance = self.variance();
        let flat = self.rows > 0.0 && variance <= f64::from(f32::EPSILON) * (variance + away);
        !flat
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atoms::wide::Heap;

    #[test]
    fn rows_that_vary_by_rounding_alone_do_not_vary() {
        let rows = |step: f64| (0..2000).map(|i| 0.1 + step * f64::from(i % 3)).collect::<Vec<f64>>();
        for (step, varies) in [(0.0, false), (7.5e-9, false), (1e-4, true)] {
            let heap = Heap::new(rows(step).iter().map(|v| *v as f32).collect(), 2).unwrap();
            let held = HeldOut::of_source(&heap, 10);
            assert_eq!(held.is_ok(), varies, "{step}");
            // Far away, f32 cannot tell so little.
            assert!(held.is_err() || !held.unwrap().varies_around(&[9.0, 9.0]));
        }
        let heap = Heap::new(vec![0.0; 4], 2).unwrap();
        assert!(HeldOut::of_source(&heap, 2).is_ok(), "none are held out");
    }
}
