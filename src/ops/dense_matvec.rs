use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::dtype::Dtype;

/// Weights one task reads: long enough (about 10 µs) that handing it out costs nothing.
const WEIGHTS_PER_TASK: usize = 1 << 15;

/// Independent partial sums of a dot product: enough to hide the latency of multiply-add.
const LANES: usize = 32;

/// One activation against the stored rows of a matrix: `y_i = Σ_j W_ij x_j`, W in any [`Dtype`], decoded in registers.
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
    let block_sums = match dtype {
        Dtype::Q4_0 | Dtype::Q4_1 => x.as_chunks::<32>().0.iter().map(|block| block.iter().sum()).collect(),
        _ => Vec::new(),
    };
    let bytes = dtype
        .row_bytes(x.len())
        .unwrap_or_else(|| panic!("{} numbers are not whole {dtype} blocks", x.len()));
    let rows_per_task = (WEIGHTS_PER_TASK / x.len()).max(1);
    y.par_chunks_mut(rows_per_task).enumerate().for_each(|(task, y)| {
        let row = |k| &row(task * rows_per_task + k)[..bytes];
        pulp::Arch::new().dispatch(Dots { dtype, row, x, block_sums: &block_sums, y });
    });
}

/// Rows of one task; a struct and not a closure, so that the loop is surely compiled for the CPU's vectors.
struct Dots<'a, F> {
    dtype: Dtype,
    row: F,
    x: &'a [f32],
    block_sums: &'a [f32],
    y: &'a mut [f32],
}

impl<'w, F: Fn(usize) -> &'w [u8]> WithSimd for Dots<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (k, y) in self.y.iter_mut().enumerate() {
            *y = dot_row(self.dtype, (self.row)(k), self.x, self.block_sums);
        }
    }
}

#[inline(always)]
fn dot_row(dtype: Dtype, row: &[u8], x: &[f32], block_sums: &[f32]) -> f32 {
    match dtype {
        Dtype::F32 => dot_f32(row, x),
        Dtype::F16 => dot_f16(row, x),
        Dtype::Bf16 => dot_bf16(row, x),
        Dtype::Q8_0 => dot_q8_0(row, x),
        Dtype::Q4_0 => dot_q4_0(row, x, block_sums),
        Dtype::Q4_1 => dot_q4_1(row, x, block_sums),
        Dtype::U8 => panic!("U8 holds packed bytes, not numbers"),
    }
}

/// `Σ_j a_j b_j` of two f32 slices of one length, in a fixed order.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        add_products(&mut sums, a, b);
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    total(sums) + rest
}

#[inline(always)]
fn add_products(sums: &mut [f32; LANES], a: &[f32; LANES], b: &[f32; LANES]) {
    for k in 0..LANES {
        sums[k] = a[k].mul_add(b[k], sums[k]);
    }
}

/// The sum of all lanes, halves first.
#[inline(always)]
fn total(mut sums: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for k in 0..half {
            sums[k] += sums[k + half];
        }
        half /= 2;
    }
    sums[0]
}

#[inline(always)]
fn dot_f32(row: &[u8], x: &[f32]) -> f32 {
    dot_words::<4>(row, x, f32::from_le_bytes)
}

#[inline(always)]
fn dot_f16(row: &[u8], x: &[f32]) -> f32 {
    dot_words::<2>(
        row,
        x,
        #[inline(always)]
        |b| f16_value(u16::from_le_bytes(b)),
    )
}

#[inline(always)]
fn dot_bf16(row: &[u8], x: &[f32]) -> f32 {
    dot_words::<2>(
        row,
        x,
        #[inline(always)]
        |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16),
    )
}

#[inline(always)]
fn dot_words<const SIZE: usize>(row: &[u8], x: &[f32], value: impl Fn([u8; SIZE]) -> f32) -> f32 {
    let (row, row_rest) = row.as_chunks::<SIZE>().0.as_chunks::<LANES>();
    let (x, x_rest) = x.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (w, x) in row.iter().zip(x) {
        for k in 0..LANES {
            sums[k] = value(w[k]).mul_add(x[k], sums[k]);
        }
    }
    let rest: f32 = row_rest.iter().zip(x_rest).map(|(w, x)| value(*w) * x).sum();
    total(sums) + rest
}

/// An f16 in f32, in integer steps that become vector instructions (`half` asks for the CPU's features at each number).
/// Infinities and NaN are kept.
#[inline(always)]
fn f16_value(bits: u16) -> f32 {
    const REBIAS: u32 = (127 - 15) << 23;
    // 2^-14, the weight of a subnormal's implied one.
    const SMALLEST_NORMAL: u32 = 113 << 23;
    let bits = u32::from(bits);
    let sign = (bits & 0x8000) << 16;
    let magnitude = (bits & 0x7fff) << 13;
    let normal = magnitude + REBIAS;
    let subnormal = (f32::from_bits(magnitude + SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL)).to_bits();
    let finite = if magnitude < 1 << 23 { subnormal } else { normal };
    let value = if magnitude >= 0x1f << 23 { magnitude | 0xff << 23 } else { finite };
    f32::from_bits(value | sign)
}

