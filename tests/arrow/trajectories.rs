use std::sync::Arc;
use std::time::Duration;

use lapidary::arrow::{
    Block, Border, Cross, Linearisation, NewtonError, NewtonParams, Outcome, Problem, Quadratic, Reuse, Rows,
    System, Vector, fixtures, newton,
};

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn quadratic(system: System) -> (Quadratic, Vector) {
    let rhs = fixtures::random_vector(&system, 1);
    let start = Vector::zeros(&system);
    (Quadratic { hessian: Arc::new(system), rhs }, start)
}

#[test]
fn a_quadratic_takes_one_step() {
    for published in [false, true] {
        let (mut problem, start) = quadratic(fixtures::well_conditioned(fixtures::SMALL).unwrap());
        let params = if published { NewtonParams::published() } else { NewtonParams::default() };
        let summary = newton(&mut problem, start, &params).unwrap();
        assert_eq!(summary.outcome, Outcome::Converged);
        assert_eq!((summary.tries, summary.accepts, summary.builds), (1, 1, 1));
        assert!(summary.worst.is_none());
    }
}

#[test]
fn blocks_that_are_not_positive_definite_raise_the_ridge() {
    let (mut problem, start) = quadratic(fixtures::indefinite().unwrap());
    // The lowest eigenvalue is −1.5: 1e-6·4^k passes it at k = 11, the twelfth ridge. From there on the objective,
    // which has no minimum, falls for ever.
    let params = NewtonParams { tries: 13, ..NewtonParams::published() };
    let summary = newton(&mut problem, start, &params).unwrap();
    assert_eq!(summary.outcome, Outcome::IterationLimit);
    assert_eq!(summary.tries, 13);
    assert_eq!(summary.accepts, 1);
    let worst = summary.worst.unwrap();
    assert_eq!((worst.block, worst.index), (Block::Row(3), 1));
    assert!(worst.pivot < 0.0);
}

/// `φ = Σ √(1 + z²)`: Newton overshoots far from the minimum, so the first steps are rejected.
struct Hyperbola {
    unknowns: usize,
}

impl Problem for Hyperbola {
    fn objective(&mut self, z: &Vector) -> f64 {
        z.values().map(|v| (1.0 + v * v).sqrt()).sum()
    }

    fn linearise(&mut self, z: &Vector) -> Result<Linearisation, Failed> {
        let slope = |v: &f64| v / (1.0 + v * v).sqrt();
        let curve = |v: &f64| (1.0 + v * v).powf(-1.5);
        let gradient =
            Vector { row: z.row.iter().map(slope).collect(), border: z.border.iter().map(slope).collect() };
        let rows = Rows::Uniform { count: self.unknowns, dim: 1 };
        let p = z.border.len();
        let cross = Cross::Dense(vec![0.0; self.unknowns * p]);
        let border = Border::Diagonal(z.border.iter().map(curve).collect());
        let hessian = System::new(rows, p, z.row.iter().map(curve).collect(), cross, border)?;
        Ok(Linearisation { gradient, hessian: Arc::new(hessian) })
    }
}

#[test]
fn rejected_steps_shrink_until_they_fit() {
    let start = Vector { row: vec![3.0, -2.0], border: vec![4.0, 1.0, -3.0] };
    let summary = newton(&mut Hyperbola { unknowns: 2 }, start.clone(), &NewtonParams::default()).unwrap();
    assert_eq!(summary.outcome, Outcome::Converged);
    assert!(summary.tries > summary.accepts, "{} tries", summary.tries);
    assert!(summary.z.norm() < 1e-6 && (summary.objective - 5.0).abs() < 1e-12);
    // The same run again: the same trajectory, bit for bit.
    let again = newton(&mut Hyperbola { unknowns: 2 }, start, &NewtonParams::default()).unwrap();
    assert_eq!((again.tries, again.accepts, again.z), (summary.tries, summary.accepts, summary.z));
}

