//! The arrow solver on an NVIDIA card: the same bodies on host and card, the host's answers as the measure.
#![cfg(feature = "cuda")]

mod batches;
#[path = "../common/mod.rs"]
mod common;
mod frames;
mod newton;
mod structured;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use lapidary::arrow::fixtures::{self, Shape};
use lapidary::arrow::{Backend, Border, Cross, Params, Rows, System};
use lapidary::ops::splitmix::SplitMix64;

/// Tests that read how much of the card's memory is free have it for themselves.
static CARD: RwLock<()> = RwLock::new(());

fn shared() -> RwLockReadGuard<'static, ()> {
    CARD.read().unwrap_or_else(PoisonError::into_inner)
}

fn alone() -> RwLockWriteGuard<'static, ()> {
    CARD.write().unwrap_or_else(PoisonError::into_inner)
}

/// Every residual must be at most this.
const RESIDUAL: f64 = 1e-14;

fn shape(rows: usize, dim: usize, border: usize) -> Shape {
    Shape { rows, dim, border, seed: 23 }
}

fn card() -> Option<Params> {
    let backend = Backend::Cuda(common::cuda()?.into());
    Some(Params { backend, ..Params::default() })
}

fn numbers(count: usize, scale: f64, random: &mut SplitMix64) -> Vec<f64> {
    (0..count).map(|_| scale * random.signed()).collect()
}

fn ragged() -> System {
    let mut random = SplitMix64::new(4);
    let (mut offsets, mut row_hessian) = (vec![0], Vec::new());
    for dim in [1, 3, 2, 5, 1, 4, 16] {
        offsets.push(offsets[offsets.len() - 1] + dim);
        row_hessian.extend(fixtures::row_block(dim, &mut random));
    }
    let cross = Cross::Dense(numbers(offsets[7] * 7, 0.1, &mut random));
    System::new(Rows::Ragged(offsets), 7, row_hessian, cross, Border::Dense(fixtures::tridiagonal(7)))
        .unwrap()
}

fn factored(border: Border) -> System {
    let mut random = SplitMix64::new(5);
    let (n, d, basis, r) = (40, 2, 4, 9);
    let row_hessian = (0..n).flat_map(|_| fixtures::row_block(d, &mut random)).collect();
    let values = numbers(n * basis, 1.0, &mut random);
    let cross = Cross::Factored { basis, values, jacobian: numbers(n * d * r, 0.1, &mut random) };
    System::new(Rows::Uniform { count: n, dim: d }, basis * r, row_hessian, cross, border).unwrap()
}

fn cases() -> Vec<(String, System)> {
    let mut cases = vec![("ragged".to_owned(), ragged())];
    cases.push(("factored, diagonal".to_owned(), factored(Border::Diagonal(vec![9.0; 36]))));
    let gram = fixtures::tridiagonal(4).iter().map(|g| 3.0 * g).collect();
    cases.push(("factored, Kronecker".to_owned(), factored(Border::Kronecker { basis: 4, gram })));
    cases.extend(structured::cases());
    let sizes = [(1, 1, 1), (8, 2, 4), (3, 16, 33), (20, 2, 300), (300, 3, 64), (700, 1, 65), (50, 5, 1111)];
    for (rows, dim, border) in sizes {
        let system = fixtures::well_conditioned(shape(rows, dim, border)).unwrap();
        cases.push((format!("{rows} x {dim} + {border}"), system));
    }
    for power in [2, 4, 6, 8, 10] {
        let system = fixtures::ill_conditioned(shape(40, 2, 150), 10_f64.powi(power)).unwrap();
        cases.push((format!("condition 1e{power}"), system));
    }
    cases
}
