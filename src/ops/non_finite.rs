use rayon::prelude::*;

use crate::device::arena::{Arena, Memory, Program, Table, View};

/// Rows that one workgroup takes.
pub const ROWS: usize = 8;

pub(super) static NON_FINITE: Program = program!("non_finite", "non_finite", 256, [("ROWS", ROWS as u32)]);

/// One search of a batch: `out_i` becomes the first column of row i that holds NaN or an infinity, or the number of
/// columns where none does; stored as a number (exact below 2²⁴).
#[derive(Clone, Copy, Debug)]
pub struct NonFinite {
    pub a: View,
    /// Place of as many numbers as A has rows.
    pub out: usize,
}

/// Searches all items. Cost: one pass over the memory.
pub fn non_finite(arena: &mut Arena, items: &[NonFinite]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(5);
    for NonFinite { a, out } in items {
        table.push(a.rows.div_ceil(ROWS), &[a.at, a.stride, a.rows, a.cols, *out]);
    }
    arena.queue(&NON_FINITE, table);
}

fn on_host(memory: Memory, item: &NonFinite) {
    (0..item.a.rows).into_par_iter().for_each(|i| {
        // SAFETY: A is read only; number i of the result is written here alone.
        unsafe {
            let row = memory.row(item.a, i);
            let column = row.iter().position(|value| !value.is_finite()).unwrap_or(row.len());
            *memory.pointer(View::vector(item.out + i, 1)) = column as f32;
        }
    });
}
