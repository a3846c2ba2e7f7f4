use rayon::prelude::*;

use super::atom_lists::index;
use super::gemm::NONE;
use super::top_atoms::MOST_ATOMS;
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

pub(super) static SPARSE_ROWS: Program =
    cuda_program!("sparse_rows", "sparse_rows", 128, [("MOST", MOST_ATOMS as u32)]);

/// One product of sparse codes with a decoder: `out_i ← base_i + α·Σ_(active atoms) u·D`.
#[derive(Clone, Copy, Debug)]
pub struct SparseRows {
    /// T x count indices
    pub support: View,
    /// u, T x (count · rows an atom)
    pub values: View,
    /// D, (atoms · rows an atom) x r
    pub decoder: View,
    /// T x r, may be `out` itself; zeros where there is none
    pub base: Option<View>,
    /// T x r
    pub out: View,
    /// α
    pub alpha: f32,
}

/// Computes all items. Cost: as many rows of D as a row has values.
///
/// # Panics
/// When a row has more values than two an atom of [`MOST_ATOMS`].
pub fn sparse_rows(arena: &mut Arena, items: &[SparseRows]) {
    for SparseRows { support, values, decoder, out, .. } in items {
        assert!(values.cols <= 2 * MOST_ATOMS && values.cols.is_multiple_of(support.cols), "{values:?}");
        assert_eq!(decoder.cols, out.cols, "rows and atoms of one space");
    }
    if let Some(memory) = arena.memory() {
        return items.iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(14);
    for SparseRows { support: s, values: u, decoder: d, base, out, alpha } in items {
        let base = base.unwrap_or(View::new(NONE, 0, 0));
        let words = [
            s.at,
            s.stride,
            u.at,
            u.stride,
            u.cols,
            u.cols / s.cols,
            d.at,
            d.stride,
            base.at,
            base.stride,
            out.at,
            out.stride,
            out.cols,
            float_word(*alpha),
        ];
        table.push(out.rows, &words);
    }
    arena.queue(&SPARSE_ROWS, table);
}

fn on_host(memory: Memory, item: &SparseRows) {
    let m = item.values.cols / item.support.cols;
    (0..item.out.rows).into_par_iter().for_each(|i| {
        // SAFETY: codes and decoder are read; row i of base and result is touched by this turn alone.
        unsafe {
            let out = memory.pointer(item.out.part((i, 0), (1, item.out.cols)));
            let mut sum: Vec<f32> =
                item.base.map_or_else(|| vec![0.0; item.out.cols], |base| memory.row(base, i).to_vec());
            for (a, u) in memory.row(item.values, i).iter().enumerate() {
                let row = memory.row(item.decoder, index(memory, item.support, (i, a / m)) * m + a % m);
                sum.iter_mut().zip(row).for_each(|(s, d)| *s += item.alpha * u * d);
            }
            std::ptr::copy_nonoverlapping(sum.as_ptr(), out, sum.len());
        }
    });
}
