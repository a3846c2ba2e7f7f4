//! The encoder of devices, many candidates at once in f32, against the reference in f64.

mod common;

use faer::Mat;
use lapidary::blr::rank::{Budget, rank_for};
use lapidary::compress::batch::{Candidate, CandidateError, SiteInput, Task, encode_batch, predict};
use lapidary::compress::context::Context;
use lapidary::compress::encode::Params;
use lapidary::compress::recipe::{PathChoice, Recipe};
use lapidary::compress::tensor::{Grams, Input, Outcome, encode_tensor};
use lapidary::device::arena::Arena;

/// Held-out relative error against the reference's: where flips are equal to rounding, f32 may take another.
const WITHIN: f64 = 0.01;

/// Deterministic numbers in [-1, 1).
fn noise(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1_u64 << 30) as f64 - 1.0
    }
}

/// Inputs with a power-law spectrum and a few heavy channels.
fn grams(n: usize, seed: u64) -> Grams {
    let mut next = noise(seed);
    let mixing = Mat::from_fn(n, n, |_, j| next() / (1.0 + j as f64).sqrt());
    let heavy: Vec<f64> = (0..n).map(|i| if i % 37 == 5 { 8.0 } else { 1.0 }).collect();
    let mut gram = |tokens: usize| {
        let sources = Mat::from_fn(n, tokens, |_, _| next());
        let x = &mixing * sources;
        let x = Mat::from_fn(n, tokens, |i, t| heavy[i] * x[(i, t)]);
        &x * x.transpose() * faer::Scale(1.0 / tokens as f64)
    };
    Grams { fit: gram(4 * n), heldout: gram(2 * n) }
}

fn weight(m: usize, n: usize, seed: u64) -> Vec<f32> {
    let mut next = noise(seed);
    (0..m * n).map(|_| (0.05 * (next() + next() + next())) as f32).collect()
}

#[test]
fn batches_reach_the_errors_of_the_reference() {
    let budget = Budget { bits: 1.0, factor: 1.0 };
    let sites = [grams(96, 1), grams(160, 2)];
    let weights = [(160, 0, weight(160, 96, 3)), (96, 1, weight(96, 160, 4)), (96, 0, weight(96, 96, 5))];
    let candidates = |m: usize, n: usize| -> Vec<(usize, usize)> {
        [1, 2].map(|paths| (paths, rank_for(m, n, paths, budget).unwrap().rank)).to_vec()
    };
    let tasks: Vec<Task<'_>> = (weights.iter())
        .map(|(rows, site, weight)| Task {
            weight,
            rows: *rows,
            site: *site,
            candidates: candidates(*rows, weight.len() / rows),
        })
        .collect();
    let inputs: Vec<_> = (sites.iter())
        .map(|grams| SiteInput { width: grams.fit.nrows(), grams: Some(grams), damping: Some(0.03) })
        .collect();
    for device in common::devices() {
        let mut arena = Arena::new(&device, predict(&inputs, &tasks)).unwrap();
        let (results, _) = encode_batch(&mut arena, &inputs, &tasks, &Params::nvg()).unwrap();
        for (task, results) in tasks.iter().zip(results) {
            let n = task.weight.len() / task.rows;
            for ((paths, _), result) in task.candidates.iter().zip(results) {
                let found: Candidate = result.unwrap_or_else(|e: CandidateError| panic!("{e}"));
                let site = &sites[task.site];
                let input = Input {
                    context: Context::build(&site.fit, 0.03).unwrap(),
                    grams: Some(Grams { fit: site.fit.clone(), heldout: site.heldout.clone() }),
                };
                let mut recipe = Recipe::nvg();
                recipe.paths = if *paths == 1 { PathChoice::One } else { PathChoice::Two };
                let dense = Mat::from_fn(task.rows, n, |i, j| f64::from(task.weight[i * n + j]));
                let Outcome::Packed(packed) = encode_tensor(dense, &input, budget, &recipe) else {
                    panic!("the reference keeps it dense")
                };
                let expected = packed.quality.heldout_rel.unwrap();
                let difference = (found.judged.heldout_rel.unwrap() / expected - 1.0).abs();
                assert!(
                    difference < WITHIN,
                    "{}x{n} in {paths} paths: {:?} {expected}",
                    task.rows,
                    found.judged.heldout_rel
                );
            }
        }
    }
}
