use std::num::NonZero;
use std::sync::Arc;

use lapidary::arrow::bench::small_batch;
use lapidary::arrow::{
    Batch, Block, Border, FrameError, OuterSequence, Ridge, Status, System, Vector, build_and_solve,
    fixtures, sweep,
};

use super::*;

#[test]
fn an_outer_sequence_builds_one_frame() {
    let system = Arc::new(fixtures::well_conditioned(fixtures::SMALL).unwrap());
    let rhs: Vec<Vector> = (0..20).map(|k| fixtures::random_vector(&system, k)).collect();
    let mut outer = OuterSequence::begin(&system, &params(Ridge::None)).unwrap();
    let steps: Vec<Vector> = rhs.iter().map(|rhs| outer.next(rhs).unwrap().step).collect();
    assert_eq!((outer.telemetry().frames, outer.telemetry().solves), (1, 20));
    for (a, b) in outer.all(&rhs).unwrap().steps.iter().zip(&steps) {
        assert!(difference(a, b) < 1e-13);
    }
    assert_eq!((outer.telemetry().frames, outer.telemetry().solves), (1, 40));
}

#[test]
fn a_sweep_has_the_bits_of_one_after_another_and_keeps_errors_apart() {
    let mut fits: Vec<(Arc<System>, Vector)> = Vec::new();
    for (_, shape) in fixtures::colour_matrix() {
        let shape = fixtures::Shape { rows: 12, border: 90, ..shape };
        let system = Arc::new(fixtures::well_conditioned(shape).unwrap());
        let rhs = fixtures::random_vector(&system, shape.seed);
        fits.push((system, rhs));
    }
    let bad = Arc::new(fixtures::indefinite().unwrap());
    let rhs = fixtures::random_vector(&bad, 0);
    fits.insert(5, (bad, rhs));
    let run = |lanes| {
        let lanes = NonZero::new(lanes).unwrap();
        let fit = |_: &mut (), (system, rhs): &(Arc<System>, Vector)| {
            build_and_solve(system, rhs, &params(Ridge::None)).map(|solution| solution.step)
        };
        sweep(&fits, lanes, |_| (), fit)
    };
    let single = run(1);
    let swept = run(4);
    assert_eq!(swept.lanes, 4);
    assert_eq!(single.results, swept.results);
    assert!(swept.fits_per_second() > 0.0);
    for (k, result) in swept.results.iter().enumerate() {
        match result {
            Ok(_) => assert_ne!(k, 5),
            Err(FrameError::NotPositiveDefinite { block: Block::Row(3), index: 1, .. }) => assert_eq!(k, 5),
            Err(error) => panic!("fit {k}: {error}"),
        }
    }
}

/// Ragged systems of d and p, 1 to 12 row blocks each.
fn ragged_batch(systems: usize, dim: usize, border: usize) -> Batch {
    let mut offsets = vec![0];
    for k in 0..systems {
        offsets.push(offsets[k] + 1 + (k * 5) % 12);
    }
    let rows = offsets[systems];
    let one = small_batch(1, rows, dim, border);
    let many = small_batch(systems, 1, dim, border);
    Batch { offsets, border_hessian: many.border_hessian, border_rhs: many.border_rhs, ..one }
}

#[test]
fn a_batch_equals_its_systems_one_by_one() {
    for (dim, border) in [(1, 1), (1, 32), (2, 8), (3, 4), (3, 13), (2, 31)] {
        let batch = ragged_batch(70, dim, border);
        let solution = batch.solve().unwrap();
        for k in 0..batch.systems() {
            assert_eq!(solution.status[k], Status::Solved);
            let (system, rhs) = batch.system(k).unwrap();
            let system = Arc::new(system);
            let mut frame = build(&system, Ridge::None);
            let step = solution.step(&batch, k);
            assert!(difference(&step, &frame.solve(&rhs).unwrap().step) < 1e-13, "{dim} {border} {k}");
            assert!(system.residual(Ridge::None, system.norm2(Ridge::None), &step, &rhs) <= RESIDUAL);
            let log_det = frame.log_det();
            assert!((solution.log_det[k] - log_det).abs() <= 1e-12 * log_det.abs().max(1.0));
        }
    }
}

#[test]
fn a_failing_system_never_spoils_its_neighbours() {
    let good = ragged_batch(40, 2, 8);
    let expected = good.solve().unwrap();
    let mut bad = good.clone();
    let block = |k: usize| good.offsets[k] * 4;
    bad.row_hessian[block(3)] = -1.0;
    bad.row_hessian[block(9)] = f64::NAN;
    bad.row_hessian[block(17) + 1] += 0.5;
    bad.border_hessian[20 * 64 + 9] = -2.0;
    bad.border_rhs[30 * 8] = f64::INFINITY;
    let solution = bad.solve().unwrap();
    for k in 0..40 {
        let status = solution.status[k];
        match k {
            3 => assert_eq!(
                status,
                Status::NotPositiveDefinite { block: Block::Row(0), index: 0, pivot: -1.0 }
            ),
            9 | 30 => assert_eq!(status, Status::NonFinite),
            17 => assert_eq!(status, Status::Asymmetric { block: Block::Row(0) }),
            20 => assert!(
                matches!(status, Status::NotPositiveDefinite { block: Block::Border, index: 1, pivot } if pivot < 0.0)
            ),
            _ => {
                assert_eq!(status, Status::Solved);
                assert_eq!(solution.step(&bad, k), expected.step(&good, k));
                assert_eq!(solution.log_det[k], expected.log_det[k]);
                continue;
            }
        }
        assert!(solution.step(&bad, k).values().all(|v| v == 0.0));
    }
}

#[test]
fn factored_crosses_equal_dense_ones() {
    let system = Arc::new(factored(Border::Dense(fixtures::tridiagonal(36))));
    let plain = Arc::new(dense(&system));
    let rhs = fixtures::random_vector(&system, 8);
    let step = build(&system, Ridge::None).solve(&rhs).unwrap().step;
    assert!(difference(&step, &build(&plain, Ridge::None).solve(&rhs).unwrap().step) < 1e-13);
}
