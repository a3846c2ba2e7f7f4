use std::sync::Arc;

use lapidary::arrow::cuda::{CudaFrame, Layout};
use lapidary::arrow::fixtures::{self, SMALL};
use lapidary::arrow::{
    Border, Budget, Frame, FrameError, Method, OuterSequence, Params, Path, Ridge, Rows, System, Vector,
    build_and_solve,
};

use super::*;

#[test]
fn every_residual_is_small_and_determinants_are_the_hosts() {
    let _card = shared();
    let Some(params) = card() else { return };
    for (name, system) in cases() {
        for ridge in [Ridge::None, Ridge::Absolute { row: 0.5, border: 0.25 }, Ridge::Relative(1e-3)] {
            let system = Arc::new(system.clone());
            let params = Params { ridge, ..params.clone() };
            let mut frame = Frame::build(&system, &params).unwrap();
            let norm = system.norm2(ridge);
            let exact = system.apply_ridged(ridge, &fixtures::random_vector(&system, 1));
            for rhs in [fixtures::random_vector(&system, 2), exact] {
                let solution = frame.solve(&rhs).unwrap();
                let residual = system.residual(ridge, norm, &solution.step, &rhs);
                assert!(residual <= RESIDUAL, "{name}, {ridge}: {residual:e}, {:?}", solution.about);
                assert_eq!(solution.about.path, Path::Resident);
                assert_eq!(frame.solve(&rhs).unwrap().step, solution.step, "{name}: not the same bits again");
            }
            let host = Frame::build(&system, &Params { ridge, ..Params::default() }).unwrap().log_det();
            let bound = 1e-12_f64.max(10.0 * frame.about().condition * f64::EPSILON);
            let apart = ((frame.log_det() - host) / host).abs();
            assert!(apart <= bound, "{name}, {ridge}: {apart:e}, allowed {bound:e}");
        }
    }
}

#[test]
fn corrections_follow_the_condition() {
    let _card = shared();
    let Some(params) = card() else { return };
    let about = |power| {
        let system = fixtures::ill_conditioned(shape(40, 2, 150), 10_f64.powi(power)).unwrap();
        Frame::build(&system.into(), &params).unwrap().about()
    };
    let plain = Frame::build(&fixtures::well_conditioned(SMALL).unwrap().into(), &params).unwrap().about();
    assert_eq!((plain.method, plain.corrections), (Method::ExplicitInverse, 0));
    assert_eq!(about(2).corrections, 1);
    assert_eq!(about(5).corrections, 2);
    assert_eq!(about(10).method, Method::TriangularSolves);
    assert!(about(10).condition > 1e9, "{}", about(10).condition);
}

#[test]
fn many_right_hand_sides_are_one_wide_solve_with_its_corrections() {
    let _card = shared();
    let Some(params) = card() else { return };
    let mut corrected = 0;
    for (name, system) in cases() {
        let system = Arc::new(system);
        let mut sequence = OuterSequence::begin(&system, &params).unwrap();
        let norm = system.norm2(Ridge::None);
        let all: Vec<Vector> =
            (0..9).map(|k| system.apply(&fixtures::random_vector(&system, 30 + k))).collect();
        sequence.all(&all).unwrap();
        let solutions = sequence.all(&all).unwrap();
        corrected += solutions.about.corrections;
        // Launches of the whole, not of each right-hand side: fewer than one a stage and right-hand side.
        let launches = solutions.telemetry.counts.launches;
        let stages = 12 + 12 * u64::from(solutions.about.corrections);
        assert!(launches <= stages, "{name}: {launches} launches for nine right-hand sides");
        for (step, rhs) in solutions.steps.iter().zip(&all) {
            let residual = system.residual(Ridge::None, norm, step, rhs);
            assert!(residual <= RESIDUAL, "{name}: {residual:e}");
        }
        assert_eq!(sequence.telemetry().frames, 1);
    }
    assert!(corrected >= 4, "{corrected} corrections in all cases");
}

/// Condition 1e10, where triangular solves take over, and the decades before, where corrections go wide; more right-hand
/// sides than one panel of tiles is wide, and an order that is no multiple of a tile.
#[test]
fn wide_corrections_reach_the_bound_at_every_condition() {
    let _card = shared();
    let Some(params) = card() else { return };
    for power in [2, 4, 5, 6, 7, 8, 10] {
        let system = Arc::new(fixtures::ill_conditioned(shape(70, 2, 333), 10_f64.powi(power)).unwrap());
        let mut frame = Frame::build(&system, &params).unwrap();
        let norm = system.norm2(Ridge::None);
        let all: Vec<Vector> = (0..65).map(|k| system.apply(&fixtures::random_vector(&system, k))).collect();
        let solutions = frame.solve_many(&all).unwrap();
        for (step, rhs) in solutions.steps.iter().zip(&all) {
            let residual = system.residual(Ridge::None, norm, step, rhs);
            assert!(residual <= RESIDUAL, "1e{power}: {residual:e}, {:?}", solutions.about);
        }
    }
}

