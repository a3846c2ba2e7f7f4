use rayon::prelude::*;

use super::gemm::NONE;
use crate::device::arena::{Arena, Memory, Program, Table, View};

/// Entries that one workgroup computes.
pub const ENTRIES: usize = 4096;

pub(super) static SCALE: Program = program!("scale", "scale", 256, [("ENTRIES", ENTRIES as u32)]);

const SIGN: usize = 1;
const ADD: usize = 2;

/// One scaling of a batch: `out ← diag(row)·f(A)·diag(col)`, or added to what is there.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    a: View,
    out: View,
    row: Option<usize>,
    col: Option<usize>,
    flags: usize,
}

impl Scale {
    /// A copy; `out` may be A itself.
    pub fn new(a: View, out: View) -> Self {
        Self { a, out, row: None, col: None, flags: 0 }
    }

    /// The vector (as long as A has rows) that multiplies its rows.
    pub fn rows(self, at: usize) -> Self {
        Self { row: Some(at), ..self }
    }

    /// The vector that multiplies its columns.
    pub fn cols(self, at: usize) -> Self {
        Self { col: Some(at), ..self }
    }

    /// f is the sign, +1 for 0.
    pub fn sign(self) -> Self {
        Self { flags: self.flags | SIGN, ..self }
    }

    /// Adds to `out`.
    pub fn add(self) -> Self {
        Self { flags: self.flags | ADD, ..self }
    }
}

/// Computes all scalings. Cost: one pass over the memory.
///
/// # Panics
/// When shapes contradict each other.
pub fn scale(arena: &mut Arena, items: &[Scale]) {
    for Scale { a, out, .. } in items {
        assert_eq!((a.rows, a.cols), (out.rows, out.cols), "a scaling keeps the shape");
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(9);
    for Scale { a, out, row, col, flags } in items {
        let [row, col] = [row, col].map(|at| at.unwrap_or(NONE));
        let words = [a.at, a.stride, out.at, out.stride, a.rows, a.cols, row, col, *flags];
        table.push(a.len().div_ceil(ENTRIES), &words);
    }
    arena.queue(&SCALE, table);
}

/// sign(0) is +1.
pub(super) fn sign(x: f32) -> f32 {
    if x < 0.0 { -1.0 } else { 1.0 }
}

fn on_host(memory: Memory, item: &Scale) {
    // SAFETY: vectors are read only; a row of `out` is written by this item alone, after it was read where it is A.
    let vector = |at: usize, len: usize| unsafe { memory.row(View::vector(at, len), 0) };
    let row = item.row.map(|at| vector(at, item.a.rows));
    let col = item.col.map(|at| vector(at, item.a.cols));
    for i in 0..item.a.rows {
        let factor = row.map_or(1.0, |row| row[i]);
        let (a, out) = (
            memory.pointer(item.a.part((i, 0), (1, item.a.cols))),
            memory.pointer(item.out.part((i, 0), (1, item.a.cols))),
        );
        for j in 0..item.a.cols {
            // SAFETY: entry j of a row of both views.
            unsafe {
                let a = *a.add(j);
                let value = if item.flags & SIGN != 0 { sign(a) } else { a };
                let value = factor * value * col.map_or(1.0, |col| col[j]);
                *out.add(j) = if item.flags & ADD != 0 { *out.add(j) + value } else { value };
            }
        }
    }
}
