use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};

/// Most basis functions of a shape.
pub const LARGEST_BASIS: usize = 9;

/// A curve or surface before it is placed in space: `f(t) = Bᵀφ(t)`, B a decoder of M x r.
///
/// | shape | d | basis φ(t) | M | coordinate |
/// |---|---|---|---|---|
/// | ray | 0 | 1 | 1 | none; its amplitude is free |
/// | line | 1 | 1, t | 2 | standard normal |
/// | arc | 1 | 1, t, t² | 3 | standard normal |
/// | circle | 1 | 1, sin 2πht, cos 2πht, h = 1..H | 1 + 2H | uniform on [0, 1), wraps |
/// | sphere | 2 | 1, x, y, z; degree 2 adds xy, yz, zx, x² − y², 3z² − 1 | 4 or 9 | uniform; (polar angle, azimuth) in radians |
/// | torus | 2 | {1, sin 2πu, cos 2πu} x {1, sin 2πv, cos 2πv} | 9 | uniform on [0, 1)², wraps twice |
/// | patch | 2 | 1, u, v, u², uv, v² | 6 | standard normal |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    Ray,
    Line,
    Arc,
    /// With the number of harmonics H, 1 to 3.
    Circle(usize),
    /// With the degree of its harmonics, 1 or 2.
    Sphere(usize),
    Torus,
    Patch,
}

/// Values of a basis and their derivatives by the coordinates, M used of each.
///
/// On the sphere the derivatives are along the tangent directions of growing polar angle and azimuth, both of unit
/// length, so that there is no singular point; see [`Shape::retract`].
#[derive(Clone, Copy, Debug)]
pub struct Jet {
    pub value: [f64; LARGEST_BASIS],
    pub first: [[f64; LARGEST_BASIS]; 2],
    /// ∂²/∂t₀², ∂²/∂t₀∂t₁, ∂²/∂t₁².
    pub second: [[f64; LARGEST_BASIS]; 3],
}

impl Shape {
    /// Every kind, the simplest first: ties go to what stands earlier.
    pub const ALL: [Self; 7] =
        [Self::Ray, Self::Line, Self::Arc, Self::Circle(1), Self::Sphere(1), Self::Torus, Self::Patch];

    /// d, the number of coordinates.
    pub fn dim(self) -> usize {
        match self {
            Self::Ray => 0,
            Self::Line | Self::Arc | Self::Circle(_) => 1,
            Self::Sphere(_) | Self::Torus | Self::Patch => 2,
        }
    }

    /// M, the number of basis functions. The first of them is 1.
    pub fn basis(self) -> usize {
        match self {
            Self::Ray => 1,
            Self::Line => 2,
            Self::Arc => 3,
            Self::Circle(harmonics) => 1 + 2 * harmonics,
            Self::Sphere(1) => 4,
            Self::Patch => 6,
            Self::Sphere(_) | Self::Torus => 9,
        }
    }

    /// Dimensions of the space that it fills at least.
    pub fn directions(self) -> usize {
        match self {
            Self::Ray | Self::Line => 1,
            Self::Arc | Self::Circle(_) => 2,
            Self::Sphere(_) | Self::Torus | Self::Patch => 3,
        }
    }

