//! Bundle adjustment of a real problem, against an independent solver: dual numbers for the derivatives, a dense
//! matrix of the cameras by faer, its own loop and its own reader.

mod common;

use std::ops::{Add, Div, Mul, Sub};
use std::path::Path;

use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

use lapidary::arrow::bundle::{Bundle, Observation};
use lapidary::arrow::{Budget, Outcome, Problem, Vector, bundle, newton};

#[test]
fn the_newton_loop_reaches_the_independent_minimum() {
    let Some(path) = common::data("bal/problem-49-7776-pre.txt") else { return };
    let (mut problem, start) = bundle::read(&path).unwrap();
    assert_eq!((problem.cameras(), problem.points(), problem.observations().len()), (49, 7776, 31843));
    assert!((problem.objective(&start) - 850_912.46).abs() < 0.01);
    let summary = newton(&mut problem, start, &bundle::params()).unwrap();
    println!(
        "cost {:.6}, {} tries, {} accepted, {:.2} s",
        summary.objective,
        summary.tries,
        summary.accepts,
        summary.time.as_secs_f64()
    );
    assert_eq!(summary.outcome, Outcome::Converged);
    assert!(summary.tries > summary.accepts, "no step was rejected");
    let reference = reference(&path);
    println!("independent {reference:.6}");
    assert!((summary.objective / reference - 1.0).abs() < 1e-6, "{} and {reference}", summary.objective);
}

#[test]
fn a_linearisation_that_does_not_fit_is_refused_before_it_is_made() {
    let seen = |point| Observation { camera: 0, point, pixel: [1.0, 2.0] };
    let problem = Bundle::new(1, 2, vec![seen(0), seen(1)]);
    let needed = problem.linearisation_bytes();
    // 6 x (9 + 3 + 1) and 9 x 10 numbers, and for each observation a camera, its block and its gradient.
    assert_eq!(needed, 8 * (6 * 13 + 90 + 2 * (1 + 81 + 9)));
    let z = Vector { row: vec![1.0; 6], border: vec![1.0; 9] };
    let error = problem.clone().with_budget(Budget::Bytes(needed - 1)).linearise(&z).err().unwrap();
    let text = error.to_string();
    assert!(text.contains(&format!("needs {needed} bytes (linearising 2 points and 1 cameras)")), "{text}");
    assert!(problem.with_budget(Budget::Bytes(needed)).linearise(&z).is_ok());
}

#[test]
fn bad_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (text, expected) in [
        ("", "ends before the number of cameras"),
        ("1 x", "`x` stands where the number of points"),
        ("1 0 1", "no cameras, no points"),
        ("1 1 1\n0 3 1 2", "the point of observation 0 is 3, and there are only 1"),
        ("1 1 1\n0 0 1 inf", "`inf` stands where y of observation 0"),
        ("1 1 1\n0 0 1 2\n1 2 3", "ends before a number of camera 0"),
        ("2 1 1\n0 0 1 2", "camera 1 is in no observation"),
        ("1 3 2\n0 0 1 2\n0 2 1 2", "point 1 is in no observation"),
        ("1 1 18446744073709551615\n0 0 1 2", "ends before the camera of observation 1"),
    ] {
        let path = folder.path().join("bundle.txt");
        std::fs::write(&path, text).unwrap();
        let error = bundle::read(&path).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("bundle.txt"), "{error:?} lacks {expected:?}");
    }
    assert!(bundle::read(&folder.path().join("none")).is_err());
}

/// A number and its derivatives by 9 camera and 3 point parameters.
#[derive(Clone, Copy)]
struct Dual {
    v: f64,
    d: [f64; 12],
}

impl Dual {
    fn new(v: f64, index: usize) -> Self {
        let mut d = [0.0; 12];
        d[index] = 1.0;
        Self { v, d }
    }

    fn map(self, v: f64, slope: f64) -> Self {
        Self { v, d: self.d.map(|d| slope * d) }
    }

