use crate::device::arena::{Arena, Layout};
use crate::ops::adam::{Adam, adam};

/// How far a parameter moves in a step of Adam at the start; `None` leaves it as it is. Rates fall to 0 along half a
/// cosine (Loshchilov & Hutter 2017, eq. 5, without restarts).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Of h, l and g, relative to the root mean square of the vector.
    pub scales: Option<f64>,
    /// Of the latents whose signs are stored; they start at ±[`LATENT`].
    pub signs: Option<f64>,
    /// Of the weights of layers that are not packed, relative to their root mean square.
    pub dense: Option<f64>,
}

/// Size of a latent before the first step: at a rate of 1e-3 its sign may turn after 20 steps one way.
pub const LATENT: f32 = 0.02;

/// What a parameter is, which decides its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Scales,
    Signs,
    Dense,
}

impl Rates {
    pub(super) fn of(&self, kind: Kind) -> Option<f64> {
        match kind {
            Kind::Scales => self.scales,
            Kind::Signs => self.signs,
            Kind::Dense => self.dense,
        }
    }
}

/// A vector of parameters with its gradient, and room for the optimiser's means.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameter {
    pub at: usize,
    pub gradient: usize,
    pub len: usize,
    pub kind: Kind,
    mean: usize,
    square: usize,
}

impl Parameter {
    /// Nothing where the kind is frozen.
    pub fn place(
        layout: &mut Layout,
        rates: &Rates,
        kind: Kind,
        [at, gradient, len]: [usize; 3],
    ) -> Option<Self> {
        rates.of(kind)?;
        let [mean, square] = [(); 2].map(|()| layout.vector(len));
        Some(Self { at, gradient, len, kind, mean, square })
    }

    /// The optimiser's item at its first rate, for values of this size.
    pub fn item(&self, rates: &Rates, size: f64) -> Adam {
        let Self { at, gradient, len, kind, mean, square } = *self;
        let rate = rates.of(kind).unwrap_or(0.0) * size;
        Adam { parameters: at, gradient, mean, square, len, rate }
    }
}

/// Adam over a fixed number of steps.
#[derive(Clone, Debug)]
pub(super) struct Optimiser {
    items: Vec<Adam>,
    step: usize,
    steps: usize,
    /// Steps since its means began.
    age: usize,
}

impl Optimiser {
    /// `items` hold their first rates.
    pub fn new(items: Vec<Adam>, steps: usize) -> Self {
        Self { items, step: 0, steps, age: 0 }
    }

    /// Whether it trains nothing.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn step(&mut self, arena: &mut Arena) {
        let factor = cosine(self.step, self.steps);
        let items: Vec<Adam> =
            self.items.iter().map(|item| Adam { rate: item.rate * factor, ..*item }).collect();
        adam(arena, self.age, &items);
        self.step += 1;
        self.age += 1;
    }

    /// Goes on from other parameters, half as fast; the means begin anew.
    pub fn back_off(&mut self) {
        self.items.iter_mut().for_each(|item| item.rate *= 0.5);
        self.age = 0;
    }
}

/// From 1 at step 0 to 0 after the last.
fn cosine(step: usize, steps: usize) -> f64 {
    0.5 * (1.0 + (std::f64::consts::PI * step as f64 / steps as f64).cos())
}

/// 1 for a vector of zeros.
pub(super) fn root_mean_square(values: &[f32]) -> f64 {
    let mean = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len().max(1) as f64;
    if mean > 0.0 { mean.sqrt() } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_fall_along_half_a_cosine() {
        assert_eq!(cosine(0, 10), 1.0);
        assert!((cosine(5, 10) - 0.5).abs() < 1e-12);
        assert!(cosine(9, 10) > 0.0 && cosine(9, 10) < 0.03);
        assert!((0..9).all(|step| cosine(step, 10) > cosine(step + 1, 10)));
    }
}
