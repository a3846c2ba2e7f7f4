use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::exp::exp;
use super::scale::ENTRIES;
use crate::device::arena::{Arena, Memory, Program, Table, View};

pub(super) static SWIGLU: Program = program!("swiglu", "swiglu", 256, [("ENTRIES", ENTRIES as u32)]);

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

/// One activation of a batch; `gate` becomes the result.
#[derive(Clone, Copy, Debug)]
pub struct Swiglu {
    pub gate: View,
    pub up: View,
}

/// Computes all activations of an arena.
///
/// # Panics
/// When shapes contradict each other.
pub fn swiglu_batch(arena: &mut Arena, items: &[Swiglu]) {
    for Swiglu { gate, up } in items {
        assert_eq!((gate.rows, gate.cols), (up.rows, up.cols), "gate and up have one shape");
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(6);
    for Swiglu { gate, up } in items {
        let words = [gate.at, gate.stride, up.at, up.stride, gate.rows, gate.cols];
        table.push(gate.len().div_ceil(ENTRIES), &words);
    }
    arena.queue(&SWIGLU, table);
}

fn on_host(memory: Memory, item: &Swiglu) {
    (0..item.gate.rows).into_par_iter().for_each(|i| {
        // SAFETY: up is read only; row i of gate is written here alone.
        unsafe { swiglu(memory.row_mut(item.gate, i), memory.row(item.up, i)) }
    });
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