    fn zip(self, other: Self, v: f64, a: f64, b: f64) -> Self {
        Self { v, d: std::array::from_fn(|i| a * self.d[i] + b * other.d[i]) }
    }
}

impl Add for Dual {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        self.zip(o, self.v + o.v, 1.0, 1.0)
    }
}
impl Sub for Dual {
    type Output = Self;
    fn sub(self, o: Self) -> Self {
        self.zip(o, self.v - o.v, 1.0, -1.0)
    }
}
impl Mul for Dual {
    type Output = Self;
    fn mul(self, o: Self) -> Self {
        self.zip(o, self.v * o.v, o.v, self.v)
    }
}
impl Div for Dual {
    type Output = Self;
    fn div(self, o: Self) -> Self {
        self.zip(o, self.v / o.v, 1.0 / o.v, -self.v / (o.v * o.v))
    }
}

fn residual(camera: &[f64], point: &[f64], seen: [f64; 2]) -> [Dual; 2] {
    let c: [Dual; 9] = std::array::from_fn(|i| Dual::new(camera[i], i));
    let x: [Dual; 3] = std::array::from_fn(|i| Dual::new(point[i], 9 + i));
    let number = |v: f64| Dual { v, d: [0.0; 12] };
    let dot = |a: [Dual; 3], b: [Dual; 3]| a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
    let squared = dot([c[0], c[1], c[2]], [c[0], c[1], c[2]]);
    let theta = squared.map(squared.v.sqrt(), 0.5 / squared.v.sqrt());
    let axis = [c[0] / theta, c[1] / theta, c[2] / theta];
    let (sin, cos) = (theta.map(theta.v.sin(), theta.v.cos()), theta.map(theta.v.cos(), -theta.v.sin()));
    let along = dot(axis, x) * (number(1.0) - cos);
    let p: [Dual; 3] = std::array::from_fn(|i| {
        let (j, k) = ((i + 1) % 3, (i + 2) % 3);
        x[i] * cos + (axis[j] * x[k] - axis[k] * x[j]) * sin + axis[i] * along + c[3 + i]
    });
    let q = [number(0.0) - p[0] / p[2], number(0.0) - p[1] / p[2]];
    let n = q[0] * q[0] + q[1] * q[1];
    let scale = c[6] * (number(1.0) + n * (c[7] + c[8] * n));
    [scale * q[0] - number(seen[0]), scale * q[1] - number(seen[1])]
}

struct Reference {
    /// (camera, point, pixel), in the order of the points.
    observations: Vec<(usize, usize, [f64; 2])>,
    cameras: Vec<f64>,
    points: Vec<f64>,
}

/// The minimum of ½Σr² by Levenberg-Marquardt with a diagonal ridge that changes tenfold.
fn reference(path: &Path) -> f64 {
    let text = std::fs::read_to_string(path).unwrap();
    let numbers: Vec<f64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [cameras, points, count] = [0, 1, 2].map(|i| numbers[i] as usize);
    let mut observations: Vec<_> = numbers[3..3 + 4 * count]
        .chunks_exact(4)
        .map(|o| (o[0] as usize, o[1] as usize, [o[2], o[3]]))
        .collect();
    observations.sort_by_key(|o| o.1);
    let rest = &numbers[3 + 4 * count..];
    let mut state = Reference {
        observations,
        cameras: rest[..9 * cameras].to_vec(),
        points: rest[9 * cameras..9 * cameras + 3 * points].to_vec(),
    };
    let (mut ridge, mut cost, mut small) = (1e-4, state.cost(), 0);
    for _ in 0..200 {
        let Some((cameras, points)) = state.moved(ridge) else {
            ridge *= 10.0;
            continue;
        };
        let next = Reference { cameras, points, observations: state.observations.clone() };
        let value = next.cost();
        if value < cost {
            small = if cost - value < 1e-9 * cost { small + 1 } else { 0 };
            (state, cost, ridge) = (next, value, (ridge * 0.1).max(1e-9));
            if small == 3 {
                return cost;
            }
        } else {
            ridge *= 10.0;
        }
    }
    cost
}

