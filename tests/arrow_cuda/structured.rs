//! Structured borders and factored cross blocks: nothing p x p, and the host's answers.

use std::sync::Arc;

use lapidary::arrow::cuda::{CudaFrame, Layout, Tuning};
use lapidary::arrow::memory::card_frame_bytes;
use lapidary::arrow::{
    Block, Border, Budget, Cross, Elimination, Frame, FrameError, Method, Params, Ridge, Rows, System,
    Vector, fixtures,
};
use lapidary::ops::splitmix::SplitMix64;

use super::{RESIDUAL, alone, card, common, factored, numbers, shape, shared};

/// Ragged rows, Σ d_i = 32, and a border of 12·r, in every combination of cross block and border.
fn ragged(basis: Option<usize>, border: Border) -> System {
    let (mut random, p) = (SplitMix64::new(0x5E), 60);
    let (mut offsets, mut row_hessian) = (vec![0], Vec::new());
    for dim in [1, 3, 2, 5, 1, 4, 16] {
        offsets.push(offsets[offsets.len() - 1] + dim);
        row_hessian.extend(fixtures::row_block(dim, &mut random));
    }
    let m = offsets[7];
    let cross = match basis {
        Some(basis) => Cross::Factored {
            basis,
            values: numbers(7 * basis, 1.0, &mut random),
            jacobian: numbers(m * p / basis, 0.08, &mut random),
        },
        None => Cross::Dense(numbers(m * p, 0.08, &mut random)),
    };
    System::new(Rows::Ragged(offsets), p, row_hessian, cross, border).unwrap()
}

fn gram(basis: usize) -> Border {
    let mut gram = fixtures::tridiagonal(basis);
    for i in 1..basis {
        gram[i * basis + i - 1] = 0.7;
        gram[(i - 1) * basis + i] = 0.7;
    }
    Border::Kronecker { basis, gram }
}

fn diagonal(p: usize) -> Border {
    Border::Diagonal((0..p).map(|i| 3.0 + (i % 5) as f64).collect())
}

/// `C = G ⊗ I`, G of this condition, with a coupling that leaves the capacitance near one.
fn ill_conditioned(basis: usize, condition: f64, random: &mut SplitMix64) -> System {
    let (n, r) = (20, 6);
    let mut gram = vec![0.0; basis * basis];
    for i in 0..basis {
        gram[i * basis + i] = condition.powf(-(i as f64) / (basis - 1) as f64);
    }
    let v = numbers(basis, 1.0, random);
    let norm = v.iter().map(|v| v * v).sum::<f64>();
    let reflection = |i: usize, j: usize| f64::from(u8::from(i == j)) - 2.0 * v[i] * v[j] / norm;
    let mut turned = vec![0.0; basis * basis];
    for i in 0..basis {
        for j in 0..=i {
            let entry = (0..basis).map(|k| reflection(i, k) * gram[k * basis + k] * reflection(k, j)).sum();
            (turned[i * basis + j], turned[j * basis + i]) = (entry, entry);
        }
    }
    let scale = 0.1 / condition.sqrt();
    let cross = Cross::Factored {
        basis,
        values: numbers(n * basis, 1.0, random),
        jacobian: numbers(n * r, scale, random),
    };
    let rows = (0..n).map(|_| 2.0 + random.uniform()).collect();
    let border = Border::Kronecker { basis, gram: turned };
    System::new(Rows::Uniform { count: n, dim: 1 }, basis * r, rows, cross, border).unwrap()
}

