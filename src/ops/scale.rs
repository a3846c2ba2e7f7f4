use rayon::prelude::*;

use super::gemm::NONE;
use crate::device::arena::{Arena, Memory, Program, Table, View};

/// Entries that one workgroup computes.
pub const ENTRIES: usize = 4096;

pub(super) static SCALE: Program = program!("scale", "scale", 256, [("ENTRIES", ENTRIES as u32)]);

const SIGN: usize = 1;
const ADD: usize = 2;
const TIMES: usize = 4;
const LEADING: usize = 8;
const REST: usize = 16;

/// One scaling of a batch: `out ← diag(row)·f(A)·diag(col)`, or added to what is there, or multiplied with it entry by entry.
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

    /// f keeps the 11 leading bits, rounded: what tensor cores read of an f32.
    pub fn leading(self) -> Self {
        Self { flags: self.flags | LEADING, ..self }
    }

    /// f is the 11 leading bits of what [`leading`](Self::leading) leaves; 2⁻²³ of a number is then still missing.
    pub fn rest(self) -> Self {
        Self { flags: self.flags | REST, ..self }
    }

    /// Adds to `out`.
    pub fn add(self) -> Self {
        Self { flags: self.flags | ADD, ..self }
    }

    /// Multiplies `out`, entry by entry.
    pub fn times(self) -> Self {
        Self { flags: self.flags | TIMES, ..self }
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

/// The 11 leading bits, rounded to nearest, away from zero in the middle; what is not finite stays.
fn leading(x: f32) -> f32 {
    if x.is_finite() { f32::from_bits((x.to_bits() + 0x1000) & 0xffff_e000) } else { x }
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
                let value = match item.flags & (SIGN | LEADING | REST) {
                    SIGN => sign(a),
                    LEADING => leading(a),
                    REST => leading(a - leading(a)),
                    _ => a,
                };
                let value = factor * value * col.map_or(1.0, |col| col[j]);
                *out.add(j) = match item.flags & (ADD | TIMES) {
                    ADD => *out.add(j) + value,
                    TIMES => *out.add(j) * value,
                    _ => value,
                };
            }
        }
    }
}
