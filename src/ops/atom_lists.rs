//! Which rows an atom is on in: the transposed of a table that says which atoms a row has.

use rayon::prelude::*;

use crate::device::arena::{Arena, Memory, Program, Table, View};

/// Rows that one warp counts, one after another: so the order of a list is that of the rows.
pub const SPAN: usize = 64;

const CONSTANTS: [(&str, u32); 2] = [("SPAN", SPAN as u32), ("CUDA_THREADS", 1024)];

pub(super) static COUNT: Program =
    cuda_program!("atom_lists", "count_atoms", 32, [("SPAN", SPAN as u32), ("CUDA_THREADS", 32)]);
pub(super) static STARTS: Program = cuda_program!("atom_lists", "list_starts", 256, CONSTANTS);
pub(super) static FILL: Program =
    cuda_program!("atom_lists", "fill_lists", 32, [("SPAN", SPAN as u32), ("CUDA_THREADS", 32)]);

/// The lists of one batch of rows. Everything is stored as 32-bit integers, but for `activity`.
#[derive(Clone, Copy, Debug)]
pub struct AtomLists {
    /// T x k indices of different atoms
    pub support: View,
    /// Gets where the list of each atom starts, and at the end T·k: one number more than there are atoms
    pub starts: View,
    /// Gets T·k places `row·k + column`, atom by atom, rising
    pub entries: usize,
    /// Scratch, ⌈T / [`SPAN`]⌉ x atoms
    pub counts: View,
    /// How often each atom was on so far, as numbers (exact below 2²⁴); this batch is added
    pub activity: usize,
}

/// Makes all lists. Cost: the support twice, and the scratch.
pub fn atom_lists(arena: &mut Arena, items: &[AtomLists]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let words = |item: &AtomLists| {
        let s = item.support;
        let atoms = item.counts.cols;
        [s.at, s.stride, s.rows, s.cols, item.starts.at, item.entries, item.counts.at, atoms, item.activity]
    };
    for (program, whole) in [(&COUNT, false), (&STARTS, true), (&FILL, false)] {
        let mut table = Table::new(9);
        for item in items {
            table.push(if whole { 1 } else { item.support.rows.div_ceil(SPAN) }, &words(item));
        }
        arena.queue(program, table);
    }
}

fn on_host(memory: Memory, item: &AtomLists) {
    let (rows, cols, atoms) = (item.support.rows, item.support.cols, item.counts.cols);
    let mut starts = vec![0usize; atoms + 1];
    let places = || (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j)));
    places().for_each(|place| starts[index(memory, item.support, place) + 1] += 1);
    for k in 0..atoms {
        // SAFETY: one number, touched by this item alone.
        unsafe { *memory.pointer(View::vector(item.activity + k, 1)) += starts[k + 1] as f32 };
        starts[k + 1] += starts[k];
    }
    starts.iter().enumerate().for_each(|(k, start)| set_index(memory, item.starts, (0, k), *start));
    let entries = View::vector(item.entries, rows * cols);
    for (i, j) in places() {
        let next = &mut starts[index(memory, item.support, (i, j))];
        set_index(memory, entries, (0, *next), i * cols + j);
        *next += 1;
    }
}

/// An entry of a view of 32-bit integers, on the host.
pub(super) fn index(memory: Memory, view: View, (i, j): (usize, usize)) -> usize {
    // SAFETY: inside of the arena; ops that write indices own what they write, others only read.
    unsafe { memory.pointer(view.part((i, j), (1, 1))).cast::<u32>().read() as usize }
}

/// Writes such an entry.
pub(super) fn set_index(memory: Memory, view: View, (i, j): (usize, usize), value: usize) {
    // SAFETY: as above.
    unsafe { memory.pointer(view.part((i, j), (1, 1))).cast::<u32>().write(value as u32) }
}
