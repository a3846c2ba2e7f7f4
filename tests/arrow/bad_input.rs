use std::sync::Arc;

use lapidary::arrow::bench::small_batch;
use lapidary::arrow::{
    Block, Border, Budget, Cross, Frame, FrameError, Params, Ridge, Rows, System, SystemError, Vector,
    fixtures,
};

use super::*;

/// Two blocks of 2, border 2.
struct Slabs {
    rows: Rows,
    border: usize,
    row_hessian: Vec<f64>,
    cross: Cross,
    border_hessian: Border,
}

fn slabs() -> Slabs {
    Slabs {
        rows: Rows::Uniform { count: 2, dim: 2 },
        border: 2,
        row_hessian: vec![3.0, 0.1, 0.1, 3.0, 3.0, 0.2, 0.2, 3.0],
        cross: Cross::Dense(vec![0.01; 8]),
        border_hessian: Border::Dense(vec![4.0, 0.01, 0.01, 4.0]),
    }
}

impl Slabs {
    fn build(self) -> Result<System, SystemError> {
        System::new(self.rows, self.border, self.row_hessian, self.cross, self.border_hessian)
    }
}

#[test]
fn every_bad_system_is_named() {
    let cases: Vec<(Slabs, &str)> = vec![
        (Slabs { rows: Rows::Uniform { count: 0, dim: 2 }, ..slabs() }, "`rows` is zero"),
        (Slabs { rows: Rows::Uniform { count: 2, dim: 0 }, ..slabs() }, "`row dimension` is zero"),
        (Slabs { rows: Rows::Uniform { count: 2, dim: 17 }, ..slabs() }, "row block 0 has 17 unknowns"),
        (Slabs { rows: Rows::Uniform { count: usize::MAX, dim: 2 }, ..slabs() }, "can address"),
        (Slabs { rows: Rows::Ragged(vec![]), ..slabs() }, "`rows` is zero"),
        (Slabs { rows: Rows::Ragged(vec![1, 4]), ..slabs() }, "must rise from 0: entry 0 is 1"),
        (Slabs { rows: Rows::Ragged(vec![0, 3, 2]), ..slabs() }, "entry 2 is 2 after 3"),
        (Slabs { rows: Rows::Ragged(vec![0, 2, 2]), ..slabs() }, "row block 1 has 0 unknowns"),
        (Slabs { border: 0, ..slabs() }, "`border` is zero"),
        (
            Slabs { row_hessian: vec![1.0; 7], ..slabs() },
            "`row_hessian` has 7 numbers where 8 are expected (2 x 2 x 2)",
        ),
        (
            Slabs { cross: Cross::Dense(vec![0.0; 9]), ..slabs() },
            "`row_cross` has 9 numbers where 8 are expected (4 x 2)",
        ),
        (
            Slabs { border_hessian: Border::Dense(vec![1.0; 3]), ..slabs() },
            "`border_hessian` has 3 numbers where 4 are expected (2 x 2)",
        ),
        (
            Slabs { border_hessian: Border::Diagonal(vec![1.0; 3]), ..slabs() },
            "`border_diagonal` has 3 numbers",
        ),
        (
            Slabs { border_hessian: Border::Kronecker { basis: 3, gram: vec![1.0; 9] }, ..slabs() },
            "a border of 2 cannot be cut into 3 equal parts",
        ),
        (
            Slabs {
                cross: Cross::Factored { basis: 2, values: vec![1.0; 3], jacobian: vec![1.0; 4] },
                ..slabs()
            },
            "`row_basis` has 3 numbers where 4 are expected",
        ),
        (
            Slabs { row_hessian: vec![3.0, 0.1, 0.1, 3.0, 3.0, 0.2, 0.2, f64::NAN], ..slabs() },
            "`row_hessian` holds NaN at index 7",
        ),
        (
            Slabs { border_hessian: Border::Diagonal(vec![1.0, f64::INFINITY]), ..slabs() },
            "`border_diagonal` holds inf at index 1",
        ),
        (
            Slabs { row_hessian: vec![3.0, 0.1, 0.1, 3.0, 3.0, 0.2, 0.3, 3.0], ..slabs() },
            "row block 1 is not symmetric: entry (1, 0) is 0.3 and its mirror 0.2, 9.99",
        ),
        (
            Slabs { border_hessian: Border::Dense(vec![4.0, 0.5, 0.0, 4.0]), ..slabs() },
            "the border is not symmetric: entry (1, 0) is 0 and its mirror 0.5, 5e-1 apart",
        ),
    ];
    assert!(slabs().build().is_ok());
    for (slabs, expected) in cases {
        let error = slabs.build().unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
}

#[test]
fn a_large_border_is_checked_to_its_corners() {
    let p = 200;
    let mut border = fixtures::tridiagonal(p);
    border[(p - 1) * p] = 1e-3;
    let cross = Cross::Dense(vec![0.0; p]);
    let rows = Rows::Uniform { count: 1, dim: 1 };
    let error = System::new(rows, p, vec![1.0], cross, Border::Dense(border)).unwrap_err();
    assert!(matches!(error, SystemError::Asymmetric { block: Block::Border, row: 199, col: 0, .. }));
}

#[test]
fn blocks_that_are_not_positive_definite_say_what_would_help() {
    let mut system = fixtures::indefinite().unwrap();
    let Err(FrameError::NotPositiveDefinite { block, index, pivot, suggested }) =
        Frame::build(&Arc::new(system.clone()), &params(Ridge::None))
    else {
        panic!("an indefinite row block was factored")
    };
    assert_eq!((block, index), (Block::Row(3), 1));
    assert!((pivot - (2.0 - 3.5 * 3.5 / 2.0)).abs() < 1e-14);
    // The suggested ridge makes the rows positive definite, and the border as well here.
    let ridge = Ridge::Absolute { row: suggested, border: 0.0 };
    let error = Frame::build(&Arc::new(system.clone()), &params(ridge)).err();
    let Some(FrameError::NotPositiveDefinite { block: Block::Border, index: 2, pivot, suggested: border }) =
        error
    else {
        panic!("{error:?}")
    };
    assert!((-0.51..-0.49).contains(&pivot));
    let ridge = Ridge::Absolute { row: suggested, border };
    system = dense(&system);
    assert!(Frame::build(&Arc::new(system), &params(ridge)).is_ok());
}

#[test]
fn structured_borders_name_their_bad_pivots() {
    let mut diagonal = vec![4.0; 36];
    diagonal[20] = -1.0;
    let bad_gram =
        Border::Kronecker { basis: 4, gram: fixtures::tridiagonal(4).iter().map(|g| -g).collect() };
    for (border, at) in [(Border::Diagonal(diagonal), 20), (bad_gram, 0)] {
        let error = Frame::build(&Arc::new(factored(border)), &params(Ridge::None)).err();
        assert!(
            matches!(error, Some(FrameError::NotPositiveDefinite { block: Block::Border, index, .. }) if index == at),
            "{error:?}"
        );
    }
}

/// Rows of one unknown each, D = 3 and 3; the border is the identity, and only the second row sees it, twice as strong.
fn strongly_coupled(border: Border) -> System {
    let cross = Cross::Dense(vec![0.1, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]);
    System::new(Rows::Uniform { count: 2, dim: 1 }, 4, vec![3.0, 3.0], cross, border).unwrap()
}

#[test]
fn a_coupling_too_strong_for_a_structured_border_is_told_by_its_row() {
    let identity = Border::Kronecker { basis: 2, gram: vec![1.0, 0.0, 0.0, 1.0] };
    for border in [Border::Diagonal(vec![1.0; 4]), identity] {
        let system = Arc::new(strongly_coupled(border));
        let error = Frame::build(&system, &params(Ridge::None)).err();
        let Some(FrameError::NotPositiveDefinite { block, index, pivot, suggested }) = error else {
            panic!("{error:?}")
        };
        assert_eq!((block, index), (Block::Row(1), 0));
        // 3 − 2·2 and what the first row, which hardly sees the border, takes: (0.1·2)²/(3 − 0.01).
        assert!((pivot - (3.0 - 4.0 - 0.04 / 2.99)).abs() < 1e-14, "{pivot}");
        let ridge = Ridge::Absolute { row: suggested, border: 0.0 };
        assert!(Frame::build(&system, &params(ridge)).is_ok());
    }
}

#[test]
fn a_relative_ridge_raises_diagonals_below_zero_too() {
    let (rows, cross) = (Rows::Uniform { count: 1, dim: 1 }, Cross::Dense(vec![0.0]));
    let system = System::new(rows, 1, vec![-1.0], cross, Border::Diagonal(vec![-2.0])).unwrap();
    let mut frame = build(&Arc::new(system), Ridge::Relative(3.0));
    let rhs = Vector { row: vec![4.0], border: vec![8.0] };
    assert!((frame.solve(&rhs).unwrap().step.values().sum::<f64>() - 4.0).abs() < 1e-14);
}

#[test]
fn a_step_that_overflows_is_no_success() {
    let (rows, cross) = (Rows::Uniform { count: 1, dim: 1 }, Cross::Dense(vec![0.0]));
    let system = System::new(rows, 1, vec![1e-10], cross, Border::Diagonal(vec![1.0])).unwrap();
    let mut frame = build(&Arc::new(system), Ridge::None);
    let good = Vector { row: vec![1.0], border: vec![1.0] };
    let large = Vector { row: vec![1e300], border: vec![1.0] };
    let error = frame.solve_many(&[good, large]).unwrap_err();
    assert!(matches!(error, FrameError::Overflow { index: 1, slab: "delta_row", .. }), "{error}");
}

#[test]
fn bad_questions_to_a_frame() {
    let system = Arc::new(fixtures::well_conditioned(fixtures::SMALL).unwrap());
    let mut frame = build(&system, Ridge::None);
    let good = Vector::zeros(&system);
    let cases = [
        (Vector { row: vec![0.0; 15], ..good.clone() }, "`row_rhs` has 15 numbers where the system has 16"),
        (Vector { border: vec![0.0; 5], ..good.clone() }, "`border_rhs` has 5 numbers"),
        (
            Vector { border: vec![0.0, f64::NAN, 0.0, 0.0], ..good.clone() },
            "`border_rhs` holds NaN at index 1",
        ),
    ];
    for (rhs, expected) in cases {
        let error = frame.solve(&rhs).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
    assert!(frame.solve(&good).unwrap().step.values().all(|v| v == 0.0));
    for rho in [-1.0, f64::NAN] {
        let error = Frame::build(&system, &params(Ridge::Relative(rho))).err();
        assert!(matches!(error, Some(FrameError::Ridge { .. })));
    }
}

#[test]
fn too_little_memory_is_refused_with_figure_and_budget() {
    let system = Arc::new(fixtures::well_conditioned(fixtures::SMALL).unwrap());
    let needed = lapidary::arrow::memory::host_frame_bytes(&system);
    let with = |budget| Frame::build(&system, &Params { budget, ..Params::default() });
    let error = with(Budget::Bytes(needed - 1)).err().unwrap().to_string();
    assert!(error.contains(&format!("needs {needed} bytes")), "{error}");
    assert!(error.contains(&format!("{} are free", needed - 1)), "{error}");
    for budget in [Budget::Bytes(needed), Budget::Unlimited, Budget::Available] {
        assert!(with(budget).is_ok());
    }
}

#[test]
fn memory_of_factors_counts_them_and_their_product() {
    let system = factored(Border::Dense(fixtures::tridiagonal(36)));
    let (m, p) = (system.unknowns(), system.border());
    let numbers = system.row_hessian().len() + system.cross().len() + m * p + p * p;
    assert_eq!(lapidary::arrow::memory::host_frame_bytes(&system), 8 * numbers as u64);
}

#[test]
fn symmetry_is_checked_beside_huge_diagonals() {
    let mut bad = slabs();
    bad.row_hessian = vec![1e200, 1e100, 0.0, 1e200, 3.0, 0.2, 0.2, 3.0];
    assert!(bad.build().is_ok(), "1e100 is rounding beside 1e200");
    let mut bad = slabs();
    bad.row_hessian = vec![1e200, 1e199, 0.0, 1e200, 3.0, 0.2, 0.2, 3.0];
    assert!(matches!(bad.build(), Err(SystemError::Asymmetric { block: Block::Row(0), .. })));
}

#[test]
fn bad_batches_are_named() {
    let good = small_batch(3, 2, 2, 4);
    let mut cases = Vec::new();
    let mut bad = |change: fn(&mut lapidary::arrow::Batch), expected: &'static str| {
        let mut batch = good.clone();
        change(&mut batch);
        cases.push((batch, expected));
    };
    bad(|b| b.dim = 4, "row blocks of 4");
    bad(|b| b.border = 33, "a border of 33");
    bad(|b| b.offsets[0] = 1, "entry 0 is 1");
    bad(|b| b.offsets[2] = 2, "entry 2 is 2");
    bad(|b| b.offsets.clear(), "entry 0 is 0");
    bad(|b| b.row_cross.truncate(47), "`row_cross` has 47 numbers where 48 are expected");
    bad(|b| b.border_rhs.truncate(11), "`border_rhs` has 11 numbers where 12 are expected");
    for (batch, expected) in cases {
        let error = batch.solve().unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
}
