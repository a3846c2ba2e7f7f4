//! [`rank_one`](super::rank_one) for many matrices at once, in f32, in an arena.

use rayon::prelude::*;

use super::rank_one::MAX_STEPS;
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

/// Change of λ at which the power iteration stops: a few roundings of f32 on a vector of 2-norm 1.
const TOLERANCE_F32: f32 = 1e-6;

pub(super) static RANK_ONE: Program =
    program!("rank_one", "rank_one", 256, [("MAX_STEPS", MAX_STEPS as u32), ("CUDA_THREADS", 1024)]);

/// One fit of a batch: `|A| ≈ x λᵀ`.
#[derive(Clone, Copy, Debug)]
pub struct RankOne {
    /// A, m x r
    pub a: View,
    /// x, m
    pub x: usize,
    /// λ, r
    pub lambda: usize,
    /// Scratch, r
    pub next: usize,
}

/// Non-negative rank-one fits of all magnitudes; see [`rank_one_magnitudes`](super::rank_one::rank_one_magnitudes).
pub fn rank_one_batch(arena: &mut Arena, items: &[RankOne]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(8);
    for RankOne { a, x, lambda, next } in items {
        table.push(1, &[a.at, a.stride, a.rows, a.cols, *x, *lambda, *next, float_word(TOLERANCE_F32)]);
    }
    arena.queue(&RANK_ONE, table);
}

fn on_host(memory: Memory, item: &RankOne) {
    let (m, r) = (item.a.rows, item.a.cols);
    // SAFETY: A is read; everything else belongs to this item alone.
    let (x, lambda, next) = unsafe {
        (
            memory.row_mut(View::vector(item.x, m), 0),
            memory.row_mut(View::vector(item.lambda, r), 0),
            memory.row_mut(View::vector(item.next, r), 0),
        )
    };
    // SAFETY: as above.
    let row = |i: usize| unsafe { memory.row(item.a, i) };
    let product = |i: usize, lambda: &[f32]| row(i).iter().zip(lambda).map(|(a, l)| a.abs() * l).sum::<f32>();
    lambda.fill(1.0 / (r as f32).sqrt());
    for _ in 0..MAX_STEPS {
        next.fill(0.0);
        for i in 0..m {
            let x = product(i, lambda);
            next.iter_mut().zip(row(i)).for_each(|(next, a)| *next += a.abs() * x);
        }
        let norm = next.iter().map(|v| v * v).sum::<f32>().sqrt();
        if norm == 0.0 {
            break;
        }
        let mut change = 0.0;
        for (next, lambda) in next.iter().zip(lambda.iter_mut()) {
            let value = next / norm;
            change += (value - *lambda) * (value - *lambda);
            *lambda = value;
        }
        if change.sqrt() < TOLERANCE_F32 {
            break;
        }
    }
    x.iter_mut().enumerate().for_each(|(i, x)| *x = product(i, lambda));
}
