//! The encoder's ops on every device that is there, one body for all, against formulas written plainly in f64: sizes that
//! are no multiple of any tile, several ragged items in a table, results and gaps between rows poisoned with NaN.

#[path = "../common/mod.rs"]
mod common;
mod device;
mod entries;
mod factor;
mod gauge;
mod products;
mod signs;

use lapidary::device::arena::{Arena, View};
use lapidary::ops::splitmix::SplitMix64;

/// Runs a body once a device, each time on an arena full of NaN.
fn on_every_device(body: impl Fn(&mut Sheet)) {
    for device in common::devices() {
        let mut arena = Arena::new(&device, LEN).unwrap();
        arena.write(0, &vec![f32::NAN; LEN]);
        println!("{}", device.name());
        body(&mut Sheet { arena, end: 1, random: SplitMix64::new(7) });
    }
}

const LEN: usize = 1 << 21;

/// An arena that hands out matrices one after another, with gaps between their rows.
struct Sheet {
    arena: Arena,
    end: usize,
    random: SplitMix64,
}

/// A matrix of the arena and the numbers it was given.
#[derive(Clone)]
struct Given {
    view: View,
    values: Vec<f64>,
}

impl Given {
    fn at(&self, i: usize, j: usize) -> f64 {
        self.values[i * self.view.cols + j]
    }

    fn transposed(&self, i: usize, j: usize) -> f64 {
        self.at(j, i)
    }
}

impl Sheet {
    /// A matrix of NaN.
    fn blank(&mut self, rows: usize, cols: usize) -> View {
        let view = View { at: self.end, rows, cols, stride: cols + 3 };
        self.end += rows * view.stride + 1;
        assert!(self.end <= LEN, "the sheet is full");
        view
    }

    /// A vector of NaN, or a matrix without gaps.
    fn room(&mut self, len: usize) -> usize {
        self.end += len + 1;
        assert!(self.end <= LEN, "the sheet is full");
        self.end - len - 1
    }

    fn matrix(&mut self, rows: usize, cols: usize, entry: impl Fn(usize, usize) -> f64) -> Given {
        let view = self.blank(rows, cols);
        self.fill(view, entry)
    }

    fn fill(&mut self, view: View, entry: impl Fn(usize, usize) -> f64) -> Given {
        let entries = (0..view.rows).flat_map(|i| (0..view.cols).map(move |j| (i, j)));
        // What the arena holds, not what it was rounded from.
        let values: Vec<f64> = entries.map(|(i, j)| f64::from(entry(i, j) as f32)).collect();
        for i in 0..view.rows {
            let row: Vec<f32> =
                values[i * view.cols..][..view.cols].iter().map(|value| *value as f32).collect();
            self.arena.write(view.at + i * view.stride, &row);
        }
        Given { view, values }
    }

    /// Numbers in [−1, 1).
    fn random(&mut self, rows: usize, cols: usize) -> Given {
        let numbers: Vec<f64> = (0..rows * cols).map(|_| self.random.signed()).collect();
        self.matrix(rows, cols, |i, j| numbers[i * cols + j])
    }

    fn signs(&mut self, rows: usize, cols: usize) -> Given {
        let numbers: Vec<f64> = (0..rows * cols).map(|_| self.random.signed().signum()).collect();
        self.matrix(rows, cols, |i, j| numbers[i * cols + j])
    }

    fn vector(&mut self, len: usize) -> Given {
        self.random(1, len)
    }

    /// What a matrix holds now; the gaps between its rows must still be NaN.
    fn read(&mut self, view: View) -> Vec<f64> {
        let numbers = self.arena.read(view.at, view.span()).unwrap();
        let rows = numbers.chunks(view.stride.max(1));
        for row in rows.clone() {
            assert!(row.iter().skip(view.cols).all(|gap| gap.is_nan()), "a gap of {view:?} was written");
        }
        rows.flat_map(|row| row.iter().take(view.cols).map(|value| f64::from(*value))).collect()
    }

    fn read_vector(&mut self, at: usize, len: usize) -> Vec<f64> {
        self.read(View::vector(at, len))
    }
}

/// Every number of `found` is within `tolerance` of what is expected at (i, j).
fn assert_close(found: &[f64], view: View, tolerance: f64, expected: impl Fn(usize, usize) -> f64) {
    assert_eq!(found.len(), view.len());
    for (at, value) in found.iter().enumerate() {
        let (i, j) = (at / view.cols, at % view.cols);
        let expected = expected(i, j);
        assert!((value - expected).abs() <= tolerance, "({i}, {j}): {value}, expected {expected}");
    }
}

/// A bound of the rounding of a sum of `terms` products of numbers below 1, in f32.
fn rounding(terms: usize) -> f64 {
    (terms + 4) as f64 * f64::from(f32::EPSILON)
}
