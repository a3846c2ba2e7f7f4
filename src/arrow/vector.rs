use rayon::prelude::*;

use super::System;
use crate::ops::matvec::dot;

/// A vector of an arrow system: a point `z = (t, β)`, a gradient, a right-hand side or a step.
///
/// | symbol | field | shape |
/// |---|---|---|
/// | t | `row` | Σ d_i, the row blocks one after another |
/// | β | `border` | p |
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vector {
    pub row: Vec<f64>,
    pub border: Vec<f64>,
}

impl Vector {
    /// Zero, of the shape of `system`.
    pub fn zeros(system: &System) -> Self {
        Self { row: vec![0.0; system.unknowns()], border: vec![0.0; system.border()] }
    }

    pub fn dot(&self, other: &Self) -> f64 {
        dot(&self.row, &other.row) + dot(&self.border, &other.border)
    }

    /// ‖·‖₂, free of overflow and underflow; NaN where there is one among the numbers.
    pub fn norm(&self) -> f64 {
        let largest = largest(self.values());
        if largest == 0.0 || !largest.is_finite() {
            return largest;
        }
        if (1e-100..1e100).contains(&largest) {
            return self.dot(self).sqrt();
        }
        largest * self.values().map(|v| (v / largest).powi(2)).sum::<f64>().sqrt()
    }

    /// `self ← self + α·other`.
    pub fn add_scaled(&mut self, alpha: f64, other: &Self) {
        let add = |a: &mut Vec<f64>, b: &Vec<f64>| {
            a.iter_mut().zip(b).for_each(|(a, b)| *a = alpha.mul_add(*b, *a));
        };
        add(&mut self.row, &other.row);
        add(&mut self.border, &other.border);
    }

    /// `α·self`.
    pub fn scaled(&self, alpha: f64) -> Self {
        let scale = |v: &Vec<f64>| v.iter().map(|v| alpha * v).collect();
        Self { row: scale(&self.row), border: scale(&self.border) }
    }

    /// Whether no number is NaN or infinite.
    pub fn is_finite(&self) -> bool {
        self.values().all(f64::is_finite)
    }

    /// All numbers, rows first.
    pub fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.row.iter().chain(&self.border).copied()
    }
}

/// The largest magnitude, 0 of none. Unlike `f64::max`, NaN wins.
pub(super) fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(f64::abs).fold(0.0, |m, v| if v > m || v.is_nan() { v } else { m })
}

/// Index of the first number that is NaN or infinite.
pub(super) fn first_non_finite(values: &[f64]) -> Option<usize> {
    const CHUNK: usize = 1 << 16;
    values.par_chunks(CHUNK).enumerate().find_map_first(|(chunk, values)| {
        // The sum of v·0 is 0 exactly when every v is finite: no branch in the loop.
        if values.iter().map(|v| v * 0.0).sum::<f64>() == 0.0 {
            return None;
        }
        values.iter().position(|v| !v.is_finite()).map(|at| chunk * CHUNK + at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_never_forgotten() {
        for values in [[f64::NAN, 0.0, 0.0], [0.0, f64::NAN, 1.0], [1.0, 2.0, f64::NAN]] {
            assert!(largest(values).is_nan());
            let vector = Vector { row: values[..2].to_vec(), border: values[2..].to_vec() };
            assert!(vector.norm().is_nan(), "{values:?}");
        }
        assert_eq!(largest([1.0, -3.0, 2.0]), 3.0);
        assert_eq!(Vector { row: vec![f64::INFINITY], border: vec![1.0] }.norm(), f64::INFINITY);
    }
}
