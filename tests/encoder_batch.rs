//! The encoder of devices, many candidates at once in f32, against the reference in f64.

mod common;

use faer::Mat;
use lapidary::blr::rank::{Budget, rank_for};
use lapidary::compress::batch::{Candidate, CandidateError, SiteInput, Task, encode_batch, predict};
use lapidary::compress::context::Context;
use lapidary::compress::encode::Params;
use lapidary::compress::recipe::{PathChoice, Recipe};
use lapidary::compress::schedule::{Done, Scheduler, Wanted, encode_stage};
use lapidary::compress::tensor::{Grams, Input, Outcome, Quality, encode_tensor};
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
    Grams { fit: gram(4 * n), heldout: gram(2 * n), cross: None }
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
                    grams: Some(Grams { fit: site.fit.clone(), heldout: site.heldout.clone(), cross: None }),
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

/// A tensor of a stage: rows, the input it reads, and W.
struct Tensor {
    rows: usize,
    site: usize,
    weight: Vec<f32>,
}

impl Tensor {
    fn new(rows: usize, site: usize, weight: Vec<f32>) -> Self {
        Self { rows, site, weight }
    }
}

/// What became of a tensor: bytes and quality, or why not.
type Became = Result<(Vec<u8>, Quality), String>;

/// Encodes those of the tensors that `order` names, in that order; the results in the same.
fn encode(mut scheduler: Scheduler, grams: &[Grams], tensors: &[Tensor], order: &[usize]) -> Vec<Became> {
    let sites: Vec<_> = (grams.iter())
        .map(|grams| SiteInput { width: grams.fit.nrows(), grams: Some(grams), damping: Some(0.03) })
        .collect();
    let wanted: Vec<_> = (order.iter().map(|k| (k, &tensors[*k])))
        .map(|(k, Tensor { rows, site, weight })| Wanted {
            name: format!("tensor {k}"),
            weight,
            rows: *rows,
            site: *site,
            budget: Budget { bits: 2.0, factor: 1.0 },
        })
        .collect();
    let mut recipe = Recipe::nvg();
    recipe.params.gauge_steps = 12;
    let mut results: Vec<Option<Became>> = vec![None; order.len()];
    encode_stage(&mut scheduler, &recipe, &sites, &wanted, |k, done| {
        let became = match done {
            Done::Packed(packed) => Ok((packed.payload.bytes().as_slice().to_vec(), packed.quality)),
            Done::Dense(reason) => Err(format!("dense: {reason}")),
            Done::Retry(reason) => Err(format!("retry: {reason}")),
        };
        assert!(results[k].replace(became).is_none(), "tensor {} is done twice", order[k]);
    });
    results.into_iter().map(|result| result.expect("every tensor is done")).collect()
}

#[test]
fn bytes_do_not_depend_on_the_others_the_order_or_the_memory() {
    let grams = [grams(160, 1), grams(104, 2)];
    // The ranks reach from 24 to 136, on both sides of where an adapter that counts turns searches fewer columns at once.
    let tensors = [
        Tensor::new(104, 0, weight(104, 160, 3)),
        Tensor::new(64, 1, weight(64, 104, 4)),
        Tensor::new(160, 0, weight(160, 160, 5)),
    ];
    for device in common::devices() {
        let (new, name) = (|| Scheduler::new(device.clone()), device.name());
        let together = encode(new(), &grams, &tensors, &[0, 1, 2]);
        assert!(together.iter().all(Result::is_ok), "{name}");
        let mut backwards = encode(new(), &grams, &tensors, &[2, 1, 0]);
        backwards.reverse();
        assert_eq!(backwards, together, "{name}, in the other order");
        for (k, expected) in together.iter().enumerate() {
            assert_eq!(&encode(new(), &grams, &tensors, &[k])[0], expected, "{name}, {k} alone");
        }
        // A batch for each form, and some in between.
        for most in [1, 1_500_000] {
            let few = encode(Scheduler::with_most(device.clone(), most), &grams, &tensors, &[0, 1, 2]);
            assert_eq!(few, together, "{name}, with {most} numbers");
        }
    }
}

#[test]
fn what_a_device_cannot_encode_is_given_back_with_the_reason_and_disturbs_no_other() {
    let (mut next, n) = (noise(6), 64);
    let mut bad = grams(n, 2);
    bad.fit[(9, 4)] = f64::NAN;
    let grams =
        [grams(n, 1), bad, Grams { fit: Mat::zeros(20_000, 0), heldout: Mat::zeros(0, 0), cross: None }];
    let [left, right] = [(); 2].map(|()| (0..4 * n).map(|_| next()).collect::<Vec<_>>());
    let of_rank_4 = (0..n * n)
        .map(|at| (0..4).map(|k| (left[at / n * 4 + k] * right[at % n * 4 + k]) as f32).sum())
        .collect();
    let tensors = [
        Tensor::new(n, 0, weight(n, n, 3)),
        Tensor::new(n, 0, of_rank_4),
        Tensor::new(n, 0, vec![0.0; n * n]),
        Tensor::new(n, 1, weight(n, n, 4)),
        Tensor::new(7, 0, weight(7, n, 5)),
        // No device is asked, so there need not be any weights.
        Tensor::new(20_000, 2, Vec::new()),
    ];
    for device in common::devices() {
        let (new, name) = (|| Scheduler::new(device.clone()), device.name());
        let became = encode(new(), &grams, &tensors, &[0, 1, 2, 3, 4, 5]);
        assert_eq!(became[..1], encode(new(), &grams, &tensors, &[0])[..], "{name}");
        for (became, reason) in became[1..].iter().zip([
            "retry: the gauge rotation is singular in f32",
            "retry: the weight is zero wherever its input is not",
            "retry: the Gram has a non-finite entry at (9, 4)",
            "dense: a side of 7x64 is below 8, the smallest rank",
            "retry: its rank of 19976 is above 4096",
        ]) {
            let found = became.as_ref().expect_err(reason);
            assert!(found.starts_with(reason), "{name}: {found:?} instead of {reason:?}");
        }
    }
}