impl Reference {
    fn residual(&self, (camera, point, seen): (usize, usize, [f64; 2])) -> [Dual; 2] {
        residual(&self.cameras[9 * camera..9 * camera + 9], &self.points[3 * point..3 * point + 3], seen)
    }

    fn cost(&self) -> f64 {
        self.observations.iter().flat_map(|o| self.residual(*o)).map(|r| 0.5 * r.v * r.v).sum()
    }

    /// Cameras and points after one damped step, where the ridge is enough for one.
    fn moved(&self, ridge: f64) -> Option<(Vec<f64>, Vec<f64>)> {
        let p = self.cameras.len();
        let (mut s, mut b) = (Mat::<f64>::zeros(p, p), Mat::<f64>::zeros(p, 1));
        let by_point: Vec<&[(usize, usize, [f64; 2])]> =
            self.observations.chunk_by(|a, b| a.1 == b.1).collect();
        let rows: Vec<Vec<(usize, [Dual; 2])>> =
            by_point.iter().map(|seen| seen.iter().map(|o| (9 * o.0, self.residual(*o))).collect()).collect();
        for (at, r) in rows.iter().flatten().flat_map(|(at, rs)| rs.map(|r| (*at, r))) {
            for i in 0..9 {
                b[(at + i, 0)] -= r.d[i] * r.v;
                (0..9).for_each(|j| s[(at + i, at + j)] += r.d[i] * r.d[j]);
            }
        }
        (0..p).for_each(|i| s[(i, i)] *= 1.0 + ridge);
        let eliminated: Vec<_> = rows.iter().map(|rows| eliminate(rows, ridge)).collect();
        for (inverse, gradient, crosses) in &eliminated {
            for (at, w) in crosses {
                let wv = w * inverse;
                let part = &wv * gradient;
                (0..9).for_each(|i| b[(at + i, 0)] -= part[(i, 0)]);
                for (other, w) in crosses {
                    let part = &wv * w.transpose();
                    (0..9).for_each(|i| (0..9).for_each(|j| s[(at + i, other + j)] -= part[(i, j)]));
                }
            }
        }
        let step = s.llt(Side::Lower).ok()?.solve(&b);
        let cameras = (0..p).map(|i| self.cameras[i] + step[(i, 0)]).collect();
        let mut points = self.points.clone();
        for (seen, (inverse, gradient, crosses)) in by_point.iter().zip(&eliminated) {
            let mut right = gradient.clone();
            for (at, w) in crosses {
                right -= w.transpose() * step.submatrix(*at, 0, 9, 1);
            }
            let move_by = inverse * &right;
            (0..3).for_each(|i| points[3 * seen[0].1 + i] += move_by[(i, 0)]);
        }
        Some((cameras, points))
    }
}

type Eliminated = (Mat<f64>, Mat<f64>, Vec<(usize, Mat<f64>)>);

/// V⁻¹, −gradient, and the 9 x 3 coupling to each camera of one point.
fn eliminate(rows: &[(usize, [Dual; 2])], ridge: f64) -> Eliminated {
    let (mut v, mut gradient) = (Mat::<f64>::zeros(3, 3), Mat::<f64>::zeros(3, 1));
    let mut crosses = Vec::new();
    for (at, rs) in rows {
        let mut w = Mat::<f64>::zeros(9, 3);
        for r in rs {
            for i in 0..3 {
                gradient[(i, 0)] -= r.d[9 + i] * r.v;
                (0..3).for_each(|j| v[(i, j)] += r.d[9 + i] * r.d[9 + j]);
                (0..9).for_each(|j| w[(j, i)] += r.d[j] * r.d[9 + i]);
            }
        }
        crosses.push((*at, w));
    }
    (0..3).for_each(|i| v[(i, i)] *= 1.0 + ridge);
    let inverse = v.llt(Side::Lower).unwrap().solve(Mat::<f64>::identity(3, 3));
    (inverse, gradient, crosses)
}
