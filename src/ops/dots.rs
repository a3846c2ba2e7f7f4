//! Inner products of rows, of columns and of whole matrices, many at once.

use rayon::prelude::*;

use crate::device::arena::{Arena, Memory, Program, Table, View};

/// Rows that one workgroup takes.
pub const ROWS: usize = 8;
/// Columns that one workgroup takes.
pub const COLS: usize = 32;
/// Partial sums of an inner product of matrices.
pub const PARTS: usize = 64;

pub(super) static ROW_DOTS: Program = program!(
    "dots",
    "row_dots",
    256,
    [("ROWS", ROWS as u32), ("COLS", COLS as u32), ("PARTS", PARTS as u32)]
);
pub(super) static COL_DOTS: Program = program!(
    "dots",
    "col_dots",
    256,
    [("ROWS", ROWS as u32), ("COLS", COLS as u32), ("PARTS", PARTS as u32)]
);
pub(super) static INNER: Program =
    program!("dots", "inner", 256, [("ROWS", ROWS as u32), ("COLS", COLS as u32), ("PARTS", PARTS as u32)]);

/// Two matrices of one shape, and where their inner products go.
#[derive(Clone, Copy, Debug)]
pub struct Dots {
    pub a: View,
    pub b: View,
    pub out: usize,
}

/// `out_i = Σ_k A_ik B_ik`: as many numbers as there are rows.
pub fn row_dots(arena: &mut Arena, items: &[Dots]) {
    run(arena, items, &ROW_DOTS, |a| a.rows.div_ceil(ROWS), on_host_rows);
}

/// `out_k = Σ_i A_ik B_ik`: as many numbers as there are columns.
pub fn col_dots(arena: &mut Arena, items: &[Dots]) {
    run(arena, items, &COL_DOTS, |a| a.cols.div_ceil(COLS), on_host_cols);
}

/// `Σ_ij A_ij B_ij` as [`PARTS`] partial sums, each over consecutive entries; [`total`] adds them.
pub fn inner(arena: &mut Arena, items: &[Dots]) {
    run(arena, items, &INNER, |_| PARTS, on_host_inner);
}

/// The sum of the partial sums of one inner product.
pub fn total(parts: &[f32]) -> f64 {
    parts.iter().map(|part| f64::from(*part)).sum()
}

fn run(
    arena: &mut Arena,
    items: &[Dots],
    program: &'static Program,
    groups: impl Fn(View) -> usize,
    on_host: impl Fn(Memory, &Dots) + Sync,
) {
    for Dots { a, b, .. } in items {
        assert_eq!((a.rows, a.cols), (b.rows, b.cols), "inner products of matrices of one shape");
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(7);
    for Dots { a, b, out } in items {
        table.push(groups(*a), &[a.at, a.stride, b.at, b.stride, a.rows, a.cols, *out]);
    }
    arena.queue(program, table);
}

fn on_host_rows(memory: Memory, item: &Dots) {
    for i in 0..item.a.rows {
        // SAFETY: A and B are read, the result is written by this item alone.
        unsafe {
            let dot = dot(memory.row(item.a, i), memory.row(item.b, i));
            *memory.pointer(View::vector(item.out + i, 1)) = dot;
        }
    }
}

fn on_host_cols(memory: Memory, item: &Dots) {
    // SAFETY: A and B are read, the result is written by this item alone.
    unsafe {
        let sums = memory.row_mut(View::vector(item.out, item.a.cols), 0);
        sums.fill(0.0);
        for i in 0..item.a.rows {
            let products = memory.row(item.a, i).iter().zip(memory.row(item.b, i));
            sums.iter_mut().zip(products).for_each(|(sum, (a, b))| *sum += a * b);
        }
    }
}

fn on_host_inner(memory: Memory, item: &Dots) {
    let rows_a_part = item.a.rows.div_ceil(PARTS);
    for part in 0..PARTS {
        let rows = (part * rows_a_part).min(item.a.rows)..((part + 1) * rows_a_part).min(item.a.rows);
        // SAFETY: A and B are read, the result is written by this item alone.
        unsafe {
            let sum: f32 = rows.map(|i| dot(memory.row(item.a, i), memory.row(item.b, i))).sum();
            *memory.pointer(View::vector(item.out + part, 1)) = sum;
        }
    }
}

/// Sum in sixteen fixed lanes.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a16, a_rest) = a.as_chunks::<16>();
    let (b16, b_rest) = b.as_chunks::<16>();
    let mut lanes = [0.0; 16];
    for (a, b) in a16.iter().zip(b16) {
        for k in 0..16 {
            lanes[k] += a[k] * b[k];
        }
    }
    lanes.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}
