use rayon::prelude::*;

use super::atom_lists::index;
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

/// Columns that one workgroup takes.
pub const COLS: usize = 128;

pub(super) static ATOM_SUMS: Program = cuda_program!("atom_sums", "atom_sums", 128, [("COLS", COLS as u32)]);

/// One product of transposed sparse codes with rows: `out ← keep·out + α·Σ_rows uᵀ·v`, by atoms, in the order of the rows.
#[derive(Clone, Copy, Debug)]
pub struct AtomSums {
    /// As [`AtomLists`](super::atom_lists::AtomLists) made them
    pub starts: View,
    pub entries: usize,
    /// u, T x (count · rows an atom)
    pub values: View,
    /// count
    pub columns: usize,
    /// v, T x r
    pub rows: View,
    /// (atoms · rows an atom) x r
    pub out: View,
    pub keep: f32,
    pub alpha: f32,
    /// Σu² of each row of `out`, added to what is there
    pub squares: Option<usize>,
}

/// Computes all items. Cost: as many rows of v as there are values.
pub fn atom_sums(arena: &mut Arena, items: &[AtomSums]) {
    for AtomSums { values, rows, out, starts, columns, .. } in items {
        assert_eq!((rows.cols, rows.rows), (out.cols, values.rows), "rows and atoms of one space");
        assert_eq!((starts.cols - 1) * (values.cols / columns), out.rows, "lists of these atoms");
    }
    if let Some(memory) = arena.memory() {
        return items.iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(15);
    for item in items {
        let (u, v, out) = (item.values, item.rows, item.out);
        let atoms = item.starts.cols - 1;
        let [keep, alpha] = [item.keep, item.alpha].map(float_word);
        let squares = item.squares.unwrap_or(super::gemm::NONE);
        let words = [
            item.starts.at,
            item.entries,
            u.at,
            u.stride,
            item.columns,
            u.cols / item.columns,
            v.at,
            v.stride,
            out.at,
            out.stride,
            out.cols,
            keep,
            alpha,
            squares,
            atoms,
        ];
        table.push(atoms * out.cols.div_ceil(COLS), &words);
    }
    arena.queue(&ATOM_SUMS, table);
}

fn on_host(memory: Memory, item: &AtomSums) {
    let (m, atoms) = (item.values.cols / item.columns, item.starts.cols - 1);
    (0..atoms).into_par_iter().for_each(|k| {
        let list = index(memory, item.starts, (0, k))..index(memory, item.starts, (0, k + 1));
        for part in 0..m {
            let mut sum = vec![0.0f32; item.out.cols];
            let mut square = 0.0;
            for e in list.clone() {
                let place = index(memory, View::vector(item.entries + e, 1), (0, 0));
                let (i, j) = (place / item.columns, place % item.columns);
                // SAFETY: codes and rows are read; the results of atom k are touched by this turn alone.
                let (u, v) = unsafe { (memory.row(item.values, i)[j * m + part], memory.row(item.rows, i)) };
                sum.iter_mut().zip(v).for_each(|(s, v)| *s += u * v);
                square += u * u;
            }
            // SAFETY: as above.
            unsafe {
                let out = memory.row_mut(item.out, k * m + part);
                for (out, sum) in out.iter_mut().zip(&sum) {
                    *out = if item.keep == 0.0 { 0.0 } else { item.keep * *out } + item.alpha * sum;
                }
                if let Some(at) = item.squares {
                    *memory.pointer(View::vector(at + k * m + part, 1)) += square;
                }
            }
        }
    });
}
