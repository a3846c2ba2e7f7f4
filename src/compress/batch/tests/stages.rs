use faer::{Mat, MatRef, Side};

use super::reference::{DAMPING, LAYERS, Layer};
use super::{Candidate, common, on_every_device};
use crate::compress::batch::gauge::{latent_views, latents, rotate, rotated_views, signs_and_magnitudes};
use crate::compress::batch::metric::{errors, lambdas, relative_errors, residuals, weight_errors};
use crate::compress::batch::refine::{Step, flip_rows, read_flips, search_columns};
use crate::compress::batch::scales::{fit_g, fit_h, fit_l, scale_sweeps};
use crate::compress::batch::site::open_sites;
use crate::compress::batch::{Plan, SiteInput};
use crate::compress::encode::{Params, product};
use crate::compress::factors::Path;
use crate::compress::gauge::rotate_to_signs;
use crate::compress::latents::Latents;
use crate::compress::metric::{Judge, Metric, Problem};
use crate::compress::refine as reference_refine;
use crate::compress::scales as reference_scales;
use crate::device::Device;
use crate::device::arena::Arena;

/// Whatever is measured is printed, and must not be more than the tolerance.
#[track_caller]
fn within(what: &str, candidate: &str, found: f64, tolerance: f64) {
    println!("{candidate}: {what}: {found:.1e} of {tolerance:.1e}");
    assert!(found <= tolerance, "{candidate}: {what}: {found:.3e} above {tolerance:.1e}");
}

/// The largest difference of a row, relative to that row.
fn rows_apart(found: MatRef<'_, f64>, expected: MatRef<'_, f64>) -> f64 {
    let apart = |i: usize| {
        let (f, e) = (found.row(i), expected.row(i));
        (0..f.ncols()).map(|j| (f[j] - e[j]).powi(2)).sum::<f64>().sqrt() / e.norm_l2()
    };
    (0..found.nrows()).map(apart).fold(0.0, f64::max)
}

/// The share of signs that are not the same.
fn signs_apart(found: &Mat<f64>, expected: &Mat<f64>) -> f64 {
    let (rows, cols) = expected.shape();
    let different = (0..rows)
        .flat_map(|i| (0..cols).map(move |k| (i, k)))
        .filter(|at| (found[*at] < 0.0) != (expected[*at] < 0.0))
        .count();
    different as f64 / (rows * cols) as f64
}

