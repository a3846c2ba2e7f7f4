use rayon::prelude::*;

use super::geglu::{CUBIC, LINEAR, geglu};
use super::scale::ENTRIES;
use super::swiglu::swiglu;
use crate::device::arena::{Arena, Memory, Program, Table, View};

pub(super) static GATED: Program = program!("gated", "gated", 256, [("ENTRIES", ENTRIES as u32)]);

/// What a gate goes through: `g·σ(a(g))` with σ(z) = 1/(1 + e^-z).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `a(g) = g`; see [`swiglu`].
    Silu,
    /// `a(g) = 2·sqrt(2/π)·(g + 0.044715·g³)`; see [`geglu`].
    GeluTanh,
}

impl Activation {
    /// a(g) and its derivative.
    pub(super) fn inner(self, g: f32) -> (f32, f32) {
        match self {
            Self::Silu => (g, 1.0),
            Self::GeluTanh => (LINEAR * (g + CUBIC * g * g * g), LINEAR * (1.0 + 3.0 * CUBIC * g * g)),
        }
    }
}

/// One activation of a batch; `gate` becomes `gate·σ(a(gate))∘up`.
#[derive(Clone, Copy, Debug)]
pub struct Gated {
    pub gate: View,
    pub up: View,
}

/// Computes all activations of an arena.
///
/// # Panics
/// When shapes contradict each other.
pub fn gated_batch(arena: &mut Arena, activation: Activation, items: &[Gated]) {
    for Gated { gate, up } in items {
        assert_eq!((gate.rows, gate.cols), (up.rows, up.cols), "gate and up have one shape");
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, activation, item));
    }
    let mut table = Table::new(7);
    for Gated { gate, up } in items {
        let gelu = usize::from(activation == Activation::GeluTanh);
        let words = [gate.at, gate.stride, up.at, up.stride, gate.rows, gate.cols, gelu];
        table.push(gate.len().div_ceil(ENTRIES), &words);
    }
    arena.queue(&GATED, table);
}

fn on_host(memory: Memory, activation: Activation, item: &Gated) {
    let gated = match activation {
        Activation::Silu => swiglu,
        Activation::GeluTanh => geglu,
    };
    (0..item.gate.rows).into_par_iter().for_each(|i| {
        // SAFETY: up is read only; row i of gate is written here alone.
        unsafe { gated(memory.row_mut(item.gate, i), memory.row(item.up, i)) }
    });
}
