use faer::{Mat, MatMut, MatRef};
use rayon::prelude::*;

use super::real::Real;
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

/// A flip is taken when it lowers the error by more than this share of the flipped entry's own energy (f64).
pub const FLIP_TOLERANCE: f64 = 1e-12;

/// The same in f32. At 1e-6 flips were measured to stop too early, at a cost of about 2 % in perplexity.
pub const FLIP_TOLERANCE_F32: f32 = 1e-7;

/// Passes over a row at most.
const MAX_PASSES: usize = 4;

pub(super) static ROW_FLIPS: Program =
    program!("row_flips", "row_flips", 256, [("MAX_PASSES", MAX_PASSES as u32)]);

/// Greedy sign flips, row by row: lowers `h² sᵀQs − 2h c·s` over s ∈ {±1}^r.
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | S | `signs` | m x r, ±1, updated in place |
/// | h | `scale` | m |
/// | Q | `q` | r x r, symmetric positive semidefinite |
/// | C | `c` | m x r, row i is c_i |
///
/// Flipping k changes the error by `−4h² s_k((Qs)_k − Q_kk s_k) + 4h s_k c_k`; entries are visited in the order of k,
/// at most four times, and a flip is taken when the change is below `−tol·h² Q_kk`. Rows are independent. Returns
/// the number of flips. Cost: 2mr² for the first Q·Sᵀ and 2r for a flip.
pub fn row_flips(mut signs: MatMut<'_, f64>, scale: &[f64], q: MatRef<'_, f64>, c: MatRef<'_, f64>) -> usize {
    let r = signs.ncols();
    let diagonal: Vec<f64> = (0..r).map(|k| q[(k, k)]).collect();
    // Columns are rows of S, so that one row is contiguous.
    let mut s_columns: Mat<f64> = signs.as_ref().transpose().to_owned();
    let mut qs_columns = q * &s_columns;
    let c_columns: Mat<f64> = c.transpose().to_owned();
    let mut flips = 0;
    for (i, h) in scale.iter().enumerate() {
        let s = column_mut(&mut s_columns, i);
        let qs = column_mut(&mut qs_columns, i);
        let row = Row { s, qs, c: column(&c_columns, i), h: *h };
        flips += flip_row(row, &diagonal, |k| column_of(q, k), FLIP_TOLERANCE);
    }
    signs.copy_from(s_columns.transpose());
    flips
}

/// One problem of a batch, in an arena. Where two changes are equal to rounding the devices may part: flips are jumps.
#[derive(Clone, Copy, Debug)]
pub struct RowFlips {
    /// S, m x r, updated
    pub signs: View,
    /// h, m
    pub scale: usize,
    /// Q, r x r
    pub q: View,
    /// S·Q, m x r; overwritten
    pub sq: View,
    /// C, m x r
    pub c: View,
    /// m numbers of flips; NaN where a device cut the loops short and the row does not count
    pub flips: usize,
}

/// [`row_flips`] for many problems at once, in f32.
pub fn row_flips_batch(arena: &mut Arena, items: &[RowFlips]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(13);
    for RowFlips { signs, scale, q, sq, c, flips } in items {
        let (s, t) = (signs, float_word(FLIP_TOLERANCE_F32));
        let words = [
            s.at, s.stride, *scale, q.at, q.stride, sq.at, sq.stride, c.at, c.stride, s.rows, s.cols, t,
            *flips,
        ];
        table.push(s.rows, &words);
    }
    arena.queue(&ROW_FLIPS, table);
}

fn on_host(memory: Memory, item: &RowFlips) {
    // SAFETY: Q and C are read; rows of S and S·Q and the counts are written by one task each.
    let q = |k: usize| unsafe { memory.row(item.q, k) };
    let diagonal: Vec<f32> = (0..item.q.rows).map(|k| q(k)[k]).collect();
    (0..item.signs.rows).into_par_iter().for_each(|i| unsafe {
        let row = Row {
            s: memory.row_mut(item.signs, i),
            qs: memory.row_mut(item.sq, i),
            c: memory.row(item.c, i),
            h: *memory.pointer(View::vector(item.scale + i, 1)),
        };
        let flips = flip_row(row, &diagonal, q, FLIP_TOLERANCE_F32);
        *memory.pointer(View::vector(item.flips + i, 1)) = flips as f32;
    });
}

