use std::sync::Arc;

use lapidary::arrow::fixtures::{self, SMALL};
use lapidary::arrow::{
    Backend, Border, Cross, Linearisation, NewtonError, NewtonParams, Outcome, Problem, Quadratic, Rows,
    Stop, System, Vector, bundle, newton,
};

use super::*;

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
    let _card = shared();
    let Some(params) = card() else { return };
    let problems: [(&str, &dyn Fn() -> Case); 5] = [
        ("well conditioned", &|| quadratic(fixtures::well_conditioned(shape(30, 2, 90)).unwrap())),
        ("indefinite", &|| quadratic(fixtures::indefinite().unwrap())),
        ("diagonal border", &|| quadratic(fixtures::diagonal_border(shape(30, 2, 90)).unwrap())),
        ("Kronecker border", &|| quadratic(fixtures::kronecker_border(shape(30, 2, 90), 9).unwrap())),
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
    let _card = shared();
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
    let _card = shared();
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

/// From a ridge on, so that there are several tries and several frames.
#[test]
fn a_quadratic_brings_scalars_down_and_its_point_at_the_end() {
    let _card = shared();
    let Some(params) = card() else { return };
    let systems = [
        ("dense", fixtures::well_conditioned(shape(40, 2, 300)).unwrap()),
        ("factored, dense border", factored(Border::Dense(fixtures::tridiagonal(36)))),
        ("diagonal", fixtures::diagonal_border(shape(40, 2, 300)).unwrap()),
        ("Kronecker", fixtures::kronecker_border(shape(40, 2, 300), 10).unwrap()),
        ("indefinite", fixtures::indefinite().unwrap()),
    ];
    for (name, system) in systems {
        let size = (system.unknowns() + system.border()) as u64;
        let (border, structured) =
            (system.border_hessian().len() as u64, !matches!(system.border_hessian(), Border::Dense(_)));
        let slabs = (system.row_hessian().len() + system.cross().len()) as u64 + border;
        let (mut problem, start) = quadratic(system);
        let backend = params.backend.clone();
        let base = NewtonParams { backend, tries: 16, first_ridge: 1e-2, ..NewtonParams::default() };
        let run = |problem: &mut dyn Problem| newton(problem, start.clone(), &base).unwrap();
        // Warm: handles, buffers and the shape of the blocks are there the second time.
        run(problem.as_mut());
        let summary = run(problem.as_mut());
        let (counts, tries) = (summary.telemetry.counts, u64::from(summary.tries));
        assert!(tries > 2, "{name}: {tries} tries");
        // Nine numbers of the start and of each try; six words of verdict a frame, and of a failed block its pivots.
        let most = 8 * (size + 9 * (tries + 1)) + 24 * tries + 8 * size * (tries - summary.builds);
        assert!(counts.bytes_down >= 8 * (size + 9) && counts.bytes_down <= most, "{name}: {counts:?}");
        if summary.builds == tries {
            assert!(counts.bytes_down <= 8 * size + 100 * (tries + 1), "{name}: {counts:?}");
        }
        // The slabs once, b, diagonal and start, what is cleared beforehand; a structured border's root each frame.
        let roots = if structured { 8 * border * tries } else { 0 };
        assert!(counts.bytes_up <= 8 * (slabs + 3 * size) + roots, "{name}: {counts:?}");
    }
}

#[test]
fn a_quadratic_on_the_card_ends_where_the_hosts_does() {
    let _card = shared();
    let Some(params) = card() else { return };
    for (name, system) in cases().into_iter().filter(|(name, _)| !name.starts_with("condition")) {
        let system = Arc::new(system);
        let run = |backend: Backend| {
            let rhs = fixtures::random_vector(&system, 1);
            let mut problem = Quadratic { hessian: system.clone(), rhs };
            let params = NewtonParams { backend, first_ridge: 1e-3, ..NewtonParams::default() };
            newton(&mut problem, fixtures::random_vector(&system, 2), &params).unwrap()
        };
        let (seen, host) = (run(params.backend.clone()), run(Backend::Host));
        assert_eq!(
            (seen.outcome, seen.tries, seen.accepts),
            (host.outcome, host.tries, host.accepts),
            "{name}"
        );
        assert!((seen.objective - host.objective).abs() <= 1e-12 * host.objective.abs(), "{name}");
        let mut apart = seen.z.clone();
        apart.add_scaled(-1.0, &host.z);
        assert!(apart.norm() <= 1e-8 * host.z.norm(), "{name}: {:e}", apart.norm());
    }
}

#[test]
fn a_quadratic_starts_where_it_is_finite() {
    let _card = shared();
    let Some(params) = card() else { return };
    let (mut problem, mut start) = quadratic(fixtures::well_conditioned(SMALL).unwrap());
    start.border[1] = f64::NAN;
    let params = NewtonParams { backend: params.backend, ..NewtonParams::default() };
    let error = newton(problem.as_mut(), start, &params).unwrap_err();
    assert!(matches!(error, NewtonError::Start { value } if value.is_nan()), "{error}");
}