    /// Its name without the number of harmonics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ray => "ray",
            Self::Line => "line",
            Self::Arc => "arc",
            Self::Circle(_) => "circle",
            Self::Sphere(_) => "sphere",
            Self::Torus => "torus",
            Self::Patch => "patch",
        }
    }

    /// The simplest shape of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|shape| shape.name() == name)
    }

    /// Whether it is more than straight: neither ray nor line.
    pub fn is_curved(self) -> bool {
        !matches!(self, Self::Ray | Self::Line)
    }

    /// Whether an amplitude beside the coordinate means something: a straight or open shape only moves its coordinate.
    pub fn has_amplitude(self) -> bool {
        !matches!(self, Self::Line | Self::Arc | Self::Patch)
    }

    /// Most that the amplitude's standard deviation may be around 1. A curved shape with a free amplitude is only the
    /// space around it and would say nothing.
    pub fn largest_spread(self) -> f64 {
        match self {
            Self::Ray => 1.0,
            _ if self.has_amplitude() => 0.3,
            _ => 0.0,
        }
    }

    /// Energy ½t² of a normal coordinate; 0 of a uniform one.
    pub fn prior_energy(self, t: [f64; 2]) -> f64 {
        if self.is_normal() { 0.5 * t[..self.dim()].iter().map(|t| t * t).sum::<f64>() } else { 0.0 }
    }

    /// Whether coordinates are standard normal.
    pub fn is_normal(self) -> bool {
        matches!(self, Self::Line | Self::Arc | Self::Patch)
    }

    /// The precision c for which a coordinate known no better costs nothing: `½ log(1 + h/c)` is what a coordinate of
    /// precision h costs beside its energy, by Laplace's integral. 1 for a standard normal one, 2π for a turn, ½ on the
    /// sphere.
    pub fn prior_precision(self) -> f64 {
        match self {
            Self::Circle(_) | Self::Torus => TAU,
            Self::Sphere(_) => 0.5,
            _ => 1.0,
        }
    }

    /// The smoothness Gram S, which is diagonal: `tr(BᵀSB)` is the mean of ‖f″‖² (of the Laplacian on sphere and torus,
    /// of the thin plate on a patch), and 0 for constant and straight parts.
    pub fn smoothness(self) -> [f64; LARGEST_BASIS] {
        let mut s = [0.0; LARGEST_BASIS];
        match self {
            Self::Ray | Self::Line => {}
            Self::Arc => s[2] = 4.0,
            Self::Circle(harmonics) => {
                for h in 1..=harmonics {
                    let energy = (TAU * h as f64).powi(4) / 2.0;
                    (s[2 * h - 1], s[2 * h]) = (energy, energy);
                }
            }
            // (l(l + 1))² times the mean square of the harmonic.
            Self::Sphere(degree) => {
                s[1..4].fill(4.0 / 3.0);
                if degree > 1 {
                    s[4..7].fill(36.0 / 15.0);
                    (s[7], s[8]) = (36.0 * 4.0 / 15.0, 36.0 * 4.0 / 5.0);
                }
            }
            Self::Torus => {
                for (k, s) in s.iter_mut().enumerate() {
                    let (a, b) = (usize::from(k / 3 > 0), usize::from(k % 3 > 0));
                    *s = TAU.powi(4) * ((a + b) as f64).powi(2) / f64::from(1 << (a + b));
                }
            }
            Self::Patch => (s[3], s[4], s[5]) = (4.0, 2.0, 4.0),
        }
        s
    }

    /// The point that a step along the tangent leads to: turns wrap, and on the sphere the step is taken in the tangent
    /// plane and pulled back to the surface.
    pub fn retract(self, t: [f64; 2], step: [f64; 2]) -> [f64; 2] {
        match self {
            Self::Ray => t,
            Self::Line | Self::Arc => [t[0] + step[0], 0.0],
            Self::Circle(_) => [(t[0] + step[0]).rem_euclid(1.0), 0.0],
            Self::Patch => [t[0] + step[0], t[1] + step[1]],
            Self::Torus => [(t[0] + step[0]).rem_euclid(1.0), (t[1] + step[1]).rem_euclid(1.0)],
            Self::Sphere(_) => {
                let (normal, tangents) = sphere_frame(t);
                angles(std::array::from_fn(|k| {
                    normal[k] + step[0] * tangents[0][k] + step[1] * tangents[1][k]
                }))
            }
        }
    }

    /// φ and its derivatives at t.
    pub fn jet(self, t: [f64; 2]) -> Jet {
        let mut jet = Jet {
            value: [0.0; LARGEST_BASIS],
            first: [[0.0; LARGEST_BASIS]; 2],
            second: [[0.0; LARGEST_BASIS]; 3],
        };
        jet.value[0] = 1.0;
        let [u, v] = t;
        match self {
            Self::Ray => {}
            Self::Line => (jet.value[1], jet.first[0][1]) = (u, 1.0),
            Self::Arc => {
                (jet.value[1], jet.value[2]) = (u, u * u);
                (jet.first[0][1], jet.first[0][2]) = (1.0, 2.0 * u);
                jet.second[0][2] = 2.0;
            }
            Self::Circle(harmonics) => {
                for h in 1..=harmonics {
                    let w = TAU * h as f64;
                    let (sin, cos) = (w * u).sin_cos();
                    let (s, c) = (2 * h - 1, 2 * h);
                    (jet.value[s], jet.value[c]) = (sin, cos);
                    (jet.first[0][s], jet.first[0][c]) = (w * cos, -w * sin);
                    (jet.second[0][s], jet.second[0][c]) = (-w * w * sin, -w * w * cos);
                }
            }
            Self::Sphere(degree) => sphere(&mut jet, t, degree),
            Self::Torus => torus(&mut jet, t),
            Self::Patch => {
                jet.value[1..6].copy_from_slice(&[u, v, u * u, u * v, v * v]);
                jet.first[0][1..6].copy_from_slice(&[1.0, 0.0, 2.0 * u, v, 0.0]);
                jet.first[1][1..6].copy_from_slice(&[0.0, 1.0, 0.0, u, 2.0 * v]);
                (jet.second[0][3], jet.second[1][4], jet.second[2][5]) = (2.0, 1.0, 2.0);
            }
        }
        jet
    }

    /// Coordinates from which a search for the nearest point begins.
    pub fn starts(self) -> Vec<[f64; 2]> {
        let turn = |n: usize| (0..n).map(move |k| k as f64 / n as f64);
        match self {
            Self::Ray => vec![[0.0; 2]],
            Self::Line => vec![[0.0; 2]],
            Self::Arc => (-6..=6).map(|k| [f64::from(k) / 2.0, 0.0]).collect(),
            Self::Circle(harmonics) => turn(12 * harmonics).map(|t| [t, 0.0]).collect(),
            Self::Torus => turn(12).flat_map(|u| turn(12).map(move |v| [u, v])).collect(),
            Self::Patch => (-2..=2)
                .flat_map(|u| (-2..=2).map(move |v| [1.25 * f64::from(u), 1.25 * f64::from(v)]))
                .collect(),
            // Points of a Fibonacci lattice.
            Self::Sphere(_) => (0..48)
                .map(|k| {
                    let z = 1.0 - (2.0 * k as f64 + 1.0) / 48.0;
                    [z.acos(), (TAU * k as f64 * 0.618_033_988_749_894_9).rem_euclid(TAU)]
                })
                .collect(),
        }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Circle(harmonics) if *harmonics > 1 => write!(f, "circle of {harmonics} harmonics"),
            Self::Sphere(degree) if *degree > 1 => write!(f, "sphere of degree {degree}"),
            plain => f.write_str(plain.name()),
        }
    }
}

