//! The encoder against an independent f64 implementation (NumPy) of the same mathematics, one small layer carried
//! through every step. Each step starts from the recorded start, so a difference names the step that made it.

mod common;

use faer::{Mat, MatRef};
use lapidary::compress::context::Context;
use lapidary::compress::encode::{Fit, Params, fit_paths, product};
use lapidary::compress::factors::Path;
use lapidary::compress::gauge::{rotate_to_signs, signs_and_magnitudes};
use lapidary::compress::latents::Spectrum;
use lapidary::compress::metric::{Judge, Metric, Problem};
use lapidary::compress::refine::{flip_rows, search_columns};
use lapidary::compress::round::round_to_payload;
use lapidary::compress::scales::{fit_g, fit_h, fit_l, scale_sweeps};
use serde_json::Value;

/// Largest relative difference from the recorded values: both sides are f64 with other orders of summation.
const STEP: f64 = 1e-8;
/// The whole encoder: ties between flips may go another way.
const WHOLE: f64 = 0.02;

struct Golden(Value);

impl Golden {
    fn load() -> Option<Self> {
        let text = std::fs::read_to_string(common::data("golden/nvg_small.json")?).unwrap();
        Some(Self(serde_json::from_str(&text).unwrap()))
    }

    fn at(&self, pointer: &str) -> &Value {
        self.0.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is not in the golden file"))
    }

    fn number(&self, pointer: &str) -> f64 {
        self.at(pointer).as_f64().unwrap()
    }

    fn matrix(&self, pointer: &str) -> Mat<f64> {
        matrix(self.at(pointer))
    }

    fn paths(&self, pointer: &str) -> Vec<Path> {
        let path = |p: &Value| Path {
            h: vector(&p["h"]),
            u: matrix(&p["U"]),
            l: vector(&p["l"]),
            v: matrix(&p["V"]),
            g: vector(&p["g"]),
        };
        self.at(pointer).as_array().unwrap().iter().map(path).collect()
    }

    fn context(&self) -> Context {
        Context::build(&self.matrix("/gram_fit"), self.number("/rho")).unwrap()
    }
}

