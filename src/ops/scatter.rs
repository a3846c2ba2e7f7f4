use rayon::prelude::*;

use super::scale::ENTRIES;
use crate::device::arena::{Arena, Memory, Program, Table, View};

pub(super) static SCATTER: Program = program!("scatter", "scatter", 256, [("ENTRIES", ENTRIES as u32)]);

/// One placing of rows: row i of A becomes row `places_i` of `out`; the other rows of `out` stay.
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    pub a: View,
    /// Does not overlap A.
    pub out: View,
    /// A vector of distinct row indices, stored as numbers (exact below 2²⁴).
    pub places: usize,
}

/// Places the rows of all items.
///
/// # Panics
/// When rows differ in length.
pub fn scatter(arena: &mut Arena, items: &[Scatter]) {
    for Scatter { a, out, .. } in items {
        assert_eq!(a.cols, out.cols, "rows of one length");
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(7);
    for Scatter { a, out, places } in items {
        let words = [a.at, a.stride, out.at, out.stride, a.rows, a.cols, *places];
        table.push(a.len().div_ceil(ENTRIES), &words);
    }
    arena.queue(&SCATTER, table);
}

fn on_host(memory: Memory, item: &Scatter) {
    for i in 0..item.a.rows {
        // SAFETY: A and places are read only; the rows of `out` are written by this item alone.
        unsafe {
            let place = *memory.pointer(View::vector(item.places + i, 1)) as usize;
            memory.row_mut(item.out, place).copy_from_slice(memory.row(item.a, i));
        }
    }
}