/// The unit vector of polar angle and azimuth.
pub fn on_sphere(t: [f64; 2]) -> [f64; 3] {
    let ((sin, cos), (sin_a, cos_a)) = (t[0].sin_cos(), t[1].sin_cos());
    [sin * cos_a, sin * sin_a, cos]
}

/// Polar angle and azimuth of a vector of any length; the pole for none.
pub fn angles(v: [f64; 3]) -> [f64; 2] {
    let flat = v[0].hypot(v[1]);
    [flat.atan2(v[2]), v[1].atan2(v[0]).rem_euclid(TAU)]
}

/// The unit vector and the tangents of growing polar angle and azimuth.
fn sphere_frame(t: [f64; 2]) -> ([f64; 3], [[f64; 3]; 2]) {
    let ((sin, cos), (sin_a, cos_a)) = (t[0].sin_cos(), t[1].sin_cos());
    ([sin * cos_a, sin * sin_a, cos], [[cos * cos_a, cos * sin_a, -sin], [-sin_a, cos_a, 0.0]])
}

/// For F on space, along `retract`: first `∇F·e`, second `eᵀ∇²F e' − (e·e')·∇F·n`.
fn sphere(jet: &mut Jet, t: [f64; 2], degree: usize) {
    let (n, e) = sphere_frame(t);
    let dot = |a: &[f64; 3], b: &[f64; 3]| a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
    let pairs = [(0, 0), (0, 1), (1, 1)];
    let mut put = |k: usize, value: f64, gradient: [f64; 3], hessian: [[f64; 3]; 3]| {
        jet.value[k] = value;
        for (first, e) in jet.first.iter_mut().zip(&e) {
            first[k] = dot(&gradient, e);
        }
        for (s, (a, b)) in pairs.into_iter().enumerate() {
            let bent: [f64; 3] = std::array::from_fn(|i| dot(&hessian[i], &e[b]));
            let drop = if a == b { dot(&gradient, &n) } else { 0.0 };
            jet.second[s][k] = dot(&e[a], &bent) - drop;
        }
    };
    let none = [[0.0; 3]; 3];
    for (k, value) in n.into_iter().enumerate() {
        put(k + 1, value, std::array::from_fn(|i| f64::from(u8::from(i == k))), none);
    }
    if degree < 2 {
        return;
    }
    let [x, y, z] = n;
    put(4, x * y, [y, x, 0.0], [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0; 3]]);
    put(5, y * z, [0.0, z, y], [[0.0; 3], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]);
    put(6, z * x, [z, 0.0, x], [[0.0, 0.0, 1.0], [0.0; 3], [1.0, 0.0, 0.0]]);
    put(7, x * x - y * y, [2.0 * x, -2.0 * y, 0.0], [[2.0, 0.0, 0.0], [0.0, -2.0, 0.0], [0.0; 3]]);
    put(8, 3.0 * z * z - 1.0, [0.0, 0.0, 6.0 * z], [[0.0; 3], [0.0; 3], [0.0, 0.0, 6.0]]);
}