fn vector(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn matrix(value: &Value) -> Mat<f64> {
    let rows: Vec<Vec<f64>> = value.as_array().unwrap().iter().map(vector).collect();
    Mat::from_fn(rows.len(), rows[0].len(), |i, j| rows[i][j])
}

#[track_caller]
fn assert_close(got: MatRef<'_, f64>, expected: MatRef<'_, f64>, tolerance: f64) {
    let difference = (got - expected).norm_max() / expected.norm_max();
    assert!(difference <= tolerance, "relative difference {difference:e} above {tolerance:e}");
}

#[track_caller]
fn assert_number(got: f64, expected: f64, tolerance: f64) {
    assert!((got / expected - 1.0).abs() <= tolerance, "{got} instead of {expected}");
}

#[track_caller]
fn assert_paths(got: &[Path], expected: &[Path]) {
    for (got, expected) in got.iter().zip(expected) {
        assert_close(got.product().as_ref(), expected.product().as_ref(), STEP);
    }
}

#[test]
fn context_and_latents() {
    let Some(golden) = Golden::load() else { return };
    let context = golden.context();
    assert_close(context.cholesky.as_ref(), golden.matrix("/L").as_ref(), STEP);
    assert_close(context.r_transposed.transpose(), golden.matrix("/R").as_ref(), STEP);
    let order: Vec<f64> = context.order.iter().map(|&j| j as f64).collect();
    assert_eq!(order, vector(golden.at("/act_order")));

    let problem = Problem::new(golden.matrix("/W"), &context);
    let spectrum = Spectrum::of(problem.weight.as_ref(), problem.weighted.as_ref(), &context).unwrap();
    let mut latents = spectrum.latents(problem.weight.as_ref(), 8);
    let latent_product = &latents.u * latents.v.transpose();
    assert_close(latent_product.as_ref(), golden.matrix("/latent_product").as_ref(), STEP);

    let diagonal: Vec<f64> = (0..context.width()).map(|j| context.damped[(j, j)]).collect();
    rotate_to_signs(&mut latents, &diagonal, 50);
    let start = vec![signs_and_magnitudes(&latents)];
    assert_paths(&start, &golden.paths("/after_gauge_and_magnitudes"));
    assert_number(Metric::of(&problem, &start).error(&problem, &start), golden.number("/err_start"), STEP);
}

#[test]
fn scale_solves() {
    let Some(golden) = Golden::load() else { return };
    let context = golden.context();
    let problem = Problem::new(golden.matrix("/W"), &context);
    for (start, errors, end) in [
        ("/after_gauge_and_magnitudes", "/scale_sweep_errors_l_h_g_x3", Some("/after_3_scale_sweeps")),
        ("/two_paths_start", "/two_paths_scale_sweep_errors_l_h_g1_g2", Some("/two_paths_after_1_sweep")),
    ] {
        let mut paths = golden.paths(start);
        let mut metric = Metric::of(&problem, &paths);
        let mut errors = vector(golden.at(errors)).into_iter().peekable();
        while errors.peek().is_some() {
            let mut check = |paths: &[Path], metric: &Metric| {
                assert_number(metric.error(&problem, paths), errors.next().unwrap(), STEP);
            };
            fit_l(&mut paths, &metric);
            check(&paths, &metric);
            fit_h(&mut paths, &metric);
            check(&paths, &metric);
            for p in 0..paths.len() {
                fit_g(&problem, &mut paths, &mut metric, p);
                check(&paths, &metric);
            }
        }
        if let Some(end) = end {
            assert_paths(&paths, &golden.paths(end));
        }
    }
}

#[test]
fn row_flips_and_column_search() {
    let Some(golden) = Golden::load() else { return };
    let context = golden.context();
    let problem = Problem::new(golden.matrix("/W"), &context);
    for name in
        ["/row_flips", "/column_search", "/two_paths_row_flips_path1", "/two_paths_column_search_path1"]
    {
        let field = |field: &str| format!("{name}/{field}");
        let start = golden.at(&field("from")).as_str().unwrap();
        let mut paths = golden.paths(&format!("/{start}"));
        let p = golden.0.pointer(&field("path_index")).map_or(0, |p| p.as_u64().unwrap() as usize);
        let metric = Metric::of(&problem, &paths);
        let step = if name.contains("row") { flip_rows } else { search_columns };
        let info = step(&problem, &mut paths, &metric, p);
        let flips = info.row_flips + info.column_flips;
        assert_eq!(flips as f64, golden.number(&field("flips")), "{name}");
        let error = Metric::of(&problem, &paths).error(&problem, &paths);
        assert_number(error, golden.number(&field("err")), STEP);
        if let Some(v) = golden.0.pointer(&field("V")) {
            assert_eq!(paths[p].v, matrix(v), "{name}");
            let (got, expected) = (&paths[p].g, vector(golden.at(&field("g"))));
            got.iter().zip(&expected).for_each(|(g, e)| assert_number(*g, *e, STEP));
        }
        if let Some(u) = golden.0.pointer(&field("U")) {
            assert_eq!(paths[p].u, matrix(u), "{name}");
        }
    }
}

#[test]
fn whole_encoder() {
    let Some(golden) = Golden::load() else { return };
    let context = golden.context();
    let problem = Problem::new(golden.matrix("/W"), &context);
    let heldout = golden.matrix("/gram_heldout");
    let spectrum = Spectrum::of(problem.weight.as_ref(), problem.weighted.as_ref(), &context).unwrap();
    for (count, name) in [(1, "/paths1"), (2, "/paths2")] {
        let unrefined = Params { refine: Params::dual_svid().refine, ..Params::nvg() };
        let before = fit_paths(&problem, &spectrum, count, 8, &unrefined).unwrap();
        let expected = golden.number(&format!("{name}/heldout_rel_before_refine"));
        let rel = |fit: &Fit, gram: &Mat<f64>| {
            Judge::new(problem.weight.as_ref(), gram.as_ref()).relative_error(fit.product().as_ref())
        };
        assert_number(rel(&before, &heldout), expected, STEP);
        let fit = fit_paths(&problem, &spectrum, count, 8, &Params::nvg()).unwrap();
        assert_number(fit.error, golden.number(&format!("{name}/err_damped")), WHOLE);
        assert_number(
            rel(&fit, &golden.matrix("/gram_fit")),
            golden.number(&format!("{name}/fit_rel")),
            WHOLE,
        );
        assert_number(rel(&fit, &heldout), golden.number(&format!("{name}/heldout_rel")), WHOLE);
        assert!(fit.error < before.error);
    }
}

#[test]
fn errors_never_rise() {
    let Some(golden) = Golden::load() else { return };
    let context = golden.context();
    let problem = Problem::new(golden.matrix("/W"), &context);
    for start in ["/after_gauge_and_magnitudes", "/two_paths_start"] {
        let mut paths = golden.paths(start);
        let mut metric = Metric::of(&problem, &paths);
        let mut error = metric.error(&problem, &paths);
        let dense = |paths: &[Path]| {
            let residual = &problem.weight - product(paths);
            ((&residual * &context.damped).transpose() * &residual).diagonal().column_vector().sum()
        };
        assert_number(error, dense(&paths), STEP);
        for round in 0..8 {
            if round % 2 == 1 {
                for p in 0..paths.len() {
                    flip_rows(&problem, &mut paths, &metric, p);
                    metric = Metric::of(&problem, &paths);
                }
            }
            scale_sweeps(&problem, &mut paths, &mut metric, 1);
            let next = metric.error(&problem, &paths);
            assert!(next <= error * (1.0 + 1e-12), "{next} after {error}");
            error = next;
        }
        let judge = Judge::new(problem.weight.as_ref(), context.damped.as_ref());
        let rel = judge.relative_error(product(&paths).as_ref());
        assert_number(rel, (error / problem.energy).sqrt(), STEP);
    }
}

#[test]
fn payload_to_the_byte() {
    let Some(golden) = Golden::load() else { return };
    let paths = golden.paths(&format!("/{}", golden.at("/payload/of").as_str().unwrap()));
    let payload = round_to_payload(&paths).unwrap();
    let hex: String = payload.bytes().as_slice().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden.at("/payload/hex").as_str().unwrap());
    let dense = payload.dequantise();
    let dense = Mat::from_fn(payload.rows(), payload.cols(), |i, j| dense[i * payload.cols() + j]);
    assert_close(dense.as_ref(), golden.matrix("/payload/dequantised").as_ref(), STEP);
    let weight = golden.matrix("/W");
    for (gram, rel) in [("/gram_fit", "/payload/fit_rel"), ("/gram_heldout", "/payload/heldout_rel")] {
        let gram = golden.matrix(gram);
        let judge = Judge::new(weight.as_ref(), gram.as_ref());
        assert_number(judge.relative_error(dense.as_ref()), golden.number(rel), STEP);
    }
}
