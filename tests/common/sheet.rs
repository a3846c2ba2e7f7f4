//! An arena of NaN that hands out matrices of random numbers, for tests of its ops.
#![allow(dead_code)]

use lapidary::device::Device;
use lapidary::device::arena::{Arena, Layout, View};
use lapidary::ops::splitmix::SplitMix64;

const LEN: usize = 1 << 21;

pub struct Sheet {
    pub arena: Arena,
    layout: Layout,
    random: SplitMix64,
}

impl Sheet {
    pub fn new(device: &Device) -> Self {
        let mut arena = Arena::new(device, LEN).unwrap();
        arena.write(0, &vec![f32::NAN; LEN]);
        println!("{}", device.name());
        Self { arena, layout: Layout::default(), random: SplitMix64::new(7) }
    }

    pub fn blank(&mut self, rows: usize, cols: usize) -> View {
        self.layout.matrix(rows, cols)
    }

    /// Numbers in [-1, 1) at rows that are three numbers apart.
    pub fn spaced(&mut self, rows: usize, cols: usize) -> (View, Vec<f32>) {
        let whole = self.layout.matrix(rows, cols + 3);
        let view = whole.part((0, 0), (rows, cols));
        let numbers = self.numbers(rows * cols);
        for (i, row) in numbers.chunks(cols).enumerate() {
            self.arena.write(view.at + i * view.stride, row);
        }
        (view, numbers)
    }

    pub fn random(&mut self, rows: usize, cols: usize) -> (View, Vec<f32>) {
        let numbers = self.numbers(rows * cols);
        let view = self.given(rows, cols, &numbers);
        (view, numbers)
    }

    pub fn given(&mut self, rows: usize, cols: usize, numbers: &[f32]) -> View {
        let view = self.layout.matrix(rows, cols);
        self.arena.write(view.at, numbers);
        view
    }

    pub fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| (2.0 * self.random.uniform() - 1.0) as f32).collect()
    }

    pub fn read(&mut self, view: View) -> Vec<f32> {
        let numbers = self.arena.read(view.at, view.span()).unwrap();
        numbers.chunks(view.stride).flat_map(|row| row[..view.cols].to_vec()).collect()
    }
}

pub fn assert_close(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (f64::from(*found) - expected).abs() <= tolerance * expected.abs().max(1.0),
            "{what}, number {k}: {found}, expected {expected}"
        );
    }
}