/// Blocks whose scales are decoded together.
const GROUP: usize = 8;

/// The f16 numbers at byte `at` of up to [`GROUP`] blocks.
#[inline(always)]
fn scales<const BYTES: usize>(blocks: &[[u8; BYTES]], at: usize) -> [f32; GROUP] {
    let mut bits = [0u16; GROUP];
    for (bits, block) in bits.iter_mut().zip(blocks) {
        *bits = u16::from_le_bytes([block[at], block[at + 1]]);
    }
    let mut values = [0.0; GROUP];
    for k in 0..GROUP {
        values[k] = f16_value(bits[k]);
    }
    values
}

#[inline(always)]
fn dot_q8_0(row: &[u8], x: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for (blocks, x) in row.as_chunks::<34>().0.chunks(GROUP).zip(x.as_chunks::<32>().0.chunks(GROUP)) {
        let scales = scales(blocks, 0);
        for ((block, x), d) in blocks.iter().zip(x).zip(scales) {
            for k in 0..LANES {
                sums[k] = (f32::from(block[2 + k] as i8) * x[k]).mul_add(d, sums[k]);
            }
        }
    }
    total(sums)
}

#[inline(always)]
fn dot_q4_0(row: &[u8], x: &[f32], block_sums: &[f32]) -> f32 {
    let (mut sums, mut offset) = ([0.0; LANES], 0.0);
    let x = x.as_chunks::<32>().0.chunks(GROUP).zip(block_sums.chunks(GROUP));
    for (blocks, (x, block_sums)) in row.as_chunks::<18>().0.chunks(GROUP).zip(x) {
        let scales = scales(blocks, 0);
        for (((block, x), sum), d) in blocks.iter().zip(x).zip(block_sums).zip(scales) {
            add_nibbles(&mut sums, block.last_chunk().expect("16 of 18 bytes"), x, d);
            offset = (-8.0 * d).mul_add(*sum, offset);
        }
    }
    total(sums) + offset
}

#[inline(always)]
fn dot_q4_1(row: &[u8], x: &[f32], block_sums: &[f32]) -> f32 {
    let (mut sums, mut offset) = ([0.0; LANES], 0.0);
    let x = x.as_chunks::<32>().0.chunks(GROUP).zip(block_sums.chunks(GROUP));
    for (blocks, (x, block_sums)) in row.as_chunks::<20>().0.chunks(GROUP).zip(x) {
        let (scales, minima) = (scales(blocks, 0), scales(blocks, 2));
        for (((block, x), sum), (d, m)) in
            blocks.iter().zip(x).zip(block_sums).zip(scales.into_iter().zip(minima))
        {
            add_nibbles(&mut sums, block.last_chunk().expect("16 of 20 bytes"), x, d);
            offset = m.mul_add(*sum, offset);
        }
    }
    total(sums) + offset
}

/// Adds `d·q·x` of one block of 4-bit numbers.
#[inline(always)]
fn add_nibbles(sums: &mut [f32; LANES], packed: &[u8; 16], x: &[f32; 32], d: f32) {
    for k in 0..16 {
        sums[k] = (f32::from(packed[k] & 15) * x[k]).mul_add(d, sums[k]);
    }
    for k in 0..16 {
        sums[k + 16] = (f32::from(packed[k] >> 4) * x[k + 16]).mul_add(d, sums[k + 16]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::dtype::dequantise;
    use half::f16;

    /// Largest error of a row's sum, relative to `Σ_j |W_ij x_j|`: n/LANES + 5 additions in f32, and the product's own.
    const TOLERANCE: f64 = 2e-6;

    #[test]
    fn every_half_is_read_as_half_reads_it() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_value(bits), f16::from_bits(bits).to_f32_const());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn every_dtype_equals_the_product_with_its_decoded_rows() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Q8_0, Dtype::Q4_0, Dtype::Q4_1] {
            for cols in [32, 64, 288, 576].into_iter().chain((dtype.block_len() == 1).then_some(77)) {
                check(dtype, cols);
            }
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
            _ => blocks(dtype, rows * cols / 32, &mut next),
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
        let scales = if dtype == Dtype::Q4_1 { 2 } else { 1 };
        let mut bytes = Vec::new();
        for _ in 0..count {
            (0..scales).for_each(|_| bytes.extend(f16::from_f32(next()).to_le_bytes()));
            (2 * scales..dtype.block_bytes()).for_each(|_| bytes.push((next() * 127.0) as i8 as u8));
        }
        bytes
    }
}
