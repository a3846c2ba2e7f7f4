//! A few seeds of the zoo; `lapidary bench atoms` runs all of it.

use lapidary::atoms::bench::Trial;
use lapidary::atoms::zoo::Case;
use lapidary::atoms::{Ending, Outcome};

fn found(case: Case, seeds: &[u64]) {
    for seed in seeds {
        let trial = Trial::run(case, *seed).unwrap();
        assert!(trial.succeeds(), "{trial:?}");
        assert_eq!(trial.outcome, Outcome::Converged, "{trial:?}");
        assert_eq!(trial.alive, 1.0, "{trial:?}");
    }
}

#[test]
fn one_circle() {
    found(Case::Circle, &[0, 7]);
}

#[test]
fn two_circles() {
    found(Case::TwoCircles, &[0, 3]);
}

#[test]
fn four_circles() {
    found(Case::FourCircles, &[1]);
}

#[test]
fn circle_and_line() {
    found(Case::CircleAndLine, &[0, 5]);
    found(Case::Cylinder, &[0]);
}

#[test]
fn circles_that_are_always_on() {
    found(Case::CrossedCircles, &[2]);
}

#[test]
fn surfaces() {
    found(Case::Sphere, &[1]);
    found(Case::Torus, &[1]);
}

#[test]
fn heavy_noise_and_more_columns_than_rows() {
    found(Case::NoisyCircle, &[0]);
    found(Case::WideCircle, &[0]);
}

#[test]
fn rays_stay_rays() {
    for seed in 0..2 {
        let trial = Trial::run(Case::Rays, seed).unwrap();
        assert_eq!(trial.curves(), 0, "{trial:?}");
        assert!(trial.recovery() > 0.9, "{trial:?}");
    }
}

#[test]
fn a_normal_distribution_is_no_circle() {
    for seed in 0..3 {
        let trial = Trial::run(Case::Plane, seed).unwrap();
        assert_eq!(trial.curves(), 0, "{trial:?}");
    }
}

#[test]
fn noise_bears_nothing() {
    for seed in 0..10 {
        let trial = Trial::run(Case::Noise, seed).unwrap();
        assert!(trial.shapes.is_empty(), "{trial:?}");
        assert_eq!((trial.outcome, trial.ending), (Outcome::Nothing, Ending::NothingLeft));
    }
}

#[test]
fn a_circle_says_more_than_directions_of_the_same_number() {
    let trial = Trial::run(Case::Circle, 0).unwrap();
    let linear = trial.baselines.unwrap();
    assert!(linear.pca < 0.6 && linear.topk < trial.explained - 0.05, "{linear:?}");
}
