use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::exp::exp;

/// 2·sqrt(2/π), from `(1 + tanh(z))/2 = 1/(1 + e^-2z)` with `z = sqrt(2/π)·(g + 0.044715·g³)`.
pub(super) const LINEAR: f32 = 1.595_769;
/// Hendrycks & Gimpel 2016, section 2.
pub(super) const CUBIC: f32 = 0.044_715;

/// `gate ← gelu(gate) ∘ up` with the tanh form of GELU, `g/(1 + e^(−2·sqrt(2/π)·(g + 0.044715·g³)))`
/// (Shazeer 2020, eq. 6), in place.
pub fn geglu(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up have one shape");
    const NUMBERS_PER_TASK: usize = 1 << 15;
    gate.par_chunks_mut(NUMBERS_PER_TASK).zip(up.par_chunks(NUMBERS_PER_TASK)).for_each(|(gate, up)| {
        pulp::Arch::new().dispatch(Gated { gate, up });
    });
}

/// One task; a struct and not a closure, so that the loop is surely compiled for the CPU's vectors.
struct Gated<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl WithSimd for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (g, u) in self.gate.iter_mut().zip(self.up) {
            let z = LINEAR * (*g + CUBIC * *g * *g * *g);
            *g = *g / (1.0 + exp(-z)) * u;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest error of an output relative to |g·u|: that of z, at most 40 before the factor saturates, in f32.
    const TOLERANCE: f64 = 1e-5;

    #[test]
    fn gates_follow_the_formula() {
        let up: Vec<f32> = (0..2000).map(|k| k as f32 * 0.01 - 7.0).collect();
        let gates: Vec<f32> = (0..2000).map(|k| k as f32 * 0.02 - 20.0).collect();
        let mut out = gates.clone();
        geglu(&mut out, &up);
        for ((out, g), u) in out.iter().zip(gates).zip(up) {
            let (g, u) = (f64::from(g), f64::from(u));
            let z = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
            let exact = 0.5 * g * (1.0 + z.tanh()) * u;
            assert!((f64::from(*out) - exact).abs() <= TOLERANCE * (g * u).abs(), "{g}, {u}: {out}, {exact}");
        }
    }
}
