use pulp::{Simd, WithSimd};
use rayon::prelude::*;

/// Bytes of a row whose tables are built together: 32 tables of 256 sums are 32 KiB, which stay in the first cache.
const TABLES: usize = 32;

/// Bytes of signs one task reads: long enough (about 10 µs) that handing it out costs nothing.
const BYTES_PER_TASK: usize = 1 << 14;

/// One activation against rows of signs: `y_i = Σ_j s_ij x_j`, s = +1 where the bit is 1 and −1 where it is 0.
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | s | `bits`: row i is n/8 bytes, bit j of the row is `byte[j/8] >> (j%8) & 1` | m x n |
/// | x | `x` | n, a multiple of 8 |
/// | y | `y` | m |
///
/// Every eight inputs get a table of their 256 signed sums; a row then costs one look-up and one addition a byte,
/// an eighth of a dense product. Each row is summed in one fixed order.
///
/// # Panics
/// When `bits` is not m rows of n/8 bytes.
pub fn sign_matvec(bits: &[u8], x: &[f32], y: &mut [f32]) {
    let row_bytes = x.len() / 8;
    assert_eq!(bits.len(), row_bytes * y.len(), "{} rows of {row_bytes} bytes", y.len());
    let rows_per_task = (BYTES_PER_TASK / row_bytes).max(1).next_multiple_of(ROWS);
    let bits = bits.par_chunks(rows_per_task * row_bytes);
    y.par_chunks_mut(rows_per_task).zip(bits).for_each(|(y, bits)| {
        pulp::Arch::new().dispatch(SignRows { bits, x, y });
    });
}

/// Rows summed side by side, so that their additions overlap.
const ROWS: usize = 4;

/// Rows of one task; a struct and not a closure, so that the loops are surely compiled for the CPU's vectors.
struct SignRows<'a> {
    bits: &'a [u8],
    x: &'a [f32],
    y: &'a mut [f32],
}

impl WithSimd for SignRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { bits, x, y } = self;
        let row_bytes = x.len() / 8;
        let mut tables = [[0.0f32; 256]; TABLES];
        y.fill(0.0);
        for (chunk, x) in x.as_chunks::<8>().0.chunks(TABLES).enumerate() {
            for (table, x) in tables.iter_mut().zip(x) {
                signed_sums(x, table);
            }
            let tables = &tables[..x.len()];
            let at = chunk * TABLES;
            let mut rows = bits.chunks_exact(row_bytes).map(|row| &row[at..at + x.len()]);
            let (groups, rest) = y.as_chunks_mut::<ROWS>();
            for y in groups {
                let [Some(a), Some(b), Some(c), Some(d)] = std::array::from_fn(|_| rows.next()) else {
                    return;
                };
                for ((((table, a), b), c), d) in tables.iter().zip(a).zip(b).zip(c).zip(d) {
                    y[0] += table[usize::from(*a)];
                    y[1] += table[usize::from(*b)];
                    y[2] += table[usize::from(*c)];
                    y[3] += table[usize::from(*d)];
                }
            }
            for (y, row) in rest.iter_mut().zip(rows) {
                *y += tables.iter().zip(row).map(|(table, byte)| table[usize::from(*byte)]).sum::<f32>();
            }
        }
    }
}

/// `table[b] = Σ_k ±x_k` for all bytes b: the sums of four inputs twice, then all pairs.
#[inline(always)]
fn signed_sums(x: &[f32; 8], table: &mut [f32; 256]) {
    let (mut low, mut high) = ([0.0; 16], [0.0; 16]);
    for b in 0..16 {
        let sum = |x: &[f32]| {
            let sign = |k: usize| if b >> k & 1 == 1 { x[k] } else { -x[k] };
            (sign(0) + sign(1)) + (sign(2) + sign(3))
        };
        low[b] = sum(&x[..4]);
        high[b] = sum(&x[4..]);
    }
    for (table, high) in table.as_chunks_mut::<16>().0.iter_mut().zip(high) {
        for (t, low) in table.iter_mut().zip(low) {
            *t = low + high;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_its_signed_sum() {
        // Inputs are small integers: sums are exact in any order.
        for (m, n) in [(1, 8), (3, 16), (8, 264), (37, 576), (1031, 256)] {
            let x: Vec<f32> = (0..n).map(|k| ((k * 5 + 2) % 11) as f32 - 5.0).collect();
            let bits: Vec<u8> = (0..m * n / 8).map(|k| ((k * 2_654_435_761) >> 7) as u8).collect();
            let mut y = vec![f32::NAN; m];
            sign_matvec(&bits, &x, &mut y);
            for (i, (y, row)) in y.iter().zip(bits.chunks_exact(n / 8)).enumerate() {
                let sign = |j: usize| if row[j / 8] >> (j % 8) & 1 == 1 { 1.0 } else { -1.0 };
                let exact: f32 = x.iter().enumerate().map(|(j, x)| sign(j) * x).sum();
                assert_eq!(*y, exact, "{m} x {n}, row {i}");
            }
        }
    }
}