#[test]
fn a_resident_solve_sends_the_right_hand_side_and_nothing_else() {
    let _card = shared();
    let Some(params) = card() else { return };
    let system = Arc::new(fixtures::well_conditioned(shape(50, 2, 200)).unwrap());
    let mut frame = Frame::build(&system, &params).unwrap();
    let rhs = fixtures::random_vector(&system, 1);
    frame.solve(&rhs).unwrap();
    let bytes = 8 * (system.unknowns() + system.border()) as u64;
    let seen = frame.solve(&rhs).unwrap().telemetry;
    assert_eq!((seen.counts.bytes_up, seen.counts.bytes_down, seen.counts.launches), (bytes, bytes, 1));
    assert_eq!((seen.counts.handles, seen.counts.contexts, seen.counts.factorisations), (0, 0, 0));
    drop(frame);
    // The next frame of this shape finds everything warm.
    let again = build_and_solve(&system, &rhs, &params).unwrap();
    assert_eq!(
        (again.about.path, again.telemetry.counts.handles, again.telemetry.frames),
        (Path::ReUpload, 0, 1)
    );
}

#[test]
fn failures_name_the_same_block_and_pivot_as_the_host() {
    let _card = shared();
    let Some(params) = card() else { return };
    let rows = fixtures::indefinite().unwrap();
    let good = fixtures::well_conditioned(SMALL).unwrap();
    let mut border = fixtures::tridiagonal(4);
    border[10] = -0.5;
    let uniform = Rows::Uniform { count: SMALL.rows, dim: SMALL.dim };
    let (d, b) = (good.row_hessian().to_vec(), good.cross().clone());
    let border = System::new(uniform, 4, d, b, Border::Dense(border)).unwrap();
    for system in [rows, border] {
        let system = Arc::new(system);
        let fails = |params: &Params| match Frame::build(&system, params) {
            Err(FrameError::NotPositiveDefinite { block, index, pivot, suggested }) => {
                assert!(suggested > 0.0);
                (block, index, pivot)
            }
            other => panic!("{:?}", other.map(|frame| frame.about())),
        };
        let (host, cuda) = (fails(&Params::default()), fails(&params));
        assert_eq!((host.0, host.1), (cuda.0, cuda.1));
        assert!((host.2 - cuda.2).abs() <= 1e-12 * host.2.abs(), "{} and {}", host.2, cuda.2);
    }
}

#[test]
fn too_little_memory_is_refused_before_anything_is_allocated() {
    let _card = alone();
    let Some(cuda) = common::cuda() else { return };
    let layout = Layout::new(vec![0, 2], 100_000);
    let before = cuda.free_memory().unwrap();
    match CudaFrame::new(&cuda, layout, Default::default(), Budget::Bytes(1 << 30)) {
        Err(FrameError::Memory(error)) => assert!(error.needed > 200_000_000_000 && error.budget == 1 << 30),
        other => panic!("{:?}", other.map(|frame| frame.about())),
    }
    assert_eq!(cuda.free_memory().unwrap(), before);
}

#[test]
fn a_frame_without_factors_does_not_answer() {
    let _card = shared();
    let Some(cuda) = common::cuda() else { return };
    let system = fixtures::well_conditioned(SMALL).unwrap();
    let rhs = fixtures::random_vector(&system, 1);
    let layout = Layout::new(system.offsets().to_vec(), system.border());
    let mut frame = CudaFrame::new(&cuda, layout, Default::default(), Budget::Available).unwrap();
    assert_eq!(frame.solve(&rhs), Err(FrameError::NotFactored));
    frame.factor_system(&system, Ridge::None).unwrap();
    let step = frame.solve(&rhs).unwrap();
    assert!(frame.factor_system(&fixtures::indefinite().unwrap(), Ridge::None).is_err());
    assert_eq!(frame.solve_many(&[rhs.clone(), rhs.clone()]), Err(FrameError::NotFactored));
    assert_eq!(frame.solve_wide(), Err(FrameError::NotFactored));
    assert!(frame.log_det().is_nan());
    frame.factor_system(&system, Ridge::None).unwrap();
    assert_eq!(frame.solve(&rhs).unwrap(), step);
}

#[test]
fn an_idle_frame_keeps_to_the_budget() {
    let _card = shared();
    let Some(params) = card() else { return };
    let system = Arc::new(fixtures::well_conditioned(SMALL).unwrap());
    drop(Frame::build(&system, &params).unwrap());
    let narrow = Params { budget: Budget::Bytes(1000), ..params };
    assert!(matches!(Frame::build(&system, &narrow), Err(FrameError::Memory(_))));
}
