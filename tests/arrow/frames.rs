use std::sync::Arc;

use faer::{Mat, Side};
use lapidary::arrow::{
    Border, Coupling, Cross, Elimination, Frame, Method, Path, Ridge, Rows, System, Vector, build_and_solve,
    fixtures,
};

use super::*;

/// H + ridge as a matrix: column by column, through the operator.
fn matrix(system: &System, ridge: Ridge) -> Mat<f64> {
    let m = system.unknowns();
    let size = m + system.border();
    let mut h = Mat::zeros(size, size);
    for j in 0..size {
        let mut e = Vector::zeros(system);
        if j < m {
            e.row[j] = 1.0
        } else {
            e.border[j - m] = 1.0
        }
        system.apply_ridged(ridge, &e).values().enumerate().for_each(|(i, v)| h[(i, j)] = v);
    }
    h
}

const RIDGES: [Ridge; 3] = [Ridge::None, Ridge::Relative(1e-3), Ridge::Absolute { row: 0.5, border: 0.25 }];

#[test]
fn every_step_meets_the_residual() {
    for (name, system) in cases() {
        for ridge in RIDGES {
            let norm = system.norm2(ridge);
            // b = Hx with a known x: with a random b an inaccurate inverse looks perfect.
            let rhs = system.apply_ridged(ridge, &fixtures::random_vector(&system, 3));
            let solution = build(&system, ridge).solve(&rhs).unwrap();
            let residual = system.residual(ridge, norm, &solution.step, &rhs);
            assert!(residual <= RESIDUAL, "{name}, ridge {ridge}: {residual:e}");
            assert_eq!(solution.about.path, Path::Host);
            assert_eq!(solution.about.method, Method::TriangularSolves);
            assert_eq!(solution.about.ridge, ridge);
        }
    }
}

#[test]
fn operator_and_slabs_are_one_symmetric_matrix() {
    for (name, system) in cases() {
        let h = matrix(&system, Ridge::None);
        let plain = matrix(&dense(&system), Ridge::None);
        assert!((&h - &plain).norm_max() <= 1e-14 * h.norm_max(), "{name}");
        assert!((&h - h.transpose()).norm_max() <= 1e-14 * h.norm_max(), "{name}");
        for (i, v) in system.diagonal().values().enumerate() {
            assert_eq!(h[(i, i)], v, "{name} at {i}");
        }
    }
}

#[test]
fn log_determinant_is_that_of_the_dense_matrix() {
    for (name, system) in cases() {
        for ridge in RIDGES {
            let frame = build(&system, ridge);
            let llt = matrix(&system, ridge).llt(Side::Lower).unwrap();
            let l = llt.L();
            let exact: f64 = (0..l.nrows()).map(|i| 2.0 * l[(i, i)].ln()).sum();
            let bound = 1e-12f64.max(10.0 * frame.about().condition * f64::EPSILON) * exact.abs().max(1.0);
            let error = (frame.log_det() - exact).abs();
            assert!(error <= bound, "{name}, ridge {ridge}: {error:e} above {bound:e}");
        }
    }
}

#[test]
fn norm_is_that_of_the_dense_matrix() {
    for (name, system) in cases() {
        let exact = matrix(&system, Ridge::None).self_adjoint_eigenvalues(Side::Lower).unwrap();
        let exact = exact[exact.len() - 1];
        let norm = system.norm2(Ridge::None);
        assert!(norm <= exact * (1.0 + 1e-12) && norm >= 0.9 * exact, "{name}: {norm} of {exact}");
    }
}

#[test]
fn ill_conditioned_frames_notice_and_correct() {
    let shape = fixtures::Shape { rows: 40, dim: 2, border: 150, seed: 11 };
    for (condition, corrections) in [(1e2, 0), (1e10, 1)] {
        let system = Arc::new(fixtures::ill_conditioned(shape, condition).unwrap());
        let about = build(&system, Ridge::None).about();
        assert_eq!(about.corrections, corrections);
        let share = about.condition / condition;
        assert!((0.01..100.0).contains(&share), "{:e} for {condition:e}", about.condition);
    }
}

#[test]
fn an_ill_conditioned_structured_border_is_noticed() {
    // κ of G is 2e10 once scaled to a diagonal of ones; the coupling adds nothing.
    let near = 1.0 - 1e-10;
    let gram = vec![1.0, near, near, 1.0];
    let cross = Cross::Dense(vec![1e-8; 8]);
    let rows = Rows::Uniform { count: 2, dim: 1 };
    let system = System::new(rows, 4, vec![3.0, 3.0], cross, Border::Kronecker { basis: 2, gram }).unwrap();
    let about = build(&Arc::new(system), Ridge::None).about();
    assert_eq!(about.elimination, Elimination::Border);
    assert!((1e9..1e11).contains(&about.condition), "{:e}", about.condition);
    assert_eq!(about.corrections, 1);
}

