use std::ops::Range;

use faer::linalg::matmul::matmul as gemm;
use faer::reborrow::ReborrowMut;
use faer::traits::RealField;
use faer::{Accum, MatMut, MatRef, Par};
use rayon::prelude::*;

/// Numbers in one decoded tile of a weight: 4 MiB of f32, a part of a shared cache.
pub const TILE_NUMBERS: usize = 1 << 20;

/// `C = A·B` (or `C += A·B`), all row-major; A is `m x k`, B is `k x n`, C is `m x n`.
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | A | `a` | m x k |
/// | B | `b` | k x n |
/// | C | `c` | m x n |
///
/// # Panics
/// When a slice is shorter than its shape.
pub fn matmul<T: RealField>(c: MatMut<'_, T>, accumulate: Accum, a: MatRef<'_, T>, b: MatRef<'_, T>) {
    gemm(c, accumulate, a, b, T::one_impl(), Par::rayon(0));
}

/// A row-major matrix over a slice.
pub fn rows<T>(slice: &[T], rows: usize, cols: usize) -> MatRef<'_, T> {
    MatRef::from_row_major_slice(slice, rows, cols)
}

/// The same, for writing.
pub fn rows_mut<T>(slice: &mut [T], rows: usize, cols: usize) -> MatMut<'_, T> {
    MatMut::from_row_major_slice_mut(slice, rows, cols)
}

/// A product with a matrix that is never wholly decoded: `Y = X·Rᵀ` (or `Y += X·Rᵀ`).
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | X | `x` | T x n |
/// | R | read by `read_row(i, out)`, n numbers | m x n |
/// | Y | `y` | T x m |
///
/// Rows of R are decoded tile by tile ([`TILE_NUMBERS`]); each tile is one GEMM over all rows of X.
///
/// # Panics
/// When `x` is not whole rows of n, or `y` does not hold one row of m for each.
pub fn matmul_streamed(
    x: &[f32],
    cols: usize,
    read_row: impl Fn(usize, &mut [f32]) + Sync,
    y: &mut [f32],
    out_rows: usize,
    accumulate: Accum,
) {
    let count = x.len() / cols;
    assert_eq!(x.len(), count * cols, "activations are whole rows of {cols}");
    assert_eq!(y.len(), count * out_rows, "{count} rows of {out_rows} to write");
    let x = rows(x, count, cols);
    let mut y = rows_mut(y, count, out_rows);
    let tile_rows = (TILE_NUMBERS / cols).clamp(1, out_rows.max(1));
    let mut tile = vec![0.0; tile_rows * cols];
    for start in (0..out_rows).step_by(tile_rows) {
        let range = start..(start + tile_rows).min(out_rows);
        let tile = &mut tile[..range.len() * cols];
        decode(tile, cols, range.clone(), &read_row);
        let columns = y.rb_mut().subcols_mut(start, range.len());
        matmul(columns, accumulate, x, rows(tile, range.len(), cols).transpose());
    }
}

fn decode(
    tile: &mut [f32],
    cols: usize,
    range: Range<usize>,
    read_row: &(impl Fn(usize, &mut [f32]) + Sync),
) {
    const ROWS_PER_TASK: usize = 32;
    tile.par_chunks_mut(cols * ROWS_PER_TASK).enumerate().for_each(|(task, out)| {
        pulp::Arch::new().dispatch(|| {
            for (row, out) in out.chunks_exact_mut(cols).enumerate() {
                read_row(range.start + task * ROWS_PER_TASK + row, out);
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_product_equals_the_plain_loop() {
        // Small integers: every sum is exact. The third case needs two tiles.
        for (count, cols, out_rows) in [(1, 3, 5), (7, 8, 33), (2, TILE_NUMBERS / 2, 5)] {
            let x: Vec<f32> = (0..count * cols).map(|k| ((k * 7 + 3) % 5) as f32 - 2.0).collect();
            let weight = |row: usize, col: usize| ((row * 3 + col) % 7) as f32 - 3.0;
            let mut y = vec![1.0; count * out_rows];
            let read = |row: usize, out: &mut [f32]| {
                out.iter_mut().enumerate().for_each(|(col, o)| *o = weight(row, col));
            };
            matmul_streamed(&x, cols, read, &mut y, out_rows, Accum::Add);
            for (t, y) in y.chunks_exact(out_rows).enumerate() {
                for (row, y) in y.iter().enumerate() {
                    let exact: f32 = (0..cols).map(|col| x[t * cols + col] * weight(row, col)).sum();
                    assert_eq!(*y, exact + 1.0, "{count} x {cols} x {out_rows} at {t}, {row}");
                }
            }
        }
    }
}
