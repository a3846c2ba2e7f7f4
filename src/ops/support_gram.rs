use rayon::prelude::*;

use super::atom_lists::index;
use super::dots::dot;
use crate::device::arena::{Arena, Memory, Program, Table, View};

/// Rows and columns of a Gram that one workgroup computes.
pub const BLOCK: usize = 32;

pub(super) static SUPPORT_GRAM: Program =
    cuda_program!("support_gram", "support_gram", 256, [("BLOCK", BLOCK as u32)]);

/// One batch of small normal equations: for each row y with atoms A, `G = D_A·D_Aᵀ` and `h = D_A·y`.
#[derive(Clone, Copy, Debug)]
pub struct SupportGram {
    /// y, T x r
    pub rows: View,
    /// D, (atoms · rows an atom) x r
    pub decoder: View,
    /// T x count indices
    pub support: View,
    /// 1 or 2
    pub rows_an_atom: usize,
    /// G of row i in row i, T x n², n = count · rows an atom; on and below the diagonal's blocks of [`BLOCK`], and above
    pub gram: View,
    /// T x n
    pub right: View,
}

impl SupportGram {
    fn order(&self) -> usize {
        self.support.cols * self.rows_an_atom
    }
}

/// Assembles all items. Cost: n²r a row.
///
/// # Panics
/// When shapes contradict each other.
pub fn support_gram(arena: &mut Arena, items: &[SupportGram]) {
    for item in items {
        let n = item.order();
        assert_eq!((item.gram.cols, item.right.cols), (n * n, n), "normal equations of order {n}");
        assert_eq!(item.rows.cols, item.decoder.cols, "rows and atoms of one space");
    }
    if let Some(memory) = arena.memory() {
        return items.iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(13);
    for item in items {
        let blocks = item.order().div_ceil(BLOCK);
        let (y, d, s) = (item.rows, item.decoder, item.support);
        let words = [
            y.at,
            y.stride,
            d.at,
            d.stride,
            s.at,
            s.stride,
            s.cols,
            item.rows_an_atom,
            item.gram.at,
            item.gram.stride,
            item.right.at,
            item.right.stride,
            y.cols,
        ];
        table.push(y.rows * blocks * (blocks + 1) / 2, &words);
    }
    arena.queue(&SUPPORT_GRAM, table);
}

fn on_host(memory: Memory, item: &SupportGram) {
    let n = item.order();
    (0..item.rows.rows).into_par_iter().for_each(|i| {
        // SAFETY: rows, decoder and support are read; row i of both results is written by this turn alone.
        unsafe {
            let y = memory.row(item.rows, i);
            let (gram, right) = (memory.row_mut(item.gram, i), memory.row_mut(item.right, i));
            let m = item.rows_an_atom;
            let row =
                |a: usize| memory.row(item.decoder, index(memory, item.support, (i, a / m)) * m + a % m);
            for a in 0..n {
                right[a] = dot(row(a), y);
                for b in 0..=a {
                    gram[a * n + b] = dot(row(a), row(b));
                    gram[b * n + a] = gram[a * n + b];
                }
            }
        }
    });
}
