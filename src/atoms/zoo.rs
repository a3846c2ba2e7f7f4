//! Planted data: what is in it is known, so that a fit can be held to it.
//!
//! Every case is `x = Σ (active atoms) f(t) + noise` in p dimensions, with atoms in subspaces turned at random and
//! independently of each other, from SplitMix64 and nothing else: the same numbers on every machine.

use std::f64::consts::TAU;

use super::Shape;
use super::shape::angles;
use crate::ops::splitmix::SplitMix64;

/// A kind of planted data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// One circle, on in every row, n = 400, p = 32, noise 0.05.
    Circle,
    /// Two circles, each on in half of the rows.
    TwoCircles,
    /// Four circles, each on in half of the rows.
    FourCircles,
    /// A circle and a line with an offset, each on in half of the rows.
    CircleAndLine,
    /// A sphere, on in every row.
    Sphere,
    /// A donut `((2 + cos v)cos u, (2 + cos v)sin u, sin v)`: a flat torus could not be told from two circles.
    Torus,
    /// Eight directions, each on in a fifth of the rows, with amplitudes between ½ and 1½.
    Rays,
    /// Nothing but noise.
    Noise,
    /// [`Self::Circle`] with noise 0.3.
    NoisyCircle,
    /// [`Self::Circle`] with p = 896 and n = 98.
    WideCircle,
    /// Two circles, both on in every row.
    CrossedCircles,
    /// A circle and a normal coordinate along a third direction, both on in every row.
    Cylinder,
    /// A normal distribution in two dimensions: as wide as a circle, and none.
    Plane,
}

/// What one row was made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Truth {
    /// Which atoms are on, with their coordinates as in [`Shape`]; a ray's amplitude stands in the first.
    pub active: Vec<(usize, [f64; 2])>,
}

/// Planted rows.
#[derive(Clone, Debug)]
pub struct Planted {
    /// p.
    pub width: usize,
    /// Row-major, the fit rows first.
    pub x: Vec<f64>,
    /// The same without noise.
    pub clean: Vec<f64>,
    pub truth: Vec<Truth>,
    pub shapes: Vec<Shape>,
    /// Rows to fit; the others are held out.
    pub fit: usize,
}

/// What the generator needs to know of a case.
struct Recipe {
    shapes: Vec<Shape>,
    rows: usize,
    width: usize,
    noise: f64,
    /// Share of the rows in which an atom is on.
    active: f64,
}

impl Case {
    /// All cases, in the order of the table.
    pub const ALL: [Self; 13] = [
        Self::Circle,
        Self::TwoCircles,
        Self::FourCircles,
        Self::CircleAndLine,
        Self::Sphere,
        Self::Torus,
        Self::Rays,
        Self::Noise,
        Self::NoisyCircle,
        Self::WideCircle,
        Self::CrossedCircles,
        Self::Cylinder,
        Self::Plane,
    ];

    /// As it stands in figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Circle => "circle",
            Self::TwoCircles => "two_circles",
            Self::FourCircles => "four_circles",
            Self::CircleAndLine => "circle_and_line",
            Self::Sphere => "sphere",
            Self::Torus => "torus",
            Self::Rays => "rays",
            Self::Noise => "noise",
            Self::NoisyCircle => "noisy_circle",
            Self::WideCircle => "wide_circle",
            Self::CrossedCircles => "crossed_circles",
            Self::Cylinder => "cylinder",
            Self::Plane => "plane",
        }
    }

    /// The shapes that it plants.
    pub fn plant_shapes(self) -> Vec<Shape> {
        self.recipe().shapes
    }

    fn recipe(self) -> Recipe {
        let (circle, base) = (Shape::Circle(1), |shapes: Vec<Shape>, active: f64| Recipe {
            shapes,
            rows: 400,
            width: 32,
            noise: 0.05,
            active,
        });
        match self {
            Self::Circle => base(vec![circle], 1.0),
            Self::TwoCircles => base(vec![circle; 2], 0.5),
            Self::FourCircles => base(vec![circle; 4], 0.5),
            Self::CircleAndLine => base(vec![circle, Shape::Line], 0.5),
            Self::Sphere => base(vec![Shape::Sphere(1)], 1.0),
            Self::Torus => base(vec![Shape::Torus], 1.0),
            Self::Rays => base(vec![Shape::Ray; 8], 0.2),
            Self::Noise => base(vec![], 1.0),
            Self::NoisyCircle => Recipe { noise: 0.3, ..base(vec![circle], 1.0) },
            Self::WideCircle => Recipe { rows: 98, width: 896, ..base(vec![circle], 1.0) },
            Self::CrossedCircles => base(vec![circle; 2], 1.0),
            Self::Cylinder => base(vec![circle, Shape::Line], 1.0),
            Self::Plane => base(vec![Shape::Line; 2], 1.0),
        }
    }

    /// The rows of a seed: those to fit, and half as many held out.
    pub fn plant(self, seed: u64) -> Planted {
        let Recipe { shapes, rows, width, noise, active } = self.recipe();
        let mut random = SplitMix64::new(seed ^ ((0x5eed_0000 + self as u64) << 20));
        let frames: Vec<Vec<f64>> =
            shapes.iter().map(|shape| frame(&mut random, embedding(*shape), width)).collect();
        let total = rows + rows / 2;
        let (mut x, mut clean, mut truth) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..total {
            let (mut row, mut made) = (vec![0.0; width], Truth::default());
            for (k, (shape, frame)) in shapes.iter().zip(&frames).enumerate() {
                let on = random.uniform() < active;
                let (point, t) = draw(&mut random, *shape);
                if on {
                    for (c, axis) in point.iter().zip(frame.chunks_exact(width)) {
                        row.iter_mut().zip(axis).for_each(|(x, a)| *x += c * a);
                    }
                    made.active.push((k, t));
                }
            }
            x.extend(row.iter().map(|x| x + noise * normal(&mut random)));
            clean.extend(row);
            truth.push(made);
        }
        Planted { width, x, clean, truth, shapes, fit: rows }
    }
}