/// Flips of one row; row `k` of Q is read through `q`. The sign S and the products Q·s are updated.
fn flip_row<'a, T: Real + 'a>(
    row: Row<'_, T>,
    diagonal: &[T],
    q: impl Fn(usize) -> &'a [T],
    tolerance: T,
) -> usize {
    let Row { s, qs, c, h } = row;
    let (four_h, h2) = (T::of(4.0) * h, h * h);
    let mut flips = 0;
    for _ in 0..MAX_PASSES {
        let before = flips;
        for k in 0..s.len() {
            let change = four_h * s[k] * (c[k] - h * (qs[k] - diagonal[k] * s[k]));
            if change < -tolerance * h2 * diagonal[k] {
                s[k] = -s[k];
                let step = s[k] + s[k];
                for (qs, q) in qs.iter_mut().zip(q(k)) {
                    *qs += step * *q;
                }
                flips += 1;
            }
        }
        if flips == before {
            break;
        }
    }
    flips
}

struct Row<'a, T> {
    s: &'a mut [T],
    qs: &'a mut [T],
    c: &'a [T],
    h: T,
}

pub(crate) fn column(a: &Mat<f64>, j: usize) -> &[f64] {
    a.col(j).try_as_col_major().expect("columns of an owned matrix are contiguous").as_slice()
}

pub(crate) fn column_of<T>(a: MatRef<'_, T>, j: usize) -> &[T] {
    a.col(j).try_as_col_major().expect("columns of an owned matrix are contiguous").as_slice()
}

pub(crate) fn column_mut(a: &mut Mat<f64>, j: usize) -> &mut [f64] {
    a.col_mut(j).try_as_col_major_mut().expect("columns of an owned matrix are contiguous").as_slice_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objective(s: &[f64], h: f64, q: &Mat<f64>, c: &[f64]) -> f64 {
        let r = s.len();
        let quadratic: f64 =
            (0..r).flat_map(|i| (0..r).map(move |j| (i, j))).map(|(i, j)| s[i] * q[(i, j)] * s[j]).sum();
        h * h * quadratic - 2.0 * h * (0..r).map(|k| c[k] * s[k]).sum::<f64>()
    }

    #[test]
    fn flips_lower_the_objective_and_end_where_no_flip_helps() {
        let (m, r) = (6, 8);
        let a = Mat::from_fn(r, r, |i, j| ((i * 5 + j * 3) % 7) as f64 - 3.0);
        let q = &a * a.transpose();
        let c = Mat::from_fn(m, r, |i, j| ((i * 11 + j * 7) % 13) as f64 - 6.0);
        let scale: Vec<f64> = (0..m).map(|i| 0.5 - 0.2 * i as f64).collect();
        let start = Mat::from_fn(m, r, |i, j| if (i + j * j) % 3 == 0 { -1.0 } else { 1.0 });
        let mut signs = start.clone();
        assert!(row_flips(signs.as_mut(), &scale, q.as_ref(), c.as_ref()) > 0);
        let row = |a: &Mat<f64>, i: usize| -> Vec<f64> { (0..r).map(|k| a[(i, k)]).collect() };
        for (i, h) in scale.iter().enumerate() {
            let (before, after, c) = (row(&start, i), row(&signs, i), row(&c, i));
            assert!(objective(&after, *h, &q, &c) <= objective(&before, *h, &q, &c) + 1e-9);
        }
        assert_eq!(row_flips(signs.as_mut(), &scale, q.as_ref(), c.as_ref()), 0);
    }
}
