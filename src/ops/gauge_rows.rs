use rayon::prelude::*;

use super::dots::{ROWS, dot};
use super::gemm::NONE;
use crate::device::arena::{Arena, Memory, Program, Table, View};

pub(super) static GAUGE_ROWS: Program = program!("gauge_rows", "gauge_rows", 256, [("ROWS", ROWS as u32)]);

/// One set of rows of a batch: `z_i = a_i/‖a_i‖`, `w_i = a_i·‖a_i‖·d_i`. A zero row stays zero.
#[derive(Clone, Copy, Debug)]
pub struct GaugeRows {
    pub a: View,
    /// d; `None` for ones
    pub weights: Option<usize>,
    pub normalised: View,
    pub weighted: View,
}

/// What the gauge iteration reads: the normalised rows, and the same times their squared weights `‖a_i‖² d_i`.
pub fn gauge_rows(arena: &mut Arena, items: &[GaugeRows]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(9);
    for GaugeRows { a, weights, normalised: z, weighted: w } in items {
        let words = [a.at, a.stride, a.rows, a.cols, weights.unwrap_or(NONE), z.at, z.stride, w.at, w.stride];
        table.push(a.rows.div_ceil(ROWS), &words);
    }
    arena.queue(&GAUGE_ROWS, table);
}

fn on_host(memory: Memory, item: &GaugeRows) {
    for i in 0..item.a.rows {
        // SAFETY: A and the weights are read, the results are written by this item alone.
        let (a, z, w) = unsafe {
            (memory.row(item.a, i), memory.row_mut(item.normalised, i), memory.row_mut(item.weighted, i))
        };
        // SAFETY: as above.
        let weight = item.weights.map_or(1.0, |at| unsafe { *memory.pointer(View::vector(at + i, 1)) });
        let norm = dot(a, a).sqrt();
        let inverse = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        let factor = norm * weight;
        for (a, (z, w)) in a.iter().zip(z.iter_mut().zip(w)) {
            (*z, *w) = (a * inverse, a * factor);
        }
    }
}