#[test]
fn structured_borders_equal_dense_ones() {
    let mut diagonal = vec![4.0; 36];
    diagonal[7] = 2.5;
    for border in [gram(), Border::Diagonal(diagonal)] {
        let system = Arc::new(factored(border));
        let plain = Arc::new(dense(&system));
        for ridge in RIDGES {
            let rhs = fixtures::random_vector(&system, 5);
            let (mut frame, mut plain_frame) = (build(&system, ridge), build(&plain, ridge));
            assert_eq!(frame.about().elimination, Elimination::Border);
            let kronecker = matches!(system.border_hessian(), Border::Kronecker { .. });
            assert_eq!(frame.about().coupling == Coupling::Factored, kronecker);
            assert_eq!(plain_frame.about().elimination, Elimination::Rows);
            let (step, plain_step) = (frame.solve(&rhs).unwrap().step, plain_frame.solve(&rhs).unwrap().step);
            assert!(difference(&step, &plain_step) < 1e-13);
            assert!((frame.log_det() - plain_frame.log_det()).abs() < 1e-12 * frame.log_det().abs());
        }
    }
}

#[test]
fn a_structured_border_never_becomes_dense() {
    // Dense, this border would be 3.2 TB.
    let (basis, r) = (4, 160_000);
    let gram = fixtures::tridiagonal(basis);
    let mut random = SplitMix64::new(9);
    let cross = Cross::Factored {
        basis,
        values: numbers(3 * basis, 0.5, &mut random),
        jacobian: numbers(3 * r, 1e-3, &mut random),
    };
    let rows = Rows::Uniform { count: 3, dim: 1 };
    let border = Border::Kronecker { basis, gram };
    let system = Arc::new(System::new(rows, basis * r, vec![3.0; 3], cross, border).unwrap());
    let rhs = system.apply(&fixtures::random_vector(&system, 2));
    let solution = build(&system, Ridge::None).solve(&rhs).unwrap();
    let residual = system.residual(Ridge::None, system.norm2(Ridge::None), &solution.step, &rhs);
    assert!(residual <= RESIDUAL, "{residual:e}");
}

#[test]
fn wide_solves_equal_single_ones() {
    for (name, system) in cases() {
        let rhs: Vec<Vector> = (0..5).map(|k| system.apply(&fixtures::random_vector(&system, k))).collect();
        let mut frame = build(&system, Ridge::None);
        let wide = frame.solve_many(&rhs).unwrap();
        assert_eq!(wide.telemetry.solves, 5);
        let norm = system.norm2(Ridge::None);
        for (step, rhs) in wide.steps.iter().zip(&rhs) {
            assert!(system.residual(Ridge::None, norm, step, rhs) <= RESIDUAL, "{name}");
            let single = frame.solve(rhs).unwrap().step;
            let bound = 1e-13f64.max(10.0 * frame.about().condition * f64::EPSILON);
            assert!(difference(step, &single) <= bound, "{name}");
        }
        assert!(frame.solve_many(&[]).unwrap().steps.is_empty());
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let system = Arc::new(
        fixtures::well_conditioned(fixtures::Shape { rows: 150, dim: 2, border: 700, seed: 4 }).unwrap(),
    );
    let rhs: Vec<Vector> = (0..3).map(|k| fixtures::random_vector(&system, k)).collect();
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut frame = build(&system, Ridge::None);
            let steps = frame.solve_many(&rhs).unwrap().steps;
            (frame.solve(&rhs[0]).unwrap().step, steps, frame.log_det())
        })
    };
    let (one, two) = (run(1), run(2));
    assert_eq!(one.2.to_bits(), two.2.to_bits(), "log-determinant");
    assert!(one.0 == two.0, "one right-hand side");
    assert!(one.1 == two.1, "several right-hand sides");
}

#[test]
fn one_call_counts_its_frame() {
    let system = Arc::new(fixtures::well_conditioned(fixtures::SMALL).unwrap());
    let rhs = fixtures::random_vector(&system, 1);
    let once = build_and_solve(&system, &rhs, &params(Ridge::None)).unwrap();
    assert_eq!(
        (once.telemetry.frames, once.telemetry.solves, once.telemetry.counts.factorisations),
        (1, 1, 2)
    );
    assert_eq!(once.about.path, Path::Host);
    let mut frame = Frame::build(&system, &params(Ridge::None)).unwrap();
    assert_eq!(frame.solve(&rhs).unwrap().telemetry.frames, 0);
    assert_eq!(frame.solve(&rhs).unwrap().step, once.step);
    // Rows and capacitance, and G of a Kronecker border.
    for (border, factorisations) in [(Border::Diagonal(vec![4.0; 36]), 2), (gram(), 3)] {
        let built = build(&Arc::new(factored(border)), Ridge::None).built();
        assert_eq!(built.counts.factorisations, factorisations);
    }
}