impl Planted {
    /// The rows to fit, row-major.
    pub fn fit_rows(&self) -> &[f64] {
        &self.x[..self.fit * self.width]
    }

    /// The rows that a fit does not see, row-major.
    pub fn heldout_rows(&self) -> &[f64] {
        &self.x[self.fit * self.width..]
    }

    /// Explained variance of the true generator on the held-out rows: no fit can know more.
    pub fn ceiling(&self) -> f64 {
        super::measure::explained_variance(
            self.heldout_rows(),
            &self.clean[self.fit * self.width..],
            self.width,
        )
    }

    /// What the held-out rows were made from.
    pub fn heldout_truth(&self) -> &[Truth] {
        &self.truth[self.fit..]
    }
}

/// Dimensions of the space that a shape is drawn in.
fn embedding(shape: Shape) -> usize {
    match shape {
        Shape::Ray => 1,
        Shape::Line | Shape::Arc | Shape::Circle(_) => 2,
        Shape::Sphere(_) | Shape::Torus | Shape::Patch => 3,
    }
}

/// A point of the shape in its own space, and its coordinates.
fn draw(random: &mut SplitMix64, shape: Shape) -> (Vec<f64>, [f64; 2]) {
    match shape {
        Shape::Ray => {
            let amplitude = 0.5 + random.uniform();
            (vec![amplitude], [amplitude, 0.0])
        }
        Shape::Line => {
            let t = normal(random);
            (vec![1.0, t], [t, 0.0])
        }
        Shape::Arc => {
            let t = normal(random);
            (vec![t, t * t], [t, 0.0])
        }
        Shape::Circle(_) => {
            let t = random.uniform();
            (vec![(TAU * t).cos(), (TAU * t).sin()], [t, 0.0])
        }
        Shape::Sphere(_) => {
            let v: [f64; 3] = std::array::from_fn(|_| normal(random));
            let length = v.iter().map(|v| v * v).sum::<f64>().sqrt();
            (v.iter().map(|v| v / length).collect(), angles(v))
        }
        Shape::Torus => {
            let t = [random.uniform(), random.uniform()];
            let ((sin_u, cos_u), (sin_v, cos_v)) = ((TAU * t[0]).sin_cos(), (TAU * t[1]).sin_cos());
            (vec![(2.0 + cos_v) * cos_u, (2.0 + cos_v) * sin_u, sin_v], t)
        }
        Shape::Patch => {
            let t = [normal(random), normal(random)];
            (vec![t[0], t[1], 0.5 * (t[0] * t[0] - t[1] * t[1])], t)
        }
    }
}

/// A standard normal number, by Box and Muller.
pub fn normal(random: &mut SplitMix64) -> f64 {
    let (u, v) = (1.0 - random.uniform(), random.uniform());
    (-2.0 * u.ln()).sqrt() * (TAU * v).cos()
}

/// `count` orthonormal directions in `width` dimensions, by rows.
pub fn frame(random: &mut SplitMix64, count: usize, width: usize) -> Vec<f64> {
    let mut rows: Vec<f64> = Vec::with_capacity(count * width);
    while rows.len() < count * width {
        let mut row: Vec<f64> = (0..width).map(|_| normal(random)).collect();
        // Twice is enough (Kahan).
        for _ in 0..2 {
            for before in rows.chunks_exact(width) {
                let along: f64 = before.iter().zip(&row).map(|(a, b)| a * b).sum();
                row.iter_mut().zip(before).for_each(|(r, b)| *r -= along * b);
            }
        }
        let length = row.iter().map(|v| v * v).sum::<f64>().sqrt();
        if length > 1e-6 {
            rows.extend(row.iter().map(|v| v / length));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_the_recipe_and_repeat() {
        for case in Case::ALL {
            let planted = case.plant(3);
            assert_eq!(planted.x, case.plant(3).x, "{case:?}");
            assert_ne!(planted.x, case.plant(4).x, "{case:?}");
            assert_eq!(planted.x.len(), planted.truth.len() * planted.width);
            assert_eq!(planted.heldout_truth().len(), planted.fit / 2);
        }
        let one = Case::Circle.plant(0);
        for row in one.clean.chunks_exact(one.width) {
            assert!((row.iter().map(|v| v * v).sum::<f64>() - 1.0).abs() < 1e-12);
        }
        assert!((one.ceiling() - 1.0 / 1.08).abs() < 0.01, "{}", one.ceiling());
    }
}
