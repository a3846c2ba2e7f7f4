//! [`polar`](super::polar) for many matrices at once, in f32, in an arena.

use rayon::prelude::*;

use super::gemm::{Gemm, gemm};
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

/// ‖QᵀQ − I‖_F at which a factor counts as orthogonal, over the root of its order: some hundred roundings of f32.
pub const POLAR_TOLERANCE_F32: f32 = 1e-5;

/// Pairs of plain steps after the scaled ones at most. Those brought singular values of 1e-3 near 1, and a pair multiplies a
/// small one by 2.25: with these, 1e-6 of the largest gets there, below which f32 knows little of it.
const MAX_PAIRS: usize = 9;

/// The smallest singular value, over the largest, that the scaled steps are made for.
const LEAST_EXPECTED: f64 = 1e-3;

pub(super) static POLAR_SCALE: Program = program!("polar", "polar_scale", 256, [("CUDA_THREADS", 1024)]);
pub(super) static POLAR_CHECK: Program = program!("polar", "polar_check", 256, [("CUDA_THREADS", 1024)]);

/// One polar factor of a batch; every matrix is r x r, its rows one after another.
#[derive(Clone, Copy, Debug)]
pub struct Polar {
    pub a: View,
    /// The orthogonal factor of A
    pub x: View,
    /// Scratch
    pub y: View,
    /// Scratch
    pub m: View,
    /// 1 once X is orthogonal
    pub done: usize,
    /// Becomes 1 where A is not finite, zero, or singular to working precision; X means nothing then
    pub status: usize,
}

/// Orthogonal polar factors by Newton-Schulz, `X ← X·M, M = (3I − XᵀX)/2`, from `X = A/‖(AᵀA)²‖_∞^¼`, the first steps
/// scaled.
///
/// Every device does the same steps; a matrix that is orthogonal already, to [`POLAR_TOLERANCE_F32`]·√r, rests.
pub fn polar_batch(arena: &mut Arena, items: &[Polar]) {
    let of = |make: fn(&Polar) -> Gemm| -> Vec<Gemm> { items.iter().map(make).collect() };
    gemm(arena, &of(|i| Gemm::new(i.a, i.a, i.y).a_transposed()));
    gemm(arena, &of(|i| Gemm::new(i.y, i.y, i.m)));
    polar_scale(arena, items);
    let of_gram = |i: &Polar, x: View, (diagonal, alpha): (f32, f32)| {
        Gemm::new(x, x, i.m).a_transposed().alpha(alpha).diagonal(diagonal).skip(i.done)
    };
    let correction = |i: &Polar, x: View| of_gram(i, x, (1.5, -0.5));
    let near: Vec<_> = items.iter().map(|i| correction(i, i.x)).collect();
    let far: Vec<_> = items.iter().map(|i| correction(i, i.y)).collect();
    let there = of(|i| Gemm::new(i.x, i.m, i.y).skip(i.done));
    let back = of(|i| Gemm::new(i.y, i.m, i.x).skip(i.done));
    let scaled = scaled_steps();
    for pair in scaled.as_chunks::<2>().0 {
        gemm(arena, &items.iter().map(|i| of_gram(i, i.x, pair[0])).collect::<Vec<_>>());
        gemm(arena, &there);
        gemm(arena, &items.iter().map(|i| of_gram(i, i.y, pair[1])).collect::<Vec<_>>());
        gemm(arena, &back);
    }
    for _ in 0..MAX_PAIRS {
        gemm(arena, &near);
        polar_check(arena, items, 0);
        gemm(arena, &there);
        gemm(arena, &far);
        gemm(arena, &back);
    }
    gemm(arena, &near);
    polar_check(arena, items, 1);
}

/// Coefficients (of I and of XᵀX) of the scaled steps, an even number.
///
/// For singular values in [l, 1] the best step is `x ← √c·x(3 − c·x²)/2` with `c = 3/(1 + l + l²)`: it maps 1 and l to
/// the same value, its largest is 1, and a small x grows by up to 2.6 instead of 1.5 (Chen and Chow, A stable scaling
/// of Newton-Schulz, 2014). What is below the expected l grows as well; plain steps do the rest.
fn scaled_steps() -> Vec<(f32, f32)> {
    let mut steps = Vec::new();
    let mut l = LEAST_EXPECTED;
    while l < 0.8 || steps.len() % 2 == 1 {
        let c: f64 = 3.0 / (1.0 + l + l * l);
        steps.push(((1.5 * c.sqrt()) as f32, (-0.5 * c * c.sqrt()) as f32));
        l *= c.sqrt() * (3.0 - c * l * l) / 2.0;
    }
    steps
}

fn polar_scale(arena: &mut Arena, items: &[Polar]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| scale_on_host(memory, item));
    }
    let mut table = Table::new(6);
    for Polar { a, x, m, done, status, .. } in items {
        table.push(1, &[a.at, m.at, x.at, a.rows, *done, *status]);
    }
    arena.queue(&POLAR_SCALE, table);
}

fn polar_check(arena: &mut Arena, items: &[Polar], last: usize) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| check_on_host(memory, item, last));
    }
    let mut table = Table::new(6);
    for item in items {
        let words = [item.m.at, item.a.rows, item.done, item.status, float_word(item.tolerance()), last];
        table.push(1, &words);
    }
    arena.queue(&POLAR_CHECK, table);
}

impl Polar {
    fn tolerance(&self) -> f32 {
        POLAR_TOLERANCE_F32 * (self.a.rows as f32).sqrt()
    }
}

fn scale_on_host(memory: Memory, item: &Polar) {
    let r = item.a.rows;
    // SAFETY: A and the square are read; X and the flags are written by this item alone.
    unsafe {
        let sums = (0..r).map(|i| memory.row(item.m, i).iter().map(|v| v.abs()).sum::<f32>());
        let norm = sums.fold(0.0, |most: f32, sum| if sum > most || sum.is_nan() { sum } else { most });
        let scale = norm.sqrt().sqrt();
        let (done, status) =
            (memory.pointer(View::vector(item.done, 1)), memory.pointer(View::vector(item.status, 1)));
        if !(scale > 0.0 && scale.is_finite()) {
            *status = 1.0;
        }
        let factor = if *status == 0.0 { 1.0 / scale } else { 0.0 };
        *done = if *status == 0.0 { 0.0 } else { 1.0 };
        for i in 0..r {
            let (x, a) = (memory.row_mut(item.x, i), memory.row(item.a, i));
            x.iter_mut().zip(a).for_each(|(x, a)| *x = if factor == 0.0 { 0.0 } else { a * factor });
        }
    }
}

fn check_on_host(memory: Memory, item: &Polar, last: usize) {
    // SAFETY: M is read; the flags are written by this item alone.
    unsafe {
        let (done, status) =
            (memory.pointer(View::vector(item.done, 1)), memory.pointer(View::vector(item.status, 1)));
        let mut sum = 0.0;
        for i in 0..item.a.rows {
            for (j, m) in memory.row(item.m, i).iter().enumerate() {
                let d = m - if i == j { 1.0 } else { 0.0 };
                sum += d * d;
            }
        }
        let near = 2.0 * sum.sqrt() <= item.tolerance();
        if near || *status != 0.0 {
            *done = 1.0;
        } else if last == 1 && *done == 0.0 {
            *status = 1.0;
        }
    }
}