/// What every test of frames goes over as well.
pub fn cases() -> Vec<(String, System)> {
    let mut cases = Vec::new();
    for (cross, basis) in [("dense", None), ("of 4", Some(4)), ("of 12", Some(12)), ("of 60", Some(60))] {
        for (border, of) in
            [("diagonal", diagonal(60)), ("Kronecker 12", gram(12)), ("Kronecker 60", gram(60))]
        {
            cases.push((format!("ragged, cross {cross}, {border}"), ragged(basis, of)));
        }
        let dense = Border::Dense(fixtures::tridiagonal(60));
        cases.push((format!("ragged, cross {cross}, dense border"), ragged(basis, dense)));
    }
    let well = [
        ("wide, diagonal", fixtures::diagonal_border(shape(180, 2, 1111))),
        ("wide, Kronecker", fixtures::kronecker_border(shape(180, 2, 1120), 40)),
        ("odd basis", fixtures::kronecker_border(shape(11, 3, 1001), 77)),
        ("one row", fixtures::kronecker_border(shape(1, 1, 300), 5)),
        ("as many rows as border", fixtures::diagonal_border(shape(33, 3, 99))),
        ("more rows than border, diagonal", fixtures::diagonal_border(shape(90, 2, 50))),
        ("more rows than border, Kronecker", fixtures::kronecker_border(shape(90, 2, 50), 5)),
    ];
    cases.extend(well.map(|(name, system)| (name.to_owned(), system.unwrap())));
    let mut random = SplitMix64::new(0x111);
    for power in [4, 8, 10] {
        let system = ill_conditioned(30, 10_f64.powi(power), &mut random);
        cases.push((format!("condition 1e{power}, Kronecker"), system));
    }
    cases
}

#[test]
fn the_border_goes_first_where_the_host_does_it() {
    let _card = shared();
    let Some(params) = card() else { return };
    for (name, system) in cases() {
        let system = Arc::new(system);
        let (seen, host) =
            (Frame::build(&system, &params).unwrap(), Frame::build(&system, &Params::default()).unwrap());
        assert_eq!(seen.about().elimination, host.about().elimination, "{name}");
        // With the rows first a card needs Y multiplied out; with the border first it keeps the factors that the host keeps.
        let kept = seen.about().elimination == Elimination::Border;
        assert!(!kept || seen.about().coupling == host.about().coupling, "{name}");
        let (seen, host) = (seen.built().counts.factorisations, host.built().counts.factorisations);
        // Where the inverse gives way to a factor, that is one more.
        assert!(seen == host || seen == host + 1, "{name}: {seen} and {host}");
    }
}

#[test]
fn an_ill_conditioned_root_is_told() {
    let _card = shared();
    let Some(params) = card() else { return };
    let system = Arc::new(ill_conditioned(30, 1e10, &mut SplitMix64::new(3)));
    let mut frame = Frame::build(&system, &params).unwrap();
    let about = frame.about();
    assert_eq!((about.elimination, about.method), (Elimination::Border, Method::ExplicitInverse));
    assert!(about.condition > 1e7, "{:e}", about.condition);
    let rhs = system.apply(&fixtures::random_vector(&system, 1));
    let step = frame.solve(&rhs).unwrap().step;
    let residual = system.residual(Ridge::None, system.norm2(Ridge::None), &step, &rhs);
    assert!(residual <= RESIDUAL, "{residual:e}");
}

/// Two rows that see the same border unknown and leave 10^-power of each other: corrections, then triangular solves.
#[test]
fn an_ill_conditioned_capacitance_is_corrected() {
    let _card = shared();
    let Some(params) = card() else { return };
    let (n, p) = (70, 90);
    for (power, corrections) in [(0, 0), (3, 1), (5, 2), (10, 0)] {
        let (mut cross, mut rows) = (vec![0.0; n * p], vec![2.0; n]);
        (0..n).for_each(|row| cross[row * p + row.max(1)] = 1.0);
        (rows[0], rows[1]) = (2.0 + 10_f64.powi(-power), 2.0 + 10_f64.powi(-power));
        let shape = Rows::Uniform { count: n, dim: 1 };
        let system =
            System::new(shape, p, rows, Cross::Dense(cross), Border::Diagonal(vec![1.0; p])).unwrap();
        let system = Arc::new(system);
        let mut frame = Frame::build(&system, &params).unwrap();
        let about = frame.about();
        let method = if power < 10 { Method::ExplicitInverse } else { Method::TriangularSolves };
        assert_eq!((about.elimination, about.method), (Elimination::Border, method), "1e{power}");
        assert_eq!(about.corrections, corrections, "1e{power}: {:e}", about.condition);
        let rhs: Vec<Vector> = (0..5).map(|k| system.apply(&fixtures::random_vector(&system, k))).collect();
        let norm = system.norm2(Ridge::None);
        let one = frame.solve(&rhs[0]).unwrap().step;
        for (step, rhs) in frame.solve_many(&rhs).unwrap().steps.iter().zip(&rhs).chain([(&one, &rhs[0])]) {
            let residual = system.residual(Ridge::None, norm, step, rhs);
            assert!(residual <= RESIDUAL, "1e{power}: {residual:e}, {about:?}");
        }
    }
}

