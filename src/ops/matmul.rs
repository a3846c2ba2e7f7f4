use faer::linalg::matmul::matmul as gemm;
use faer::reborrow::ReborrowMut;
use faer::traits::RealField;
use faer::{Accum, MatMut, MatRef, Par};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

/// Numbers in one decoded tile of a weight: 4 MiB of f32, a part of a shared cache.
pub const TILE_NUMBERS: usize = 1 << 20;

/// Rows of activations in one task of a streamed product: many enough that packing the tile again costs little.
const ROWS_PER_TASK: usize = 256;

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
    let tile_rows = (TILE_NUMBERS / cols).clamp(1, out_rows.max(1));
    let mut tile = vec![0.0; tile_rows * cols];
    for start in (0..out_rows).step_by(tile_rows) {
        let range = start..(start + tile_rows).min(out_rows);
        let tile = &mut tile[..range.len() * cols];
        decode(tile, cols, start, &read_row);
        let tile = rows(tile, range.len(), cols).transpose();
        let tasks = y.par_chunks_mut(ROWS_PER_TASK * out_rows).zip(x.par_chunks(ROWS_PER_TASK * cols));
        tasks.for_each(|(y, x)| {
            let count = x.len() / cols;
            let mut y = rows_mut(y, count, out_rows);
            let y = y.rb_mut().subcols_mut(range.start, range.len());
            gemm(y, accumulate, rows(x, count, cols), tile, 1.0, Par::Seq);
        });
    }
}

fn decode(tile: &mut [f32], cols: usize, start: usize, read_row: &(impl Fn(usize, &mut [f32]) + Sync)) {
    const ROWS_PER_TASK: usize = 32;
    tile.par_chunks_mut(cols * ROWS_PER_TASK).enumerate().for_each(|(task, out)| {
        pulp::Arch::new().dispatch(ReadRows { read_row, cols, start: start + task * ROWS_PER_TASK, out });
    });
}

/// Rows from `start` on; a struct and not a closure, so that the loop is surely compiled for the CPU's vectors.
struct ReadRows<'a, F> {
    read_row: &'a F,
    cols: usize,
    start: usize,
    out: &'a mut [f32],
}

impl<F: Fn(usize, &mut [f32])> WithSimd for ReadRows<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (row, out) in self.out.chunks_exact_mut(self.cols).enumerate() {
            (self.read_row)(self.start + row, out);
        }
    }
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
