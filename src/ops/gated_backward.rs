use rayon::prelude::*;

use super::exp::exp;
use super::gated::Activation;
use super::scale::ENTRIES;
use crate::device::arena::{Arena, Memory, Program, Table, View};

pub(super) static GATED_KEPT: Program =
    cuda_program!("gated_backward", "gated_kept", 256, [("ENTRIES", ENTRIES as u32)]);
pub(super) static GATED_BACKWARD: Program =
    cuda_program!("gated_backward", "gated_backward", 256, [("ENTRIES", ENTRIES as u32)]);

/// One gated activation of three matrices of one shape, none of which overlaps another.
#[derive(Clone, Copy, Debug)]
pub struct KeptGate {
    pub gate: View,
    pub up: View,
    /// The result, and backward its gradient.
    pub out: View,
}

/// `out ← gate·σ(a(gate))∘up`; both inputs stay.
///
/// # Panics
/// When shapes contradict each other.
pub fn gated_kept(arena: &mut Arena, activation: Activation, items: &[KeptGate]) {
    run(arena, (activation, &GATED_KEPT), items, |g, u, out| {
        let (z, _) = activation.inner(*g);
        *out = *g / (1.0 + exp(-z)) * *u;
    });
}

/// The gradients take the places of the inputs: `gate ← dout∘up∘σ∘(1 + gate∘(1 − σ)∘a')`, `up ← dout∘gate∘σ`.
///
/// # Panics
/// When shapes contradict each other.
pub fn gated_backward(arena: &mut Arena, activation: Activation, items: &[KeptGate]) {
    run(arena, (activation, &GATED_BACKWARD), items, |g, u, out| {
        let (z, slope) = activation.inner(*g);
        let s = 1.0 / (1.0 + exp(-z));
        (*g, *u) = (*out * *u * s * (1.0 + *g * (1.0 - s) * slope), *out * *g * s);
    });
}

fn run(
    arena: &mut Arena,
    (activation, program): (Activation, &'static Program),
    items: &[KeptGate],
    entry: impl Fn(&mut f32, &mut f32, &mut f32) + Sync,
) {
    for KeptGate { gate, up, out } in items {
        let shape = (gate.rows, gate.cols);
        assert!(shape == (up.rows, up.cols) && shape == (out.rows, out.cols), "three matrices of one shape");
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item, &entry));
    }
    let mut table = Table::new(9);
    for KeptGate { gate, up, out } in items {
        let gelu = usize::from(activation == Activation::GeluTanh);
        let words = [gate.at, gate.stride, up.at, up.stride, out.at, out.stride, gate.rows, gate.cols, gelu];
        table.push(gate.len().div_ceil(ENTRIES), &words);
    }
    arena.queue(program, table);
}

fn on_host(memory: Memory, item: &KeptGate, entry: &(impl Fn(&mut f32, &mut f32, &mut f32) + Sync)) {
    (0..item.gate.rows).into_par_iter().for_each(|i| {
        // SAFETY: row i of all three is touched here alone, and none overlaps another.
        unsafe {
            let [gate, up, out] = [item.gate, item.up, item.out].map(|of| memory.row_mut(of, i));
            gate.iter_mut().zip(up).zip(out).for_each(|((g, u), out)| entry(g, u, out));
        }
    });
}