#[test]
fn a_structured_border_never_becomes_dense() {
    let _card = shared();
    let Some(params) = card() else { return };
    // Dense, this border would be 3.2 TB.
    let (basis, r) = (4, 160_000);
    let mut random = SplitMix64::new(9);
    let cross = Cross::Factored {
        basis,
        values: numbers(3 * basis, 0.5, &mut random),
        jacobian: numbers(3 * r, 1e-3, &mut random),
    };
    let rows = Rows::Uniform { count: 3, dim: 1 };
    let system = Arc::new(System::new(rows, basis * r, vec![3.0; 3], cross, gram(basis)).unwrap());
    let all: Vec<Vector> = (0..3).map(|k| system.apply(&fixtures::random_vector(&system, k))).collect();
    let mut frame = Frame::build(&system, &params).unwrap();
    let steps = frame.solve_many(&all).unwrap().steps;
    for (step, rhs) in steps.iter().zip(&all) {
        let residual = system.residual(Ridge::None, system.norm2(Ridge::None), step, rhs);
        assert!(residual <= RESIDUAL, "{residual:e}");
    }
}

#[test]
fn roots_of_every_size_are_solved_side_by_side() {
    let _card = shared();
    let Some(params) = card() else { return };
    let build = |basis: usize, r: usize| {
        let system = Arc::new(fixtures::kronecker_border(shape(10, 2, basis * r), basis).unwrap());
        let frame = Frame::build(&system, &params).unwrap();
        (system, frame)
    };
    let mut frames =
        [build(2000, 3), build(1, 40), build(31, 9), build(32, 1), build(33, 20), build(5000, 1)];
    for (system, frame) in &mut frames {
        assert_eq!(frame.about().elimination, Elimination::Border);
        let rhs = system.apply(&fixtures::random_vector(system, 1));
        let step = frame.solve(&rhs).unwrap().step;
        let residual = system.residual(Ridge::None, system.norm2(Ridge::None), &step, &rhs);
        assert!(residual <= RESIDUAL, "{residual:e}");
    }
}

