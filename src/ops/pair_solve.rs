use rayon::prelude::*;

use super::gemm::NONE;
use super::spd_solve::RELATIVE_RIDGE;
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

/// Rows that one workgroup takes.
const ROWS: usize = 256;

pub(super) static PAIR_SOLVE: Program = program!("pair_solve", "pair_solve", 256, [("ROWS", ROWS as u32)]);

/// One symmetric system of order 1 or 2 for each of `rows` rows; everything else is a vector of that length.
#[derive(Clone, Copy, Debug)]
pub struct PairSolve {
    pub rows: usize,
    /// Right-hand side and matrix entry of the first unknown, and where it goes.
    pub first: Unknown,
    /// The same of the second, and the entry between the two.
    pub second: Option<(Unknown, usize)>,
}

#[derive(Clone, Copy, Debug)]
pub struct Unknown {
    pub rhs: usize,
    pub diagonal: usize,
    /// Written where the solution is finite (and the determinant positive), else left as it is.
    pub x: usize,
}

/// Solves all systems, each with a ridge of [`RELATIVE_RIDGE`] times the mean of its diagonal.
pub fn pair_solve(arena: &mut Arena, items: &[PairSolve]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(9);
    for PairSolve { rows, first, second } in items {
        let (other, cross) = second.unwrap_or((Unknown { rhs: 0, diagonal: 0, x: 0 }, NONE));
        let ridge = float_word(RELATIVE_RIDGE as f32);
        let words =
            [first.rhs, other.rhs, first.diagonal, cross, other.diagonal, first.x, other.x, *rows, ridge];
        table.push(rows.div_ceil(ROWS), &words);
    }
    arena.queue(&PAIR_SOLVE, table);
}

fn on_host(memory: Memory, item: &PairSolve) {
    // SAFETY: one number of a vector; unknowns are written by this item alone.
    let at = |vector: usize, i: usize| unsafe { &mut *memory.pointer(View::vector(vector + i, 1)) };
    let ridge = RELATIVE_RIDGE as f32;
    for i in 0..item.rows {
        let (p, a) = (*at(item.first.rhs, i), *at(item.first.diagonal, i));
        let Some((other, cross)) = item.second else {
            let x = p / (a * (1.0 + ridge));
            if x.is_finite() {
                *at(item.first.x, i) = x;
            }
            continue;
        };
        let (q, b, d) = (*at(other.rhs, i), *at(cross, i), *at(other.diagonal, i));
        let ridge = ridge * 0.5 * (a + d);
        let (a, d) = (a + ridge, d + ridge);
        let determinant = a * d - b * b;
        let (x, y) = ((d * p - b * q) / determinant, (a * q - b * p) / determinant);
        if determinant > 0.0 && x.is_finite() && y.is_finite() {
            *at(item.first.x, i) = x;
            *at(other.x, i) = y;
        }
    }
}
