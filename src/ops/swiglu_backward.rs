use rayon::prelude::*;

use super::exp::exp;
use super::scale::ENTRIES;
use crate::device::arena::{Arena, Memory, Program, Table, View};

pub(super) static SWIGLU_KEPT: Program =
    cuda_program!("swiglu_backward", "swiglu_kept", 256, [("ENTRIES", ENTRIES as u32)]);
pub(super) static SWIGLU_BACKWARD: Program =
    cuda_program!("swiglu_backward", "swiglu_backward", 256, [("ENTRIES", ENTRIES as u32)]);

/// One gated activation of three matrices of one shape, none of which overlaps another.
#[derive(Clone, Copy, Debug)]
pub struct KeptSwiglu {
    pub gate: View,
    pub up: View,
    /// The result, and backward its gradient.
    pub out: View,
}

/// `out ← gate·σ(gate)∘up`, σ(g) = 1/(1 + e^-g): as [`swiglu`](super::swiglu::swiglu), but both inputs stay.
///
/// # Panics
/// When shapes contradict each other.
pub fn swiglu_kept(arena: &mut Arena, items: &[KeptSwiglu]) {
    run(arena, items, &SWIGLU_KEPT, |g, u, out| {
        let s = 1.0 / (1.0 + exp(-*g));
        *out = *g * s * *u;
    });
}

/// The gradients take the places of the inputs: `gate ← dout∘up∘σ∘(1 + gate∘(1 − σ))`, `up ← dout∘gate∘σ`.
///
/// # Panics
/// When shapes contradict each other.
pub fn swiglu_backward(arena: &mut Arena, items: &[KeptSwiglu]) {
    run(arena, items, &SWIGLU_BACKWARD, |g, u, out| {
        let s = 1.0 / (1.0 + exp(-*g));
        (*g, *u) = (*out * *u * s * (1.0 + *g * (1.0 - s)), *out * *g * s);
    });
}

fn run(
    arena: &mut Arena,
    items: &[KeptSwiglu],
    program: &'static Program,
    entry: impl Fn(&mut f32, &mut f32, &mut f32) + Sync,
) {
    for KeptSwiglu { gate, up, out } in items {
        let shape = (gate.rows, gate.cols);
        assert!(shape == (up.rows, up.cols) && shape == (out.rows, out.cols), "three matrices of one shape");
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item, &entry));
    }
    let mut table = Table::new(8);
    for KeptSwiglu { gate, up, out } in items {
        let words = [gate.at, gate.stride, up.at, up.stride, out.at, out.stride, gate.rows, gate.cols];
        table.push(gate.len().div_ceil(ENTRIES), &words);
    }
    arena.queue(program, table);
}

fn on_host(memory: Memory, item: &KeptSwiglu, entry: &(impl Fn(&mut f32, &mut f32, &mut f32) + Sync)) {
    (0..item.gate.rows).into_par_iter().for_each(|i| {
        // SAFETY: row i of all three is touched here alone, and none overlaps another.
        unsafe {
            let [gate, up, out] = [item.gate, item.up, item.out].map(|of| memory.row_mut(of, i));
            gate.iter_mut().zip(up).zip(out).for_each(|((g, u), out)| entry(g, u, out));
        }
    });
}