#[test]
fn scaling_the_objective_changes_no_step() {
    struct Scaled(Hyperbola);
    const FACTOR: f64 = 1024.0;
    impl Problem for Scaled {
        fn objective(&mut self, z: &Vector) -> f64 {
            FACTOR * self.0.objective(z)
        }
        fn linearise(&mut self, z: &Vector) -> Result<Linearisation, Failed> {
            let Linearisation { gradient, hessian } = self.0.linearise(z)?;
            let Border::Diagonal(border) = hessian.border_hessian() else { unreachable!() };
            let scale = |v: &[f64]| v.iter().map(|v| FACTOR * v).collect::<Vec<f64>>();
            let rows = Rows::Ragged(hessian.offsets().to_vec());
            let (cross, border) = (hessian.cross().clone(), Border::Diagonal(scale(border)));
            let p = hessian.border();
            let hessian = System::new(rows, p, scale(hessian.row_hessian()), cross, border)?;
            Ok(Linearisation { gradient: gradient.scaled(FACTOR), hessian: Arc::new(hessian) })
        }
    }
    let start = Vector { row: vec![3.0, -2.0], border: vec![4.0, 1.0, -3.0] };
    let params = NewtonParams::default();
    let plain = newton(&mut Hyperbola { unknowns: 2 }, start.clone(), &params).unwrap();
    let scaled = newton(&mut Scaled(Hyperbola { unknowns: 2 }), start, &params).unwrap();
    assert_eq!((plain.tries, plain.accepts, plain.z), (scaled.tries, scaled.accepts, scaled.z));
}

#[test]
fn kept_frames_save_builds() {
    let start = Vector { row: vec![0.3, -0.2], border: vec![0.4, 0.1, -0.3] };
    let run = |reuse| {
        let params = NewtonParams { reuse, ..NewtonParams::default() };
        newton(&mut Hyperbola { unknowns: 2 }, start.clone(), &params).unwrap()
    };
    let (fresh, kept) = (run(Reuse::SameHessian), run(Reuse::WhileContracting(0.5)));
    assert_eq!((fresh.outcome, kept.outcome), (Outcome::Converged, Outcome::Converged));
    assert_eq!(fresh.builds, u64::from(fresh.tries));
    assert!(kept.builds < u64::from(kept.tries), "{} builds in {} tries", kept.builds, kept.tries);
}

#[test]
fn every_outcome_has_its_name() {
    let start = Vector { row: vec![0.3, -0.2], border: vec![0.4] };
    let run = |problem: &mut dyn Problem, params: &NewtonParams| {
        newton(problem, start.clone(), params).unwrap().outcome
    };
    let limited = NewtonParams { tries: 1, ..NewtonParams::default() };
    assert_eq!(run(&mut Hyperbola { unknowns: 2 }, &limited), Outcome::IterationLimit);
    let late = NewtonParams { time: Some(Duration::ZERO), ..NewtonParams::default() };
    assert_eq!(run(&mut Hyperbola { unknowns: 2 }, &late), Outcome::TimeLimit);

    /// An objective that rises wherever a step leads: the model lies and no ridge helps.
    struct Liar(Hyperbola, bool);
    impl Problem for Liar {
        fn objective(&mut self, z: &Vector) -> f64 {
            if std::mem::replace(&mut self.1, true) { f64::NAN } else { self.0.objective(z) }
        }
        fn linearise(&mut self, z: &Vector) -> Result<Linearisation, Failed> {
            self.0.linearise(z)
        }
    }
    let outcome = run(&mut Liar(Hyperbola { unknowns: 2 }, false), &NewtonParams::default());
    assert_eq!(outcome, Outcome::RidgeLimit);
}

/// `φ = offset + z·z` with one row and one border unknown.
struct Bowl {
    offset: f64,
    /// Objectives that are told before they become NaN, and linearisations that succeed.
    left: (u32, u32),
}

