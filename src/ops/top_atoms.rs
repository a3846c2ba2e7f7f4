use rayon::prelude::*;

use super::atom_lists::{index, set_index};
use crate::device::arena::{Arena, Memory, Program, Table, View};

/// Most atoms that one row may have.
pub const MOST_ATOMS: usize = 64;

pub(super) static TOP_ATOMS: Program =
    cuda_program!("top_atoms", "top_atoms", 256, [("MOST", MOST_ATOMS as u32)]);

/// One choice of a batch: for each row the `add` atoms of largest gain among those that it does not have, the largest
/// first, ties to the smaller number.
///
/// | rows an atom | gain of atom k at scores s = Dy | what it is |
/// |---|---|---|
/// | 1, a ray | s²/‖d‖² | twice the fall of ½‖y − ad‖² at the best amplitude |
/// | 2, a circle | ‖(s, s')‖ − ½ρ², ρ² the mean of both squared lengths | the fall of ½‖y − f(t)‖² at the best phase |
///
/// A choice may jump where two gains are equal to rounding.
#[derive(Clone, Copy, Debug)]
pub struct TopAtoms {
    /// T x (atoms · rows an atom)
    pub scores: View,
    /// Squared lengths of the decoder's rows
    pub squares: usize,
    /// T x k indices, stored as 32-bit integers; columns `taken..taken + add` are written
    pub support: View,
    pub taken: usize,
    pub add: usize,
    /// 1 or 2
    pub rows_an_atom: usize,
}

/// Chooses for all items. Cost: one pass over the scores, and a 256th of it for each atom.
///
/// # Panics
/// When there are fewer atoms than a row shall have, or more than [`MOST_ATOMS`] are asked for.
pub fn top_atoms(arena: &mut Arena, items: &[TopAtoms]) {
    for item in items {
        let (atoms, wanted) = (item.scores.cols / item.rows_an_atom, item.taken + item.add);
        assert!(wanted <= atoms.min(MOST_ATOMS).min(item.support.cols), "{wanted} of {atoms} atoms");
    }
    if let Some(memory) = arena.memory() {
        return items.iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(9);
    for item in items {
        let (s, out) = (item.scores, item.support);
        let atoms = s.cols / item.rows_an_atom;
        let words = [
            s.at,
            s.stride,
            item.squares,
            out.at,
            out.stride,
            atoms,
            item.taken,
            item.add,
            item.rows_an_atom,
        ];
        table.push(s.rows, &words);
    }
    arena.queue(&TOP_ATOMS, table);
}

fn on_host(memory: Memory, item: &TopAtoms) {
    let atoms = item.scores.cols / item.rows_an_atom;
    (0..item.scores.rows).into_par_iter().for_each(|i| {
        // SAFETY: scores and squares are read; row i of the support is touched by this turn alone.
        let (s, squares) = unsafe {
            (memory.row(item.scores, i), memory.row(View::vector(item.squares, item.scores.cols), 0))
        };
        let mut have: Vec<usize> = (0..item.taken).map(|j| index(memory, item.support, (i, j))).collect();
        let gains: Vec<f32> = (0..atoms).map(|k| gain(s, squares, k, item.rows_an_atom)).collect();
        for j in item.taken..item.taken + item.add {
            let mut best = (f32::NEG_INFINITY, 0);
            for (k, gain) in gains.iter().enumerate() {
                if *gain > best.0 && !have.contains(&k) {
                    best = (*gain, k);
                }
            }
            have.push(best.1);
            set_index(memory, item.support, (i, j), best.1);
        }
    });
}

fn gain(scores: &[f32], squares: &[f32], k: usize, rows_an_atom: usize) -> f32 {
    if rows_an_atom == 1 {
        return scores[k] * scores[k] / squares[k].max(f32::MIN_POSITIVE);
    }
    let (a, b) = (2 * k, 2 * k + 1);
    (scores[a] * scores[a] + scores[b] * scores[b]).sqrt() - 0.25 * (squares[a] + squares[b])
}
