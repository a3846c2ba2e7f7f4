use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::exp::exp;

/// `gate ← gate / (1 + e^-gate) ∘ up`: SiLU-gated activation (Shazeer 2020, eq. 6), in place.
pub fn swiglu(gate: &mut [f32], up: &[f32]) {
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
            *g = *g / (1.0 + exp(-*g)) * u;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::exp::EXP_TOLERANCE;

    #[test]
    fn gates_follow_the_formula() {
        let up: Vec<f32> = (0..2000).map(|k| k as f32 * 0.01 - 7.0).collect();
        let gates: Vec<f32> = (0..2000).map(|k| k as f32 * 0.05 - 50.0).collect();
        let mut out = gates.clone();
        swiglu(&mut out, &up);
        for ((out, g), u) in out.iter().zip(gates).zip(up) {
            let exact = f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u);
            let slack = f64::from(EXP_TOLERANCE) * 2.0 * exact.abs();
            assert!((f64::from(*out) - exact).abs() <= slack, "silu({g})·{u}: {out} against {exact}");
        }
    }
}
