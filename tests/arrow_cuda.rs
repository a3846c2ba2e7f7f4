//! The arrow solver on an NVIDIA card: the same bodies on host and card, the host's answers as the measure.
#![cfg(feature = "cuda")]

mod common;

use std::num::NonZero;
use std::sync::{Arc, Mutex};

use lapidary::arrow::bench::small_batch;
use lapidary::arrow::cuda::{CudaFrame, Lane, Layout, SmallBatch};
use lapidary::arrow::fixtures::{self, SMALL, Shape};
use lapidary::arrow::{
    Backend, Border, Budget, Cross, Frame, FrameError, Linearisation, Method, NewtonParams, Outcome,
    OuterSequence, Params, Path, Problem, Quadratic, Ridge, Rows, Status, Stop, System, Vector,
    build_and_solve, bundle, newton, sweep,
};
use lapidary::ops::splitmix::SplitMix64;

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

#[test]
fn every_residual_is_small_and_determinants_are_the_hosts() {
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
fn many_right_hand_sides_are_one_wide_solve() {
    let Some(params) = card() else { return };
    for (name, system) in cases() {
        let system = Arc::new(system);
        let mut sequence = OuterSequence::begin(&system, &params).unwrap();
        let norm = system.norm2(Ridge::None);
        let all: Vec<Vector> =
            (0..9).map(|k| system.apply(&fixtures::random_vector(&system, 30 + k))).collect();
        let solutions = sequence.all(&all).unwrap();
        for (step, rhs) in solutions.steps.iter().zip(&all) {
            let residual = system.residual(Ridge::None, norm, step, rhs);
            assert!(residual <= RESIDUAL, "{name}: {residual:e}");
        }
        assert_eq!(sequence.telemetry().frames, 1);
    }
}

#[test]
fn a_resident_solve_sends_the_right_hand_side_and_nothing_else() {
    let Some(params) = card() else { return };
    let system = Arc::new(fixtures::well_conditioned(shape(50, 2, 200)).unwrap());
    let mut frame = Frame::build(&system, &params).unwrap();
    let rhs = fixtures::random_vector(&system, 1);
    frame.solve(&rhs).unwrap();
    let bytes = 8 * (system.unknowns() + system.border()) as u64;
    let seen = frame.solve(&rhs).unwrap().telemetry;
    assert_eq!((seen.bytes_up, seen.bytes_down, seen.launches), (bytes, bytes, 1));
    assert_eq!((seen.handles, seen.contexts, seen.factorisations), (0, 0, 0));
    drop(frame);
    // The next frame of this shape finds everything warm.
    let again = build_and_solve(&system, &rhs, &params).unwrap();
    assert_eq!((again.about.path, again.telemetry.handles, again.telemetry.frames), (Path::ReUpload, 0, 1));
}

#[test]
fn failures_name_the_same_block_and_pivot_as_the_host() {
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
    let Some(cuda) = common::cuda() else { return };
    let layout = Layout::new(vec![0, 2], 100_000);
    let before = cuda.free_memory().unwrap();
    match CudaFrame::new(&cuda, layout, Default::default(), Budget::Bytes(1 << 30)) {
        Err(FrameError::Memory(error)) => assert!(error.needed > 200_000_000_000 && error.budget == 1 << 30),
        other => panic!("{:?}", other.map(|frame| frame.about())),
    }
    assert_eq!(cuda.free_memory().unwrap(), before);
}

/// `φ = Σ √(1 + z²)`: the first steps from afar are rejected.
struct Hyperbola(usize);

impl Problem for Hyperbola {
    fn objective(&mut self, z: &Vector) -> f64 {
        z.values().map(|v| (1.0 + v * v).sqrt()).sum()
    }

    fn linearise(&mut self, z: &Vector) -> Result<Linearisation, Box<dyn std::error::Error + Send + Sync>> {
        let slope = |v: &f64| v / (1.0 + v * v).sqrt();
        let curve = |v: &f64| (1.0 + v * v).powf(-1.5);
        let gradient =
            Vector { row: z.row.iter().map(slope).collect(), border: z.border.iter().map(slope).collect() };
        let (rows, p) = (Rows::Uniform { count: self.0, dim: 1 }, z.border.len());
        let border = Border::Diagonal(z.border.iter().map(curve).collect());
        let cross = Cross::Dense(vec![0.0; self.0 * p]);
        let hessian = System::new(rows, p, z.row.iter().map(curve).collect(), cross, border)?;
        Ok(Linearisation { gradient, hessian: Arc::new(hessian) })
    }
}

type Case = (Box<dyn Problem>, Vector);

fn quadratic(system: System) -> Case {
    let (rhs, start) = (fixtures::random_vector(&system, 1), Vector::zeros(&system));
    (Box::new(Quadratic { hessian: Arc::new(system), rhs }), start)
}

/// Outcome, tries, accepts and frames of both must be the same.
fn takes_the_same_path(name: &str, card: &Backend, params: &NewtonParams, problem: &dyn Fn() -> Case) {
    let run = |backend: Backend| {
        let (mut problem, start) = problem();
        let params = NewtonParams { backend, ..params.clone() };
        let summary = newton(problem.as_mut(), start, &params).unwrap();
        (summary.outcome, summary.tries, summary.accepts, summary.builds)
    };
    assert_eq!(run(card.clone()), run(Backend::Host), "{name}");
}

#[test]
fn newton_takes_the_same_path_on_card_and_host() {
    let Some(params) = card() else { return };
    let problems: [(&str, &dyn Fn() -> Case); 3] = [
        ("well conditioned", &|| quadratic(fixtures::well_conditioned(shape(30, 2, 90)).unwrap())),
        ("indefinite", &|| quadratic(fixtures::indefinite().unwrap())),
        ("hyperbola", &|| {
            let start = Vector { row: vec![3.0, -2.0], border: vec![4.0, 1.0, -3.0] };
            (Box::new(Hyperbola(2)), start)
        }),
    ];
    for (name, problem) in problems {
        for base in [NewtonParams::default(), NewtonParams::published()] {
            takes_the_same_path(name, &params.backend, &NewtonParams { tries: 40, ..base }, problem);
        }
    }
}

/// The gradient of a quadratic is known to about κ·ε of the first one: below that, rounding alone decides whether a
/// step is accepted. The loop ends a hundred times above it, and every decision until then must be the same.
#[test]
fn newton_takes_the_same_path_at_condition_1e8() {
    let Some(params) = card() else { return };
    let condition = 1e8;
    let problem = || quadratic(fixtures::ill_conditioned(shape(20, 2, 50), condition).unwrap());
    let stop = Stop::RelativeGradient(100.0 * condition * f64::EPSILON);
    let base = NewtonParams { stop, tries: 40, ..NewtonParams::default() };
    takes_the_same_path("condition 1e8", &params.backend, &base, &problem);
    let first_ridge = 1e-3;
    takes_the_same_path("from a ridge", &params.backend, &NewtonParams { first_ridge, ..base }, &problem);
    let (mut problem, start) = problem();
    let params = NewtonParams { stop, backend: params.backend, ..NewtonParams::default() };
    assert_eq!(newton(problem.as_mut(), start, &params).unwrap().outcome, Outcome::Converged);
}

#[test]
fn bundle_adjustment_takes_the_same_path_on_card_and_host() {
    let Some(params) = card() else { return };
    let Some(path) = common::data("bal/problem-49-7776-pre.txt") else { return };
    let run = |backend: Backend| {
        let (mut problem, start) = bundle::read(&path).unwrap();
        newton(&mut problem, start, &NewtonParams { backend, ..bundle::params() }).unwrap()
    };
    let (card, host) = (run(params.backend), run(Backend::Host));
    assert_eq!((card.outcome, card.tries, card.accepts), (host.outcome, host.tries, host.accepts));
    for cost in [card.objective, host.objective] {
        assert!((cost / 13_344.240_3 - 1.0).abs() <= 1e-6, "{cost}");
    }
}

#[test]
fn a_frame_without_factors_does_not_answer() {
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
    let Some(params) = card() else { return };
    let system = Arc::new(fixtures::well_conditioned(SMALL).unwrap());
    drop(Frame::build(&system, &params).unwrap());
    let narrow = Params { budget: Budget::Bytes(1000), ..params };
    assert!(matches!(Frame::build(&system, &narrow), Err(FrameError::Memory(_))));
}

#[test]
fn bad_numbers_in_a_batch_are_told_as_on_the_host() {
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
        assert_eq!((seen.bytes_up, seen.bytes_down, seen.factorisations), (bytes, bytes, 0));
    }
}

#[test]
fn batches_agree_with_the_host_and_failures_stay_apart() {
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
