use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::dtype::{Dtype, dequantise};

/// Weights one task reads: long enough (about 10 µs) that handing it out costs nothing.
const WEIGHTS_PER_TASK: usize = 1 << 15;

/// Weights decoded together, whole blocks of every format: 1 KiB that never leaves the first cache.
const PIECE: usize = 256;

/// One activation against the stored rows of a matrix: `y_i = Σ_j W_ij x_j`, W in any [`Dtype`], decoded piece by piece.
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | W | `dtype`, `row(i)`: the stored bytes of row i | m x n |
/// | x | `x` | n |
/// | y | `y` | m |
///
/// Every row is one sum in a fixed order, so the result does not depend on the number of threads.
///
/// # Panics
/// When a row's bytes are not n numbers of `dtype`, or for [`Dtype::U8`].
pub fn dense_matvec<'a>(dtype: Dtype, row: impl Fn(usize) -> &'a [u8] + Sync, x: &[f32], y: &mut [f32]) {
    let bytes = dtype
        .row_bytes(x.len())
        .unwrap_or_else(|| panic!("{} numbers are not whole {dtype} blocks", x.len()));
    let rows_per_task = (WEIGHTS_PER_TASK / x.len()).max(1);
    y.par_chunks_mut(rows_per_task).enumerate().for_each(|(task, y)| {
        let row = |k| &row(task * rows_per_task + k)[..bytes];
        pulp::Arch::new().dispatch(Dots { dtype, row, x, y });
    });
}

/// Rows of one task; a struct and not a closure, so that the loop is surely compiled for the CPU's vectors.
struct Dots<'a, F> {
    dtype: Dtype,
    row: F,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl<'w, F: Fn(usize) -> &'w [u8]> WithSimd for Dots<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for (k, y) in self.y.iter_mut().enumerate() {
            *y = dot_row(simd, self.dtype, (self.row)(k), self.x);
        }
    }
}

#[inline(always)]
fn dot_row<S: Simd>(simd: S, dtype: Dtype, row: &[u8], x: &[f32]) -> f32 {
    let mut sums = Sums::new(simd);
    let mut weights = [0.0; PIECE];
    let piece_bytes = PIECE / dtype.block_len() * dtype.block_bytes();
    for (bytes, x) in row.chunks(piece_bytes).zip(x.chunks(PIECE)) {
        let weights = &mut weights[..x.len()];
        dequantise(dtype, bytes, weights);
        sums.add_products(weights, x);
    }
    sums.total()
}

/// `Σ_j a_j b_j` of two f32 slices of one length, in an order that only the CPU's vector width decides.
#[inline(always)]
pub fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let mut sums = Sums::new(simd);
    sums.add_products(a, b);
    sums.total()
}

/// Vectors of partial sums, enough of them to hide the latency of multiply-add.
struct Sums<S: Simd> {
    simd: S,
    sums: [S::f32s; 4],
}

impl<S: Simd> Sums<S> {
    #[inline(always)]
    fn new(simd: S) -> Self {
        Self { simd, sums: [simd.splat_f32s(0.0); 4] }
    }

    #[inline(always)]
    fn add_products(&mut self, a: &[f32], b: &[f32]) {
        let Self { simd, sums: [mut s0, mut s1, mut s2, mut s3] } = *self;
        let ((a, a_tail), (b, b_tail)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
        for (a, b) in a.iter().zip(b) {
            s0 = simd.mul_add_f32s(a[0], b[0], s0);
            s1 = simd.mul_add_f32s(a[1], b[1], s1);
            s2 = simd.mul_add_f32s(a[2], b[2], s2);
            s3 = simd.mul_add_f32s(a[3], b[3], s3);
        }
        for (a, b) in a_rest.iter().zip(b_rest) {
            s0 = simd.mul_add_f32s(*a, *b, s0);
        }
        s1 = simd.mul_add_f32s(simd.partial_load_f32s(a_tail), simd.partial_load_f32s(b_tail), s1);
        self.sums = [s0, s1, s2, s3];
    }

    #[inline(always)]
    fn total(self) -> f32 {
        let Self { simd, sums: [s0, s1, s2, s3] } = self;
        simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(s0, s1), simd.add_f32s(s2, s3)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    /// Largest error of a row's sum, relative to `Σ_j |W_ij x_j|`: n/16 additions in f32, and the product's own.
    const TOLERANCE: f64 = 2e-6;

    #[test]
    fn every_dtype_equals_the_product_with_its_decoded_rows() {
        let small = [Dtype::Q8_0, Dtype::Q4_0, Dtype::Q4_1, Dtype::Q5_0, Dtype::Q5_1];
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().chain(small) {
            for cols in [32, 64, 288, 576].into_iter().chain((dtype.block_len() == 1).then_some(77)) {
                check(dtype, cols);
            }
        }
        for dtype in [Dtype::Q2K, Dtype::Q3K, Dtype::Q4K, Dtype::Q5K, Dtype::Q6K] {
            [256, 768].into_iter().for_each(|cols| check(dtype, cols));
        }
    }

    fn check(dtype: Dtype, cols: usize) {
        let rows = 9;
        let row_bytes = dtype.row_bytes(cols).unwrap();
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let bytes: Vec<u8> = match dtype {
            Dtype::F32 => (0..rows * cols).flat_map(|_| next().to_le_bytes()).collect(),
            Dtype::Bf16 => {
                (0..rows * cols).flat_map(|_| half::bf16::from_f32(next()).to_le_bytes()).collect()
            }
            Dtype::F16 => (0..rows * cols).flat_map(|_| f16::from_f32(next()).to_le_bytes()).collect(),
            _ => blocks(dtype, rows * cols / dtype.block_len(), &mut next),
        };
        let x: Vec<f32> = (0..cols).map(|_| next()).collect();
        let mut y = vec![f32::NAN; rows];
        dense_matvec(dtype, |row| &bytes[row * row_bytes..(row + 1) * row_bytes], &x, &mut y);
        for (y, bytes) in y.iter().zip(bytes.chunks_exact(row_bytes)) {
            let mut row = vec![0.0; cols];
            dequantise(dtype, bytes, &mut row);
            let products = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let (exact, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
            assert!(
                (f64::from(*y) - exact).abs() <= TOLERANCE * size * 4.0,
                "{dtype} x {cols}: {y} against {exact}"
            );
        }
    }

    fn blocks(dtype: Dtype, count: usize, next: &mut impl FnMut() -> f32) -> Vec<u8> {
        // Where each format has its halves; all other bytes may be anything.
        let halves: &[usize] = match dtype {
            Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
            Dtype::Q2K => &[80, 82],
            Dtype::Q3K => &[108],
            Dtype::Q6K => &[208],
            _ => &[0],
        };
        let mut bytes = Vec::new();
        for _ in 0..count {
            let mut block: Vec<u8> = (0..dtype.block_bytes()).map(|_| (next() * 127.0) as i8 as u8).collect();
            for at in halves {
                block[*at..at + 2].copy_from_slice(&f16::from_f32(next()).to_le_bytes());
            }
            bytes.extend(block);
        }
        bytes
    }
}
