//! The arrow solver, by tables of cases.

mod bad_input;
mod command;
mod frames;
mod many;
mod trajectories;

use std::sync::Arc;

use lapidary::arrow::fixtures::{self, Shape};
use lapidary::arrow::{Border, Cross, Frame, Params, Ridge, Rows, System, Vector};
use lapidary::ops::splitmix::SplitMix64;

/// Every residual must be at most this.
pub const RESIDUAL: f64 = 1e-14;

pub fn params(ridge: Ridge) -> Params {
    Params { ridge, ..Params::default() }
}

pub fn build(system: &Arc<System>, ridge: Ridge) -> Frame {
    Frame::build(system, &params(ridge)).unwrap()
}

pub fn numbers(count: usize, scale: f64, random: &mut SplitMix64) -> Vec<f64> {
    (0..count).map(|_| scale * random.signed()).collect()
}

/// Row blocks of 1 to 5 unknowns, border 7.
pub fn ragged() -> System {
    let mut random = SplitMix64::new(0x4A6);
    let (mut offsets, mut row_hessian) = (vec![0], Vec::new());
    for dim in [1, 3, 2, 5, 1, 4, 16] {
        offsets.push(offsets[offsets.len() - 1] + dim);
        row_hessian.extend(fixtures::row_block(dim, &mut random));
    }
    let (m, p) = (offsets[offsets.len() - 1], 7);
    let cross = Cross::Dense(numbers(m * p, 0.1, &mut random));
    System::new(Rows::Ragged(offsets), p, row_hessian, cross, Border::Dense(fixtures::tridiagonal(p)))
        .unwrap()
}

/// A factored cross block with M = 4, r = 9, and the border that is asked for.
pub fn factored(border: Border) -> System {
    let mut random = SplitMix64::new(0xFAC);
    let (n, d, basis, r) = (6, 2, 4, 9);
    let row_hessian = (0..n).flat_map(|_| fixtures::row_block(d, &mut random)).collect();
    let cross = Cross::Factored {
        basis,
        values: numbers(n * basis, 1.0, &mut random),
        jacobian: numbers(n * d * r, 0.3, &mut random),
    };
    System::new(Rows::Uniform { count: n, dim: d }, basis * r, row_hessian, cross, border).unwrap()
}

/// G with M = 4.
pub fn gram() -> Border {
    let mut gram = fixtures::tridiagonal(4);
    gram[1] = 0.7;
    gram[4] = 0.7;
    Border::Kronecker { basis: 4, gram }
}

/// The same system with nothing factored or structured.
pub fn dense(system: &System) -> System {
    let p = system.border();
    let cross = Cross::Dense(system.cross().to_dense(system.offsets(), p));
    let border = Border::Dense(system.border_hessian().to_dense(p));
    let rows = Rows::Ragged(system.offsets().to_vec());
    System::new(rows, p, system.row_hessian().to_vec(), cross, border).unwrap()
}

/// Systems that every test goes over.
pub fn cases() -> Vec<(&'static str, Arc<System>)> {
    let shape = |rows, dim, border| Shape { rows, dim, border, seed: 11 };
    let well = |shape| fixtures::well_conditioned(shape).unwrap();
    [
        ("small", well(fixtures::SMALL)),
        ("one by one", well(shape(1, 1, 1))),
        ("wide border", well(shape(20, 2, 300))),
        ("many rows", well(shape(300, 3, 40))),
        ("blocks of 16", well(shape(5, 16, 33))),
        ("ragged", ragged()),
        ("condition 1e10", fixtures::ill_conditioned(shape(40, 2, 150), 1e10).unwrap()),
        ("factored, dense border", factored(Border::Dense(fixtures::tridiagonal(36)))),
        ("factored, diagonal border", factored(Border::Diagonal(vec![4.0; 36]))),
        ("factored, Kronecker border", factored(gram())),
    ]
    .map(|(name, system)| (name, Arc::new(system)))
    .into()
}

pub fn difference(a: &Vector, b: &Vector) -> f64 {
    let mut rest = a.clone();
    rest.add_scaled(-1.0, b);
    rest.norm() / b.norm().max(f64::MIN_POSITIVE)
}