impl Problem for Bowl {
    fn objective(&mut self, z: &Vector) -> f64 {
        let Some(left) = self.left.0.checked_sub(1) else { return f64::NAN };
        self.left.0 = left;
        self.offset + z.dot(z)
    }

    fn linearise(&mut self, z: &Vector) -> Result<Linearisation, Failed> {
        self.left.1 = self.left.1.checked_sub(1).ok_or("no derivative")?;
        let rows = Rows::Uniform { count: 1, dim: 1 };
        // Twice the true curvature: each step halves the gradient.
        let hessian = System::new(rows, 1, vec![4.0], Cross::Dense(vec![0.0]), Border::Diagonal(vec![4.0]))?;
        Ok(Linearisation { gradient: z.scaled(2.0), hessian: Arc::new(hessian) })
    }

    fn gradient(&mut self, z: &Vector) -> Result<Vector, Failed> {
        Ok(z.scaled(2.0))
    }
}

#[test]
fn a_problem_that_breaks_after_a_rejected_step_is_an_error() {
    let start = Vector { row: vec![1.0], border: vec![1.0] };
    let params = NewtonParams { reuse: Reuse::WhileContracting(0.9), ..NewtonParams::default() };
    let error = newton(&mut Bowl { offset: 0.0, left: (2, 1) }, start, &params).unwrap_err();
    assert_eq!(error.to_string(), "the problem cannot be linearised after 2 tries: no derivative");
}

#[test]
fn the_last_gradient_is_that_of_the_last_point() {
    let start = Vector { row: vec![1e-5], border: vec![-1e-5] };
    let summary = newton(&mut Bowl { offset: 1e6, left: (9, 9) }, start, &NewtonParams::default()).unwrap();
    assert_eq!((summary.outcome, summary.accepts), (Outcome::Converged, 1));
    assert_eq!(summary.gradient_norm, summary.z.scaled(2.0).norm());
    assert_eq!(summary.z.row, [5e-6]);
}

#[test]
fn a_step_that_overflows_is_a_failed_try() {
    /// A curvature next to nothing: without a ridge the step leaves f64.
    struct Flat;
    impl Problem for Flat {
        fn objective(&mut self, z: &Vector) -> f64 {
            1e200 * z.row[0]
        }
        fn linearise(&mut self, _: &Vector) -> Result<Linearisation, Failed> {
            let rows = Rows::Uniform { count: 1, dim: 1 };
            let (cross, border) = (Cross::Dense(vec![0.0]), Border::Diagonal(vec![1.0]));
            let hessian = System::new(rows, 1, vec![1e-200], cross, border)?;
            let gradient = Vector { row: vec![1e200], border: vec![0.0] };
            Ok(Linearisation { gradient, hessian: Arc::new(hessian) })
        }
    }
    let params = NewtonParams { tries: 2, ..NewtonParams::published() };
    let start = Vector { row: vec![0.0], border: vec![0.0] };
    let summary = newton(&mut Flat, start, &params).unwrap();
    assert!(!summary.trace[0].accepted && summary.trace[1].ridge > 0.0);
}

#[test]
fn a_bad_start_is_an_error() {
    let start = Vector { row: vec![f64::NAN, 0.0], border: vec![0.0] };
    let error = newton(&mut Hyperbola { unknowns: 2 }, start, &NewtonParams::default()).unwrap_err();
    assert!(matches!(error, NewtonError::Start { value } if value.is_nan()));
    struct Broken;
    impl Problem for Broken {
        fn objective(&mut self, _: &Vector) -> f64 {
            1.0
        }
        fn linearise(&mut self, _: &Vector) -> Result<Linearisation, Failed> {
            Err("no derivative".into())
        }
    }
    let error = newton(&mut Broken, Vector::default(), &NewtonParams::default()).unwrap_err();
    assert_eq!(error.to_string(), "the problem cannot be linearised after 0 tries: no derivative");
}
