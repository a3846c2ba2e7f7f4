//! Layers, and the states of the reference in f64 that stages start from.

use std::sync::LazyLock;

use faer::Mat;

use super::common;
use crate::blr::rank::{Budget, rank_for};
use crate::compress::context::Context;
use crate::compress::encode::{Params, product};
use crate::compress::factors::Path;
use crate::compress::gauge::{rotate_to_signs, signs_and_magnitudes};
use crate::compress::latents::{Latents, Spectrum};
use crate::compress::metric::{Metric, Problem};
use crate::compress::scales::scale_sweeps;
use crate::compress::tensor::Grams;
use crate::ops::splitmix::SplitMix64;

pub const DAMPING: f64 = 0.03;

/// A layer and what the reference makes of it on the way to one and two paths.
pub struct Layer {
    pub name: String,
    /// Numbers of f32
    pub weight: Mat<f64>,
    pub grams: Grams,
    pub context: Context,
    pub starts: [Start; 2],
}

/// What the reference knows when the last path of a candidate starts.
pub struct Start {
    pub rank: usize,
    /// What that path is to explain
    pub left_over: Mat<f64>,
    pub latents: Latents,
    pub rotated: Latents,
    /// The paths before it, fitted, and its signs and magnitudes
    pub paths: Vec<Path>,
}

/// The fixture of golden values, a wide layer and a tall one.
pub static LAYERS: LazyLock<Vec<Layer>> = LazyLock::new(|| {
    let mut layers: Vec<Layer> = golden().into_iter().collect();
    layers.extend([(192, 320), (320, 192)].map(|(m, n)| {
        let rank = |paths| rank_for(m, n, paths, Budget { bits: 1.0, factor: 1.0 }).unwrap().rank;
        Layer::new(format!("{m}x{n}"), made_up_weight(m, n, 3), made_up_grams(n, 4), [1, 2].map(rank))
    }));
    layers
});

impl Layer {
    fn new(name: String, weight: Mat<f64>, grams: Grams, ranks: [usize; 2]) -> Self {
        let context = Context::build(&grams.fit, DAMPING).unwrap();
        let weight = Mat::from_fn(weight.nrows(), weight.ncols(), |i, j| f64::from(weight[(i, j)] as f32));
        let problem = Problem::new(weight.clone(), &context);
        let starts = [1, 2].map(|count| {
            let rank = ranks[count - 1];
            let one = Start::new(&problem, Vec::new(), rank);
            if count == 1 {
                return one;
            }
            let mut paths = one.paths;
            let mut metric = Metric::of(&problem, &paths);
            scale_sweeps(&problem, &mut paths, &mut metric, Params::nvg().scale_sweeps);
            Start::new(&problem, paths, rank)
        });
        drop(problem);
        Self { name, weight, grams, context, starts }
    }

    pub fn problem(&self) -> Problem<'_> {
        Problem::new(self.weight.clone(), &self.context)
    }
}

impl Start {
    fn new(problem: &Problem<'_>, mut paths: Vec<Path>, rank: usize) -> Self {
        let mut left_over = problem.weight.clone();
        if !paths.is_empty() {
            left_over -= product(&paths);
        }
        let weighted = &left_over * &problem.context.damped;
        let spectrum = Spectrum::of(left_over.as_ref(), weighted.as_ref(), problem.context).unwrap();
        let latents = spectrum.latents(left_over.as_ref(), rank);
        let mut rotated = Latents { u: latents.u.clone(), v: latents.v.clone() };
        let diagonal: Vec<f64> = problem.context.damped.diagonal().column_vector().iter().copied().collect();
        rotate_to_signs(&mut rotated, &diagonal, Params::nvg().gauge_steps);
        paths.push(signs_and_magnitudes(&rotated));
        Self { rank, left_over, latents, rotated, paths }
    }
}

fn golden() -> Option<Layer> {
    let text = std::fs::read_to_string(common::data("golden/nvg_small.json")?).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
    let matrix = |name: &str| {
        let rows: Vec<Vec<f64>> = serde_json::from_value(golden[name].clone()).unwrap();
        Mat::from_fn(rows.len(), rows[0].len(), |i, j| rows[i][j])
    };
    let grams = Grams { fit: matrix("gram_fit"), heldout: matrix("gram_heldout"), cross: None };
    Some(Layer::new("the golden layer".into(), matrix("W"), grams, [8, 8]))
}

/// Directions whose strengths fall like `(1+k)^−½`, and noise.
pub fn made_up_weight(m: usize, n: usize, seed: u64) -> Mat<f64> {
    let mut random = SplitMix64::new(seed);
    let directions = m.min(n) / 4;
    let left = Mat::from_fn(m, directions, |_, k| 0.05 * random.signed() / (1.0 + k as f64).sqrt());
    let right = Mat::from_fn(directions, n, |_, _| random.signed());
    let noise = Mat::from_fn(m, n, |_, _| 0.02 * random.signed());
    left * right + noise
}

/// Inputs with a power-law spectrum that depend on each other, every 37th channel eight times as strong.
pub fn made_up_grams(n: usize, seed: u64) -> Grams {
    let mut random = SplitMix64::new(seed);
    let mixing = Mat::from_fn(n, n, |i, k| {
        let heavy = if i % 37 == 5 { 8.0 } else { 1.0 };
        heavy * random.signed() / (1.0 + k as f64).sqrt()
    });
    let mut gram = |tokens: usize| {
        let x = &mixing * Mat::from_fn(n, tokens, |_, _| random.signed());
        &x * x.transpose() * faer::Scale(1.0 / tokens as f64)
    };
    Grams { fit: gram(4 * n), heldout: gram(2 * n), cross: None }
}