#[test]
fn memory_is_predicted_for_every_form() {
    let _card = alone();
    let Some(cuda) = common::cuda() else { return };
    for (name, system) in cases() {
        let (layout, system) = (Layout::of(&system), Arc::new(system));
        let needed = card_frame_bytes(&layout, Tuning::default());
        let before = cuda.free_memory().unwrap();
        match CudaFrame::build(&cuda, &system, Ridge::None, Budget::Bytes(needed - 1)) {
            Err(FrameError::Memory(error)) => assert_eq!(error.needed, needed, "{name}"),
            other => panic!("{name}: {:?}", other.map(|frame| frame.about())),
        }
        assert_eq!(cuda.free_memory().unwrap(), before, "{name}");
        let frame = CudaFrame::build(&cuda, &system, Ridge::None, Budget::Bytes(needed)).unwrap();
        assert!(frame.about().condition.is_finite());
    }
    // Large enough for pages to disappear in the sum.
    for system in [
        fixtures::well_conditioned(shape(180, 2, 4000)).unwrap(),
        fixtures::diagonal_border(shape(400, 2, 30_000)).unwrap(),
        fixtures::kronecker_border(shape(1000, 2, 60_000), 50).unwrap(),
    ] {
        let (layout, system) = (Layout::of(&system), Arc::new(system));
        let needed = card_frame_bytes(&layout, Tuning::default());
        // Code and library handles are loaded once a process.
        drop(CudaFrame::build(&cuda, &system, Ridge::None, Budget::Available).unwrap());
        let before = cuda.free_memory().unwrap();
        let frame = CudaFrame::build(&cuda, &system, Ridge::None, Budget::Available).unwrap();
        let taken = before - cuda.free_memory().unwrap();
        assert!(taken <= needed + (96 << 20), "{layout}: {taken} taken, {needed} predicted");
        assert!(2 * taken >= needed - (64 << 20), "{layout}: {taken} taken, {needed} predicted");
        drop(frame);
    }
    let dense = card_frame_bytes(&Layout::new(vec![0, 2], 60_000), Tuning::default());
    let kronecker = fixtures::kronecker_border(shape(1, 2, 60_000), 50).unwrap();
    let small = card_frame_bytes(&Layout::of(&kronecker), Tuning::default());
    assert!(small < 100 << 20 && dense > 60 << 30, "{small} and {dense}");
}

#[test]
fn failures_name_the_same_block_and_pivot_as_the_host() {
    let _card = shared();
    let Some(params) = card() else { return };
    let mut bad_diagonal = vec![4.0; 36];
    bad_diagonal[20] = -1.0;
    let bad_gram =
        Border::Kronecker { basis: 4, gram: fixtures::tridiagonal(4).iter().map(|g| -g).collect() };
    let coupled = |rows: Vec<f64>, border: Border| {
        let cross = Cross::Dense(vec![0.1, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]);
        System::new(Rows::Uniform { count: 2, dim: 1 }, 4, rows, cross, border).unwrap()
    };
    let identity = || Border::Kronecker { basis: 2, gram: vec![1.0, 0.0, 0.0, 1.0] };
    let mut negative = vec![4.0; 60];
    negative[33] = -1.0;
    let systems = [
        ("diagonal", ragged(Some(12), Border::Diagonal(negative))),
        ("diagonal, more rows", factored(Border::Diagonal(bad_diagonal))),
        ("Kronecker, more rows", factored(bad_gram)),
        ("too strong for a diagonal", coupled(vec![3.0, 3.0], Border::Diagonal(vec![1.0; 4]))),
        ("too strong for a Kronecker", coupled(vec![3.0, 3.0], identity())),
        ("a row and the border", coupled(vec![3.0, -2.0], Border::Diagonal(vec![1.0, 1.0, -1.0, 1.0]))),
    ];
    for (name, system) in systems {
        let system = Arc::new(system);
        let fails = |params: &Params| match Frame::build(&system, params) {
            Err(FrameError::NotPositiveDefinite { block, index, pivot, suggested }) => {
                assert!(suggested > 0.0, "{name}");
                (block, index, pivot, suggested)
            }
            other => panic!("{name}: {:?}", other.map(|frame| frame.about())),
        };
        let (host, seen) = (fails(&Params::default()), fails(&params));
        assert_eq!((host.0, host.1), (seen.0, seen.1), "{name}");
        assert!((host.2 - seen.2).abs() <= 1e-12 * host.2.abs(), "{name}: {} and {}", host.2, seen.2);
        if host.0 != Block::Border {
            let ridge = Ridge::Absolute { row: seen.3, border: 0.0 };
            let again = Frame::build(&system, &Params { ridge, ..params.clone() });
            assert!(
                !matches!(again, Err(FrameError::NotPositiveDefinite { block: Block::Row(_), .. })),
                "{name}"
            );
        }
    }
}