fn torus(jet: &mut Jet, t: [f64; 2]) {
    let ring = |t: f64| {
        let (sin, cos) = (TAU * t).sin_cos();
        let w = TAU * TAU;
        ([1.0, sin, cos], [0.0, TAU * cos, -TAU * sin], [0.0, -w * sin, -w * cos])
    };
    let (u, v) = (ring(t[0]), ring(t[1]));
    for k in 0..9 {
        let (a, b) = (k / 3, k % 3);
        jet.value[k] = u.0[a] * v.0[b];
        (jet.first[0][k], jet.first[1][k]) = (u.1[a] * v.0[b], u.0[a] * v.1[b]);
        jet.second[0][k] = u.2[a] * v.0[b];
        jet.second[1][k] = u.1[a] * v.1[b];
        jet.second[2][k] = u.0[a] * v.2[b];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: [Shape; 10] = [
        Shape::Ray,
        Shape::Line,
        Shape::Arc,
        Shape::Circle(1),
        Shape::Circle(2),
        Shape::Circle(3),
        Shape::Sphere(1),
        Shape::Sphere(2),
        Shape::Torus,
        Shape::Patch,
    ];

    #[test]
    fn derivatives_are_those_of_the_values_along_the_retraction() {
        const H: f64 = 1e-4;
        for shape in EVERY {
            for t in [[0.3, 0.7], [1.1, 2.5], [1e-9, 0.4]] {
                let jet = shape.jet(t);
                let at = |a: f64, b: f64| shape.jet(shape.retract(t, [a, b])).value;
                for k in 0..shape.basis() {
                    let (here, pair) =
                        (jet.value[k], |step: [f64; 2]| (at(step[0], step[1])[k], at(-step[0], -step[1])[k]));
                    for (c, step) in [[H, 0.0], [0.0, H]].into_iter().enumerate().take(shape.dim()) {
                        let (up, down) = pair(step);
                        let (first, second) = ((up - down) / (2.0 * H), (up - 2.0 * here + down) / (H * H));
                        assert!((first - jet.first[c][k]).abs() < 3e-5, "{shape} {t:?} {c} {k}");
                        let said = jet.second[2 * c][k];
                        assert!(
                            (second - said).abs() < 1e-3 * (1.0 + said.abs()),
                            "{shape} {t:?}: {second} {said}"
                        );
                    }
                    if shape.dim() == 2 {
                        let mixed =
                            (at(H, H)[k] - at(H, -H)[k] - at(-H, H)[k] + at(-H, -H)[k]) / (4.0 * H * H);
                        let said = jet.second[1][k];
                        assert!((mixed - said).abs() < 1e-3 * (1.0 + said.abs()), "{shape}: {mixed} {said}");
                    }
                }
            }
        }
    }

    #[test]
    fn smoothness_is_the_mean_square_of_the_second_derivative() {
        for harmonics in 1..=3 {
            let shape = Shape::Circle(harmonics);
            for k in 0..shape.basis() {
                let steps = 64;
                let mean = (0..steps)
                    .map(|i| shape.jet([f64::from(i) / f64::from(steps), 0.0]).second[0][k].powi(2))
                    .sum::<f64>()
                    / f64::from(steps);
                assert!((mean - shape.smoothness()[k]).abs() < 1e-9 * (1.0 + mean), "{harmonics} {k}");
            }
        }
        assert_eq!(Shape::Torus.smoothness()[0], 0.0);
        assert!((Shape::Torus.smoothness()[1] - TAU.powi(4) / 2.0).abs() < 1e-9);
    }

    #[test]
    fn angles_and_unit_vectors_are_inverse() {
        for t in [[0.3, 0.1], [1.5, 3.0], [3.0, 6.0]] {
            let back = angles(on_sphere(t).map(|v| 7.0 * v));
            assert!((back[0] - t[0]).abs() < 1e-12 && (back[1] - t[1]).abs() < 1e-12);
        }
        assert_eq!(angles([0.0; 3]), [0.0, 0.0]);
    }
}
