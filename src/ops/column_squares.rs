use rayon::prelude::*;

use crate::device::arena::{Arena, Memory, Program, Table, View};

/// Columns of a workgroup.
const COLUMNS: usize = 32;

pub(super) static COLUMN_SQUARES: Program =
    cuda_program!("column_squares", "column_squares", 256, [("COLUMNS", COLUMNS as u32)]);

/// The squares of a matrix's columns.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSquares {
    /// T x n
    pub x: View,
    /// A vector of n numbers.
    pub out: usize,
}

/// `out_j ← out_j + Σ_i x_ij²`.
pub fn column_squares(arena: &mut Arena, items: &[ColumnSquares]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(5);
    for ColumnSquares { x, out } in items {
        table.push(x.cols.div_ceil(COLUMNS), &[x.at, x.stride, x.rows, x.cols, *out]);
    }
    arena.queue(&COLUMN_SQUARES, table);
}

fn on_host(memory: Memory, item: &ColumnSquares) {
    // SAFETY: x is read only; the sums are this item's alone.
    let sums = unsafe { memory.row_mut(View::vector(item.out, item.x.cols), 0) };
    sums.par_chunks_mut(COLUMNS).enumerate().for_each(|(chunk, sums)| {
        let mut total = [0.0f64; COLUMNS];
        for i in 0..item.x.rows {
            // SAFETY: x is read only.
            let row = unsafe { memory.row(item.x, i) };
            for (sum, x) in total.iter_mut().zip(&row[chunk * COLUMNS..]) {
                *sum += f64::from(*x).powi(2);
            }
        }
        sums.iter_mut().zip(total).for_each(|(sum, total)| *sum += total as f32);
    });
}
