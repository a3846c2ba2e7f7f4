use std::num::NonZero;
use std::sync::{Arc, Mutex};

use lapidary::arrow::bench::small_batch;
use lapidary::arrow::cuda::{Lane, Layout, SmallBatch};
use lapidary::arrow::fixtures::{self, Shape};
use lapidary::arrow::{Frame, FrameError, Ridge, Status, System, sweep};

use super::*;

#[test]
fn bad_numbers_in_a_batch_are_told_as_on_the_host() {
    let _card = shared();
    let Some(cuda) = common::cuda() else { return };
    let (rows, d, p) = (20, 2, 4);
    let mut batch = small_batch(8, rows, d, p);
    batch.row_rhs[rows * d + 3] = f64::NAN;
    batch.row_cross[2 * rows * d * p + 5] = f64::INFINITY;
    batch.border_hessian[3 * p * p + 1] += 0.5;
    batch.row_hessian[(4 * rows + 7) * d * d + 1] += 0.5;
    batch.border_rhs[5 * p] = f64::NAN;
    // Finite numbers whose step is not.
    batch.border_rhs[6 * p] = f64::MAX;
    batch.border_hessian[6 * p * p] = 1e-3;
    let device = SmallBatch::new(&cuda, &batch).unwrap();
    assert!(matches!(device.solve(Ridge::Relative(-1.0)), Err(FrameError::Ridge { .. })));
    device.solve(Ridge::None).unwrap();
    let (seen, host) = (device.steps().unwrap(), batch.solve().unwrap());
    assert_eq!(seen.status, host.status);
    assert_eq!(host.status[6], Status::NonFinite);
    for k in 0..8 {
        let solved = seen.status[k] == Status::Solved;
        assert_eq!(solved, k == 0 || k == 7, "system {k}");
        assert_eq!(seen.step(&batch, k).values().all(|v| v == 0.0), !solved, "system {k}");
    }
}

#[test]
fn lanes_count_for_themselves() {
    let _card = shared();
    let Some(params) = card() else { return };
    let systems: Vec<Arc<System>> = (0..8)
        .map(|k| Arc::new(fixtures::well_conditioned(Shape { seed: k, ..shape(60, 2, 400) }).unwrap()))
        .collect();
    let run = |lanes: usize| {
        let fit = |_: &mut (), system: &Arc<System>| {
            let mut frame = Frame::build(system, &params)?;
            frame.solve(&fixtures::random_vector(system, 3)).map(|solution| solution.telemetry)
        };
        sweep(&systems, NonZero::new(lanes).unwrap(), |_| (), fit).results
    };
    let bytes = 8 * (60 * 2 + 400) as u64;
    for seen in run(1).into_iter().chain(run(4)) {
        let seen = seen.unwrap();
        assert_eq!(
            (seen.counts.bytes_up, seen.counts.bytes_down, seen.counts.factorisations),
            (bytes, bytes, 0)
        );
    }
}

#[test]
fn batches_agree_with_the_host_and_failures_stay_apart() {
    let _card = shared();
    let Some(cuda) = common::cuda() else { return };
    for (systems, rows, dim, p) in
        [(50, 200, 2, 8), (5, 3, 1, 1), (40, 70, 3, 32), (40, 129, 2, 5), (7, 1, 1, 31)]
    {
        let mut batch = small_batch(systems, rows, dim, p);
        batch.border_hessian[3 * p * p] = -1.0;
        batch.row_hessian[2 * rows * dim * dim] = -1.0;
        let device = SmallBatch::new(&cuda, &batch).unwrap();
        device.solve(Ridge::None).unwrap();
        let (seen, host) = (device.steps().unwrap(), batch.solve().unwrap());
        for k in 0..systems {
            match (seen.status[k], host.status[k]) {
                (Status::Solved, Status::Solved) => {
                    let (system, rhs) = batch.system(k).unwrap();
                    let step = seen.step(&batch, k);
                    let residual = system.residual(Ridge::None, system.norm2(Ridge::None), &step, &rhs);
                    assert!(residual <= RESIDUAL, "system {k}: {residual:e}");
                    assert!((seen.log_det[k] / host.log_det[k] - 1.0).abs() < 1e-12);
                }
                (
                    Status::NotPositiveDefinite { block, index, .. },
                    Status::NotPositiveDefinite { block: expected, index: at, .. },
                ) => {
                    assert_eq!((block, index), (expected, at));
                    assert!(seen.step(&batch, k).values().all(|v| v == 0.0));
                }
                (seen, host) => panic!("system {k}: {seen:?} and {host:?}"),
            }
        }
        let solved = seen.status.iter().filter(|s| **s == Status::Solved).count();
        assert_eq!(solved, systems - 2);
    }
}

#[test]
fn a_sweep_has_the_same_bits_for_any_number_of_lanes() {
    let _card = shared();
    let Some(cuda) = common::cuda() else { return };
    let mut systems: Vec<System> = (0..12)
        .map(|k| fixtures::well_conditioned(Shape { seed: k, ..shape(60, 1 + k as usize % 2, 500) }).unwrap())
        .collect();
    systems[5] = fixtures::indefinite().unwrap();
    let run = |lanes: usize| {
        let pool: Vec<Mutex<Lane>> = (0..lanes).map(|_| Mutex::new(Lane::new(&cuda))).collect();
        let fit = |lane: &mut usize, system: &System| {
            let mut lane = pool[*lane].lock().unwrap();
            let frame = lane.frame(&Layout::new(system.offsets().to_vec(), system.border()))?;
            frame.factor_system(system, Ridge::None)?;
            frame.solve(&fixtures::random_vector(system, 3))
        };
        sweep(&systems, NonZero::new(lanes).unwrap(), |lane| lane, fit).results
    };
    let alone = run(1);
    assert!(matches!(alone[5], Err(FrameError::NotPositiveDefinite { .. })));
    assert_eq!(alone.iter().filter(|result| result.is_ok()).count(), 11);
    assert_eq!(run(4), alone);
}
