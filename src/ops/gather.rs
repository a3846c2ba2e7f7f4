use rayon::prelude::*;

use super::gemm::NONE;
use super::scale::ENTRIES;
use crate::device::arena::{Arena, Memory, Program, Table, View};

pub(super) static GATHER: Program = program!("gather", "gather", 256, [("ENTRIES", ENTRIES as u32)]);

/// One permutation of a batch: `out_ij ← A[rows_i, cols_j]`.
///
/// `rows` and `cols` are vectors of indices, stored as numbers (exact below 2²⁴); `None` keeps the order.
#[derive(Clone, Copy, Debug)]
pub struct Gather {
    pub a: View,
    /// Overlaps neither A nor the indices.
    pub out: View,
    pub rows: Option<usize>,
    pub cols: Option<usize>,
    pub order: Order,
}

/// Whether a permutation also transposes: then it reads `A[cols_j, rows_i]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Straight,
    Transposed,
}

/// Computes all permutations.
pub fn gather(arena: &mut Arena, items: &[Gather]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(9);
    for Gather { a, out, rows, cols, order } in items {
        let [rows, cols] = [rows, cols].map(|at| at.unwrap_or(NONE));
        let words = [a.at, a.stride, out.at, out.stride, out.rows, out.cols, rows, cols, *order as usize];
        table.push(out.len().div_ceil(ENTRIES), &words);
    }
    arena.queue(&GATHER, table);
}

fn on_host(memory: Memory, item: &Gather) {
    // SAFETY: indices and A are read only; `out` is written by this item alone.
    let index = |at: Option<usize>, k: usize| match at {
        Some(at) => unsafe { *memory.pointer(View::vector(at + k, 1)) as usize },
        None => k,
    };
    if item.order == Order::Transposed {
        for i in 0..item.out.rows {
            for j in 0..item.out.cols {
                let (row, col) = (index(item.cols, j), index(item.rows, i));
                // SAFETY: as above.
                unsafe {
                    *memory.pointer(item.out.part((i, j), (1, 1))) =
                        *memory.pointer(item.a.part((row, col), (1, 1)));
                }
            }
        }
        return;
    }
    let cols: Vec<usize> = (0..item.out.cols).map(|j| index(item.cols, j)).collect();
    for i in 0..item.out.rows {
        // SAFETY: as above.
        let (a, out) = unsafe { (memory.row(item.a, index(item.rows, i)), memory.row_mut(item.out, i)) };
        out.iter_mut().zip(&cols).for_each(|(out, j)| *out = a[*j]);
    }
}
