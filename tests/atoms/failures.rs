//! Fits of this kind are known to go wrong in these ways.

use std::time::{Duration, Instant};

use lapidary::atoms::measure::{explained_variance, recoveries};
use lapidary::atoms::zoo::{Case, normal};
use lapidary::atoms::{Ending, FitParams, Outcome, Shape, fit};
use lapidary::ops::splitmix::SplitMix64;

/// "Converged" with a coordinate that is the same in every row.
#[test]
fn coordinates_vary() {
    for case in [Case::Circle, Case::TwoCircles, Case::CircleAndLine] {
        let planted = case.plant(1);
        let found = fit(planted.fit_rows(), planted.width, &FitParams::default()).unwrap();
        for k in 0..found.dictionary.atoms.len() {
            let at: Vec<f64> = found
                .codes
                .iter()
                .flatten()
                .filter(|active| active.atom == k)
                .map(|active| active.at[0])
                .collect();
            let mean = at.iter().sum::<f64>() / at.len() as f64;
            let spread = (at.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / at.len() as f64).sqrt();
            assert!(spread > 0.2, "{case:?}, atom {k}: {spread}");
        }
    }
}

/// A cluster away from the origin is a ray, not a curve with one coordinate.
#[test]
fn a_cluster_is_no_circle() {
    let mut random = SplitMix64::new(5);
    let mut x = Vec::new();
    for i in 0..300 {
        x.extend((0..16).map(|j| 0.05 * normal(&mut random) + if i % 2 == 0 && j == 3 { 1.0 } else { 0.0 }));
    }
    let found = fit(&x, 16, &FitParams::default()).unwrap();
    assert!(found.dictionary.atoms.iter().all(|atom| !atom.shape.is_curved()), "{:?}", found.certificate);
}

/// Two atoms on one circle.
#[test]
fn one_circle_bears_one_atom() {
    let planted = Case::Circle.plant(2);
    let found =
        fit(planted.fit_rows(), planted.width, &FitParams { atoms: 4, ..FitParams::default() }).unwrap();
    assert_eq!(found.dictionary.atoms.len(), 1, "{:?}", found.certificate);
}

/// Much variance explained, and the wrong angle: recovery is judged apart.
#[test]
fn a_wrong_angle_is_seen() {
    let planted = Case::Circle.plant(0);
    let found = fit(planted.fit_rows(), planted.width, &FitParams::default()).unwrap();
    let mut measures = found.dictionary.measure(planted.heldout_rows(), planted.width).unwrap();
    let judge = |codes: &[lapidary::atoms::Code]| {
        recoveries(&planted.shapes, planted.heldout_truth(), &found.dictionary, codes)[0]
    };
    assert!(judge(&measures.codes) > 0.99);
    measures
        .codes
        .iter_mut()
        .flatten()
        .for_each(|active| active.at[0] = (2.0 * active.at[0]).rem_euclid(1.0));
    assert!(judge(&measures.codes) < 0.2);
    let wrong = found.dictionary.reconstruct(&measures.codes);
    assert!(explained_variance(planted.heldout_rows(), &wrong, planted.width) < 0.5);
}

/// Ties go to the simplest: rows on straight directions, over many seeds, bear nothing bent.
#[test]
fn no_race_is_decided_by_rounding() {
    for seed in 20..23 {
        let planted = Case::Plane.plant(seed);
        let found =
            fit(planted.fit_rows(), planted.width, &FitParams { seed, ..FitParams::default() }).unwrap();
        assert!(
            found.dictionary.atoms.iter().all(|atom| atom.shape == Shape::Line),
            "{:?}",
            found.certificate
        );
    }
}

/// Where it ran is on record; a fit runs on the host.
#[test]
fn the_certificate_names_device_test_and_work() {
    let planted = Case::Circle.plant(0);
    let certificate = fit(planted.fit_rows(), planted.width, &FitParams::default()).unwrap().certificate;
    assert_eq!(certificate.device, "host");
    assert_eq!(certificate.outcome, Outcome::Converged);
    assert!(certificate.work.builds > 0 && certificate.work.reuses > 0, "{:?}", certificate.work);
    assert!(certificate.criterion < certificate.criterion_of_nothing);
    assert!(!certificate.test.is_empty() && certificate.seconds > 0.0);
}

/// A fit without end.
#[test]
fn the_time_budget_holds() {
    let planted = Case::FourCircles.plant(0);
    let began = Instant::now();
    let params = FitParams { time: Some(Duration::ZERO), ..FitParams::default() };
    let found = fit(planted.fit_rows(), planted.width, &params).unwrap();
    assert_eq!(
        (found.certificate.outcome, found.certificate.ending),
        (Outcome::TimeLimit, Ending::TimeLimit)
    );
    assert!(began.elapsed() < Duration::from_secs(10));
    let params = FitParams { time: Some(Duration::from_millis(300)), ..FitParams::default() };
    let found = fit(planted.fit_rows(), planted.width, &params).unwrap();
    assert_eq!(found.certificate.outcome, Outcome::TimeLimit);
    assert!(found.codes.len() == planted.fit && began.elapsed() < Duration::from_secs(40));
}
