//! What must not matter: scale, rotation, the order of the rows, the number of threads.

use lapidary::atoms::zoo::{Case, Planted, frame};
use lapidary::atoms::{FitParams, Shape, fit};
use lapidary::ops::splitmix::SplitMix64;

/// Shapes, and the measures on held-out rows.
fn summary(x: &[f64], planted: &Planted) -> (Vec<Shape>, [f64; 4]) {
    let (fitted, held) = x.split_at(planted.fit * planted.width);
    let found = fit(fitted, planted.width, &FitParams::default()).unwrap();
    let measures = found.dictionary.measure(held, planted.width).unwrap();
    let mut shapes: Vec<Shape> = found.dictionary.atoms.iter().map(|atom| atom.shape).collect();
    shapes.sort_by_key(ToString::to_string);
    (shapes, [measures.explained, measures.l0, measures.coefficients, measures.alive])
}

fn check(case: Case, other: &[f64], what: &str) {
    let planted = case.plant(1);
    let (a, b) = (summary(&planted.x, &planted), summary(other, &planted));
    assert_eq!(a.0, b.0, "{case:?} {what}");
    for (a, b) in a.1.iter().zip(&b.1) {
        assert!((a - b).abs() <= 1e-6, "{case:?} {what}: {a} and {b}");
    }
}

const CASES: [Case; 3] = [Case::Circle, Case::TwoCircles, Case::CircleAndLine];

#[test]
fn scale() {
    for case in CASES {
        for factor in [1e-6, 1e6] {
            let scaled: Vec<f64> = case.plant(1).x.iter().map(|x| factor * x).collect();
            check(case, &scaled, &format!("times {factor:e}"));
        }
    }
}

#[test]
fn rotation() {
    for case in CASES {
        let planted = case.plant(1);
        let p = planted.width;
        let turn = frame(&mut SplitMix64::new(9), p, p);
        let turned: Vec<f64> = planted
            .x
            .chunks_exact(p)
            .flat_map(|row| {
                turn.chunks_exact(p)
                    .map(|axis| axis.iter().zip(row).map(|(a, x)| a * x).sum())
                    .collect::<Vec<f64>>()
            })
            .collect();
        check(case, &turned, "turned");
    }
}

#[test]
fn order_of_the_rows() {
    for case in CASES {
        let planted = case.plant(1);
        let p = planted.width;
        let mut random = SplitMix64::new(4);
        let mut order: Vec<usize> = (0..planted.truth.len()).collect();
        let mut shuffle = |part: &mut [usize]| {
            for i in (1..part.len()).rev() {
                part.swap(i, (random.uniform() * (i + 1) as f64) as usize);
            }
        };
        let (fitted, held) = order.split_at_mut(planted.fit);
        shuffle(fitted);
        shuffle(held);
        let shuffled: Vec<f64> =
            order.iter().flat_map(|i| planted.x[i * p..(i + 1) * p].iter().copied()).collect();
        check(case, &shuffled, "shuffled");
    }
}

#[test]
fn threads() {
    let planted = Case::TwoCircles.plant(0);
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| fit(planted.fit_rows(), planted.width, &FitParams::default()).unwrap())
    };
    let (one, three) = (with(1), with(3));
    assert_eq!(one.dictionary, three.dictionary);
    assert_eq!(one.codes, three.codes);
}
