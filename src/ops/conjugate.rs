//! Steps of conjugate gradients for one matrix and many right-hand sides, each column with a step length of its own.

use rayon::prelude::*;

use super::scale::ENTRIES;
use crate::device::arena::{Arena, Memory, Program, Table, View};

pub(super) static STEP: Program =
    cuda_program!("conjugate", "conjugate_step", 256, [("ENTRIES", ENTRIES as u32)]);
pub(super) static TURN: Program =
    cuda_program!("conjugate", "conjugate_turn", 256, [("ENTRIES", ENTRIES as u32)]);

/// `A·X = B`, m x r, preconditioned by the diagonal of A (Hestenes and Stiefel 1952; Jacobi). All matrices lie without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Conjugate {
    /// X
    pub solution: View,
    /// R = B − A·X
    pub rest: View,
    /// P
    pub direction: View,
    /// Q = A·P
    pub image: View,
    /// Z = R/diag(A)
    pub scaled: View,
    /// diag(A), m; rows where it is 0 stay as they are
    pub diagonal: usize,
    /// Σ over rows of R∘Z before this step, of P∘Q, and of R∘Z after it: r each
    pub before: usize,
    pub curvature: usize,
    pub after: usize,
}

/// `α = before/curvature` by columns, then `X ← X + αP`, `R ← R − αQ` and `Z ← R/diag(A)`. A column without curvature rests.
pub fn conjugate_step(arena: &mut Arena, items: &[Conjugate]) {
    run(arena, items, &STEP, |item, row, memory| {
        // SAFETY: P, Q and the sums are read; a row of X, R and Z is touched by this turn alone.
        unsafe {
            let cols = item.rest.cols;
            let sums = |at: usize| memory.row(View::vector(at, cols), 0);
            let (before, curvature) = (sums(item.before), sums(item.curvature));
            let weight = *memory.pointer(View::vector(item.diagonal + row, 1));
            let (p, q) = (memory.row(item.direction, row), memory.row(item.image, row));
            let (x, r) = (memory.row_mut(item.solution, row), memory.row_mut(item.rest, row));
            let z = memory.row_mut(item.scaled, row);
            for j in 0..cols {
                let alpha = ratio(before[j], curvature[j]);
                x[j] += alpha * p[j];
                r[j] -= alpha * q[j];
                z[j] = ratio(r[j], weight);
            }
        }
    });
}

/// `P ← Z + β·P`, `β = after/before` by columns.
pub fn conjugate_turn(arena: &mut Arena, items: &[Conjugate]) {
    run(arena, items, &TURN, |item, row, memory| {
        // SAFETY: Z and the sums are read; a row of P is touched by this turn alone.
        unsafe {
            let cols = item.rest.cols;
            let sums = |at: usize| memory.row(View::vector(at, cols), 0);
            let (before, after) = (sums(item.before), sums(item.after));
            let (p, z) = (memory.row_mut(item.direction, row), memory.row(item.scaled, row));
            for j in 0..cols {
                p[j] = z[j] + ratio(after[j], before[j]) * p[j];
            }
        }
    });
}

fn run(
    arena: &mut Arena,
    items: &[Conjugate],
    program: &'static Program,
    on_host: impl Fn(&Conjugate, usize, Memory) + Sync,
) {
    if let Some(memory) = arena.memory() {
        return items.iter().for_each(|item| {
            (0..item.rest.rows).into_par_iter().for_each(|row| on_host(item, row, memory));
        });
    }
    let mut table = Table::new(11);
    for item in items {
        let places = [item.solution, item.rest, item.direction, item.image, item.scaled].map(|view| {
            assert_eq!((view.stride, view.rows, view.cols), (view.cols, item.rest.rows, item.rest.cols));
            view.at
        });
        let [x, r, p, q, z] = places;
        let (before, curvature, after) = (item.before, item.curvature, item.after);
        let words = [x, r, p, q, z, item.diagonal, before, curvature, after, item.rest.len(), item.rest.cols];
        table.push(item.rest.len().div_ceil(ENTRIES), &words);
    }
    arena.queue(program, table);
}

fn ratio(a: f32, b: f32) -> f32 {
    if b > 0.0 { a / b } else { 0.0 }
}