/// ‖difference‖ / ‖expected‖.
fn scales_apart(found: &[f64], expected: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

/// Rows of L and of Rᵀ, relative to themselves.
///
/// With `Â = D H̃ D` of unit diagonal, a change of Â by δ moves L by at most `‖δ‖/λ_min(Â)` of itself, and R by the same
/// to first order. f32 makes δ about `n·2⁻²⁴`, 2e-5 at n = 320, in the worst case and the root of that, 1e-6, in the
/// usual one; the ridge adds 1e-6. The damping of 0.03 keeps λ_min above 3e-3: 7e-4.
const CONTEXT: f64 = 1e-3;

#[test]
fn factors_of_the_input() {
    for device in common::devices() {
        LAYERS.iter().for_each(|layer| assert_context(&device, layer));
    }
}

fn assert_context(device: &Device, layer: &Layer) {
    let (n, context) = (layer.context.width(), &layer.context);
    let name = format!("{}, {}", device.name(), layer.name);
    let inputs = [SiteInput { width: n, grams: Some(&layer.grams), damping: Some(DAMPING) }];
    let mut plan = Plan::of(&inputs, &[]);
    let mut arena = Arena::new(device, plan.numbers).unwrap();
    let failed = open_sites(&mut arena, &mut plan.sites, &plan.site_scratch, &inputs).unwrap();
    assert_eq!(failed, [None], "{name}");
    let mut read = |at: usize, rows: usize, cols: usize| {
        let values = arena.read(at, rows * cols).unwrap();
        Mat::from_fn(rows, cols, |i, j| f64::from(values[i * cols + j]))
    };
    let (site, factor) = (&plan.sites[0], plan.site_scratch[0].factor);
    let found: Vec<usize> = read(site.order, 1, n).row(0).iter().map(|j| *j as usize).collect();
    assert_eq!((&found, site.damping, site.tries), (&context.order, DAMPING, 1), "{name}");
    // The device factors the equilibrated matrix, in the order of rising diagonals.
    let order: Vec<usize> = found.into_iter().rev().collect();
    let ordered = Mat::from_fn(n, n, |i, j| context.damped[(order[i], order[j])]);
    let (l, d) = (read(factor.a.at, n, n), read(factor.d, 1, n));
    let expected = ordered.llt(Side::Lower).unwrap().L().to_owned();
    let expected = Mat::from_fn(n, n, |i, j| d[(0, i)] * expected[(i, j)]);
    within("L", &name, rows_apart(l.as_ref(), expected.as_ref()), CONTEXT);
    let r = read(site.r_transposed.at, n, n);
    within("R", &name, rows_apart(r.as_ref(), context.r_transposed.as_ref()), CONTEXT);
}

/// `‖(U'V'ᵀ − expected) L‖ / ‖expected·L‖`.
///
/// The spectrum is found in f64 from f32 numbers: those of W are exact, those of a residual off by 2⁻²⁵ of themselves,
/// which turns the leading space by 2⁻²⁵·σ₁/(σ_r − σ_{r+1}), some 1e-5 where a few hundred singular values fall to a
/// tenth. What is left over there has nearly the strength of what is taken, so the product moves by as much. Writing
/// the vectors in f32 adds 2⁻²⁴.
const LATENT_PRODUCT: f64 = 1e-4;

#[test]
fn latents_of_the_weight_and_of_what_a_path_leaves() {
    on_every_device(|candidate| {
        let last = candidate.job.shape.paths - 1;
        let start = candidate.find_start();
        candidate.job.active = 1;
        latents(&mut candidate.arena, &[&candidate.job], &[start]);
        let (u, v) = latent_views(&candidate.job);
        let (u, v) = (candidate.read(u), candidate.read(v));
        let expected = &candidate.layer.starts[last].latents;
        let expected = &expected.u * expected.v.transpose() * &candidate.layer.context.cholesky;
        let found = u * v.transpose() * &candidate.layer.context.cholesky;
        let apart = (&found - &expected).norm_l2() / expected.norm_l2();
        within("latent product", &candidate.name, apart, LATENT_PRODUCT);
    });
}

/// The share of signs of the rotated latents that differ after two steps from the same state.
///
/// f32 leaves an entry of ZQ off by some roundings of its row, 1e-6, and rotated rows have entries of the size r^−½
/// with a density of about one there: a share of 1e-6·r^½, one entry of 50,000 now and then, takes the other sign. One
/// sign moves Q by 1/(m + n) of a column, and with it the signs of entries below that: a few dozen of 50,000 in the
/// next step, 1e-3. Five times that.
const GAUGE_SIGNS: f64 = 5e-3;

/// `Σ_i w_i²‖z_i Q‖₁`, which the rotation maximises, after all of its steps, relative to the reference's.
///
/// One sign that f32 takes the other way grows from step to step until the two end in maxima of their own, with one sign
/// in a hundred different; neither is better. The rotation raises the sum by a tenth to a quarter: a hundredth of that.
const GAUGE_GOAL: f64 = 2e-3;

#[test]
fn rotations_towards_signs() {
    on_every_device(|candidate| {
        let start = &candidate.layer.starts[candidate.job.shape.paths - 1];
        let context = &candidate.layer.context;
        let diagonal: Vec<f64> = (0..context.width()).map(|j| context.damped[(j, j)]).collect();
        let name = candidate.name.clone();
        let steps = Params::nvg().gauge_steps;
        let mut reached = Latents { u: start.latents.u.clone(), v: start.latents.v.clone() };
        for _ in (0..steps).step_by(2) {
            let found = turned(candidate, &reached, 2);
            // The rotation from a rotated state, starting at Q = I, is the same rotation carried on.
            rotate_to_signs(&mut reached, &diagonal, 2);
            within("gauge signs of U", &name, signs_apart(&found.u, &reached.u), GAUGE_SIGNS);
            within("gauge signs of V", &name, signs_apart(&found.v, &reached.v), GAUGE_SIGNS);
        }
        let found = turned(candidate, &start.latents, steps);
        println!("{name}: {:.1e} of U's signs in the end", signs_apart(&found.u, &start.rotated.u));
        let apart = goal(&found, &diagonal) / goal(&start.rotated, &diagonal) - 1.0;
        within("goal of the gauge", &name, apart.abs(), GAUGE_GOAL);
    });
}

/// Latents after `steps` steps on the device.
fn turned(candidate: &mut Candidate<'_>, latents: &Latents, steps: usize) -> Latents {
    candidate.job.active = 1;
    let (u, v) = latent_views(&candidate.job);
    candidate.write(u, latents.u.as_ref());
    candidate.write(v, latents.v.as_ref());
    candidate.write_vector(candidate.job.scratch.status, &[0.0]);
    rotate(&mut candidate.arena, &[&candidate.job], steps);
    assert_eq!(candidate.read_vector(candidate.job.scratch.status, 1), [0.0], "{}", candidate.name);
    let (u, v) = rotated_views(&candidate.job);
    Latents { u: candidate.read(u), v: candidate.read(v) }
}

fn goal(latents: &Latents, diagonal: &[f64]) -> f64 {
    let row = |a: &Mat<f64>, i: usize| a.row(i).norm_l1() * a.row(i).norm_l2();
    let left: f64 = (0..latents.u.nrows()).map(|i| row(&latents.u, i)).sum();
    left + (0..latents.v.nrows()).map(|j| diagonal[j] * row(&latents.v, j)).sum::<f64>()
}

/// ‖difference‖ / ‖expected‖ of scales.
///
/// They solve systems that are equilibrated and ridged by 1e-6. f32 sums of up to 320 products leave right-hand sides
/// and matrices off by about `320^½·2⁻²⁴`, 1e-6; with a condition of up to a thousand of `ΛᵀΛ ∘ BᵀH̃B` and of
/// `VKVᵀ ∘ H̃` each of the two takes the solution 1e-3 away. Power iterations for magnitudes end far below it.
const SCALES: f64 = 2e-3;

#[test]
fn signs_and_magnitudes_of_latents() {
    on_every_device(|candidate| {
        let last = candidate.job.shape.paths - 1;
        let start = &candidate.layer.starts[last];
        candidate.job.active = last + 1;
        let (u, v) = rotated_views(&candidate.job);
        candidate.write(u, start.rotated.u.as_ref());
        candidate.write(v, start.rotated.v.as_ref());
        signs_and_magnitudes(&mut candidate.arena, &[&candidate.job], last);
        let (found, expected) = (&candidate.paths()[last], &start.paths[last]);
        assert_eq!((&found.u, &found.v), (&expected.u, &expected.v), "{}", candidate.name);
        for (what, found, expected) in
            [("h", &found.h, &expected.h), ("g", &found.g, &expected.g), ("l", &found.l, &expected.l)]
        {
            within(&format!("magnitudes {what}"), &candidate.name, scales_apart(found, expected), SCALES);
        }
    });
}

/// `err(Ŵ; H̃)` and the errors that are reported, relative to themselves.
///
/// The expansion subtracts numbers of the size of err(0; H̃), each a sum in f32 good to about `320^½·2⁻²⁴`, 1e-6, the
/// partial sums added in f64; err is a tenth to a half of err(0), so 1e-5 of it. Ten times that.
const ERRORS: f64 = 1e-4;

/// What is tried has the error that the reference gives `paths`.
fn assert_error(what: &str, candidate: &mut Candidate<'_>, problem: &Problem<'_>, paths: &[Path]) {
    let found = errors(&mut candidate.arena, &[&candidate.job]).unwrap()[0];
    let expected = Metric::of(problem, paths).error(problem, paths);
    within(&format!("error {what}"), &candidate.name, (found / expected - 1.0).abs(), ERRORS);
}

#[test]
fn least_squares_for_each_scale() {
    on_every_device(|candidate| {
        let (problem, start) =
            (candidate.layer.problem(), &candidate.layer.starts[candidate.job.shape.paths - 1]);
        let name = candidate.name.clone();
        candidate.load(&start.paths);
        assert_error("at the start", candidate, &problem, &start.paths);
        let metric = Metric::of(&problem, &start.paths);

        let mut expected = start.paths.clone();
        reference_scales::fit_l(&mut expected, &metric);
        fit_l(&mut candidate.arena, &[&candidate.job]);
        let l = |paths: &[Path]| paths.iter().flat_map(|path| path.l.clone()).collect::<Vec<_>>();
        within("l", &name, scales_apart(&l(&candidate.paths()), &l(&expected)), SCALES);
        assert_error("after l", candidate, &problem, &expected);

        let mut expected = start.paths.clone();
        reference_scales::fit_h(&mut expected, &metric);
        candidate.load(&start.paths);
        fit_h(&mut candidate.arena, &[&candidate.job]);
        for (found, expected) in candidate.paths().iter().zip(&expected) {
            within("h", &name, scales_apart(&found.h, &expected.h), SCALES);
        }
        assert_error("after h", candidate, &problem, &expected);

        for p in 0..start.paths.len() {
            let mut expected = start.paths.clone();
            let mut metric = Metric::of(&problem, &expected);
            reference_scales::fit_g(&problem, &mut expected, &mut metric, p);
            candidate.load(&start.paths);
            fit_g(&mut candidate.arena, &[&candidate.job], p);
            within("g", &name, scales_apart(&candidate.paths()[p].g, &expected[p].g), SCALES);
            assert_error("after g", candidate, &problem, &expected);
        }

        let mut expected = start.paths.clone();
        let mut metric = Metric::of(&problem, &expected);
        reference_scales::scale_sweeps(&problem, &mut expected, &mut metric, 3);
        candidate.load(&start.paths);
        scale_sweeps(&mut candidate.arena, &[&candidate.job], 3);
        assert_error("after three sweeps", candidate, &problem, &expected);
    });
}

/// The share of signs that row flips and the column search leave different.
///
/// A decision differs where the change of a flip is within rounding of zero or of another's, 1e-6 of its size: a share
/// of about 1e-6 of r candidates and their flips each. One that differs changes some tens of decisions behind it, so
/// 1e-4; ten times that.
const FLIPS: f64 = 1e-3;

#[test]
fn flips_of_rows_and_search_of_columns() {
    on_every_device(|candidate| {
        let (problem, start) =
            (candidate.layer.problem(), &candidate.layer.starts[candidate.job.shape.paths - 1]);
        let name = candidate.name.clone();
        let metric = Metric::of(&problem, &start.paths);
        for p in 0..start.paths.len() {
            let mut expected = start.paths.clone();
            let info = reference_refine::flip_rows(&problem, &mut expected, &metric, p);
            candidate.load(&start.paths);
            flip_rows(&mut candidate.arena, &[&candidate.job], p);
            let found = candidate.paths();
            within("row flips", &name, signs_apart(&found[p].u, &expected[p].u), FLIPS);
            let flips = read_flips(&mut candidate.arena, &[&candidate.job], Step::Rows).unwrap()[0].unwrap();
            println!("{flips} of {} row flips", info.row_flips);

            let mut expected = start.paths.clone();
            let info = reference_refine::search_columns(&problem, &mut expected, &metric, p);
            candidate.load(&start.paths);
            search_columns(&mut candidate.arena, &[&candidate.job], p);
            let found = candidate.paths();
            let flips =
                read_flips(&mut candidate.arena, &[&candidate.job], Step::Columns).unwrap()[0].unwrap();
            println!("{flips} of {} column flips", info.column_flips);
            within("column search", &name, signs_apart(&found[p].v, &expected[p].v), FLIPS);
            within("column scales", &name, scales_apart(&found[p].g, &expected[p].g), SCALES);
            assert_error("after the search", candidate, &problem, &expected);
        }
    });
}

#[test]
fn errors_that_are_reported() {
    on_every_device(|candidate| {
        let start = &candidate.layer.starts[candidate.job.shape.paths - 1];
        candidate.load(&start.paths);
        let jobs = [&candidate.job];
        lambdas(&mut candidate.arena, &jobs);
        residuals(&mut candidate.arena, &jobs);
        let fitted = product(&start.paths);
        let weight = &candidate.layer.weight;
        let rel =
            |gram: &Mat<f64>| Judge::new(weight.as_ref(), gram.as_ref()).relative_error(fitted.as_ref());
        let grams = &candidate.layer.grams;
        let fit = relative_errors(&mut candidate.arena, &jobs, |j| j.site.fit).unwrap()[0];
        let heldout = relative_errors(&mut candidate.arena, &jobs, |j| j.site.heldout).unwrap()[0];
        let frobenius = weight_errors(&mut candidate.arena, &jobs).unwrap()[0];
        let expected = (weight - &fitted).norm_l2() / weight.norm_l2();
        for (what, found, expected) in [
            ("fit", fit, rel(&grams.fit)),
            ("held-out", heldout, rel(&grams.heldout)),
            ("weight", frobenius, expected),
        ] {
            within(what, &candidate.name, (found / expected - 1.0).abs(), ERRORS);
        }
    });
}
