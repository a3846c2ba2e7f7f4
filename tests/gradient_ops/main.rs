//! The ops of tuning on every device that has them, one body for all: gradients against central differences of the formula
//! written plainly in f64, at sizes that are no multiple of any tile, results poisoned with NaN.

mod attention;
#[path = "../common/mod.rs"]
mod common;
mod products;
#[path = "../common/sheet.rs"]
mod sheet;

use lapidary::device::Device;
use lapidary::device::arena::{Precision, View};
use lapidary::ops::adam::{Adam, adam};
use lapidary::ops::attention::{Heads, Mask};
use lapidary::ops::attention_backward::{
    ATTENTION_GRADIENT_TOLERANCE, ATTENTION_TF32_TOLERANCE, AttentionGradient, KeptAttention,
    attention_backward, attention_kept,
};
use lapidary::ops::column_squares::{ColumnSquares, column_squares};
use lapidary::ops::cross_entropy::{CrossEntropy, NO_TOKEN, cross_entropy};
use lapidary::ops::divergence::{Divergence, divergence};
use lapidary::ops::factor_gradient::{FactorGradient, factor_gradient};
use lapidary::ops::gated::Activation;
use lapidary::ops::gated_backward::{KeptGate, gated_backward, gated_kept};
use lapidary::ops::gemm::{Gemm, gemm};
use lapidary::ops::rms_norm_backward::{Added, RmsNormGradient, rms_norm_backward};
use lapidary::ops::squared_error::{SquaredError, squared_error};
use sheet::{Sheet, assert_close};

/// Relative to numbers of order one: sums of a few hundred f32 products.
const TOLERANCE: f64 = 8e-6;

/// The same for gates: the exponent of GELU, a cubic, is off by a few of its last bits, and so is what it multiplies.
const GATE_TOLERANCE: f64 = 2e-5;

/// Step of a central difference in f64: its error is the third derivative's times the square, 1e-10.
const STEP: f64 = 1e-5;

/// Runs a body once a device that has the kernels of tuning.
fn on_every_device(body: impl Fn(&mut Sheet)) {
    for device in common::tuning_devices() {
        body(&mut Sheet::new(&device));
    }
}

fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|x| f64::from(*x)).collect()
}

/// The derivative of `loss` by number `k` of x.
fn difference(x: &[f64], k: usize, loss: impl Fn(&[f64]) -> f64) -> f64 {
    let at = |by: f64| {
        let mut moved = x.to_vec();
        moved[k] += by;
        loss(&moved)
    };
    (at(STEP) - at(-STEP)) / (2.0 * STEP)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn norms_pass_gradients_back() {
    on_every_device(|sheet| {
        for (rows, cols, result) in [(1, 1, Added::Replace), (13, 37, Added::Add), (9, 70, Added::Replace)] {
            let ((x, xs), (dy, dys)) = (sheet.spaced(rows, cols), sheet.spaced(rows, cols));
            let (weight, w) = sheet.random(1, cols);
            let (dx, before) = sheet.spaced(rows, cols);
            let item = RmsNormGradient { x, weight: weight.at, dy, dx, result };
            rms_norm_backward(&mut sheet.arena, 1e-5, &[item]);
            let mut expected = if result == Added::Add { wide(&before) } else { vec![0.0; before.len()] };
            for (i, (row, slope)) in wide(&xs).chunks(cols).zip(wide(&dys).chunks(cols)).enumerate() {
                let loss = |x: &[f64]| {
                    let scale = 1.0 / (dot(x, x) / cols as f64 + 1e-5).sqrt();
                    let terms = x.iter().zip(&w).zip(slope).map(|((x, w), d)| x * scale * f64::from(*w) * d);
                    terms.sum::<f64>()
                };
                (0..cols).for_each(|k| expected[i * cols + k] += difference(row, k, loss));
            }
            assert_close("norm", &sheet.read(dx), &expected, TOLERANCE);
            // In the place of what it is computed from.
            let item = RmsNormGradient { x, weight: weight.at, dy, dx: dy, result: Added::Replace };
            rms_norm_backward(&mut sheet.arena, 1e-5, &[item]);
            let plain: Vec<f64> = match result {
                Added::Add => expected.iter().zip(&before).map(|(e, b)| e - f64::from(*b)).collect(),
                Added::Replace => expected,
            };
            assert_close("norm in place", &sheet.read(dy), &plain, TOLERANCE);
        }
    });
}

#[test]
fn gates_pass_gradients_back() {
    let silu = |g: f64| g / (1.0 + (-g).exp());
    let gelu =
        |g: f64| 0.5 * g * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3))).tanh());
    let activations: [(Activation, &dyn Fn(f64) -> f64); 2] =
        [(Activation::Silu, &silu), (Activation::GeluTanh, &gelu)];
    on_every_device(|sheet| {
        for (activation, formula) in activations {
            let (rows, cols) = (37, 131);
            let gates: Vec<f32> = (0..rows * cols).map(|k| (k as f32 - 2400.0) * 0.005).collect();
            let (gate, (up, ups)) = (sheet.given(rows, cols, &gates), sheet.spaced(rows, cols));
            let out = sheet.blank(rows, cols);
            let item = KeptGate { gate, up, out };
            gated_kept(&mut sheet.arena, activation, &[item]);
            let numbers = || gates.iter().zip(&ups).map(|(g, u)| (f64::from(*g), f64::from(*u)));
            let expected: Vec<f64> = numbers().map(|(g, u)| formula(g) * u).collect();
            assert_close("gated", &sheet.read(out), &expected, GATE_TOLERANCE);
            assert_eq!((sheet.read(gate), sheet.read(up)), (gates.clone(), ups.clone()), "both inputs stay");
            let slopes = sheet.numbers(rows * cols);
            sheet.arena.write(out.at, &slopes);
            gated_backward(&mut sheet.arena, activation, &[item]);
            let (by_gate, by_up): (Vec<f64>, Vec<f64>) = numbers()
                .zip(wide(&slopes))
                .map(|((g, u), d)| (difference(&[g], 0, |g| d * u * formula(g[0])), d * formula(g)))
                .unzip();
            assert_close("by gate", &sheet.read(gate), &by_gate, GATE_TOLERANCE);
            assert_close("by up", &sheet.read(up), &by_up, GATE_TOLERANCE);
        }
    });
}

#[test]
fn errors_are_squared_and_become_their_gradient() {
    on_every_device(|sheet| {
        for weighted in [false, true] {
            let ((y, ys), (target, ts)) = (sheet.spaced(19, 77), sheet.spaced(19, 77));
            let (weights, ws) = sheet.random(1, 19);
            let out = sheet.blank(1, 19);
            let weights = weighted.then_some(weights.at);
            squared_error(&mut sheet.arena, &[SquaredError { y, target, out: out.at, factor: 0.5, weights }]);
            let weight = |row: usize| if weighted { f64::from(ws[row]) } else { 1.0 };
            let apart: Vec<f64> = ys.iter().zip(&ts).map(|(y, t)| f64::from(*y) - f64::from(*t)).collect();
            let rows = || apart.chunks(77).enumerate();
            let sums: Vec<f64> = rows().map(|(i, row)| weight(i) * dot(row, row)).collect();
            assert_close("errors", &sheet.read(out), &sums, TOLERANCE);
            let halves: Vec<f64> =
                rows().flat_map(|(i, row)| row.iter().map(move |a| 0.5 * weight(i) * a)).collect();
            assert_close("gradient", &sheet.read(y), &halves, TOLERANCE);
        }
    });
}

#[test]
fn logits_diverge_and_get_their_gradient() {
    on_every_device(|sheet| {
        for (rows, cols, size) in [(1, 1, 1.0), (7, 300, 20.0), (3, 5003, 5.0)] {
            let (mut logits, mut target) = (sheet.numbers(rows * cols), sheet.numbers(rows * cols));
            logits.iter_mut().chain(&mut target).for_each(|z| *z *= size);
            let [z, t] = [&logits, &target].map(|numbers| {
                let view = sheet.blank(rows, cols + 1).part((0, 0), (rows, cols));
                numbers
                    .chunks(cols)
                    .enumerate()
                    .for_each(|(i, row)| sheet.arena.write(view.at + i * (cols + 1), row));
                view
            });
            let out = sheet.blank(1, rows);
            divergence(&mut sheet.arena, &[Divergence { logits: z, target: t, out: out.at, factor: 0.5 }]);
            let softmax = |z: &[f32]| -> Vec<f64> {
                let total: f64 = z.iter().map(|z| f64::from(*z).exp()).sum();
                z.iter().map(|z| f64::from(*z).exp() / total).collect()
            };
            let (mut sums, mut slopes) = (Vec::new(), Vec::new());
            for (z, t) in logits.chunks(cols).zip(target.chunks(cols)) {
                let (q, p) = (softmax(z), softmax(t));
                sums.push(p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum());
                slopes.extend(q.iter().zip(&p).map(|(q, p)| 0.5 * (q - p)));
            }
            assert_close("divergence", &sheet.read(out), &sums, 2.0 * TOLERANCE);
            assert_close("gradient", &sheet.read(z), &slopes, TOLERANCE);
        }
    });
}

#[test]
fn tokens_that_came_give_their_gradient_and_rows_without_one_none() {
    on_every_device(|sheet| {
        for (rows, cols, size) in [(1, 1, 1.0), (7, 300, 20.0), (5, 5003, 5.0)] {
            let (z, mut logits) = sheet.spaced(rows, cols);
            logits.iter_mut().for_each(|z| *z *= size);
            for (i, row) in logits.chunks(cols).enumerate() {
                sheet.arena.write(z.at + i * z.stride, row);
            }
            let tokens: Vec<f32> =
                (0..rows).map(|i| if i % 3 == 2 { NO_TOKEN } else { (i * 7919 % cols) as f32 }).collect();
            let (at, out) = (sheet.given(1, rows, &tokens), sheet.blank(1, rows));
            let item = CrossEntropy { logits: z, tokens: at.at, out: out.at, factor: 0.5 };
            cross_entropy(&mut sheet.arena, &[item]);
            let (mut terms, mut slopes) = (Vec::new(), Vec::new());
            for (z, token) in logits.chunks(cols).zip(&tokens) {
                let total: f64 = z.iter().map(|z| f64::from(*z).exp()).sum();
                let p = z.iter().map(|z| f64::from(*z).exp() / total);
                let came = |k: usize| *token == k as f32;
                let one = |(k, p): (usize, f64)| 0.5 * (p - if came(k) { 1.0 } else { 0.0 });
                let there = *token != NO_TOKEN;
                terms.push(if there { total.ln() - f64::from(z[*token as usize]) } else { 0.0 });
                slopes.extend(p.enumerate().map(|(k, p)| if there { one((k, p)) } else { 0.0 }));
            }
            assert_close("cross entropy", &sheet.read(out), &terms, 2.0 * TOLERANCE);
            assert_close("gradient", &sheet.read(z), &slopes, TOLERANCE);
        }
    });
}

#[test]
fn squares_of_columns_are_added() {
    on_every_device(|sheet| {
        for (rows, cols) in [(1, 1), (7, 33), (1031, 70)] {
            let ((x, numbers), (out, before)) = (sheet.spaced(rows, cols), sheet.random(1, cols));
            column_squares(&mut sheet.arena, &[ColumnSquares { x, out: out.at }]);
            let mut expected = wide(&before);
            for row in numbers.chunks(cols) {
                expected.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x).powi(2));
            }
            assert_close("squares", &sheet.read(out), &expected, TOLERANCE);
        }
    });
}

#[test]
fn factors_of_packed_layers_get_their_gradients() {
    on_every_device(|sheet| {
        let (m, r) = (37, 40);
        let ((latents, a), (product, p)) = (sheet.random(m, r), sheet.random(m, r));
        let ((scales, h), (latent_scales, l)) = (sheet.random(1, m), sheet.random(1, r));
        let out = sheet.blank(1, m);
        let (scales, latent_scales) = (scales.at, latent_scales.at);
        let item = FactorGradient { latents, product, scales, latent_scales, out: out.at };
        factor_gradient(&mut sheet.arena, &[item]);
        let entry = |i: usize, k: usize| f64::from(l[k]) * f64::from(p[i * r + k]);
        let sign = |x: f32| if x < 0.0 { -1.0 } else { 1.0 };
        let sums: Vec<f64> = (0..m).map(|i| (0..r).map(|k| sign(a[i * r + k]) * entry(i, k)).sum()).collect();
        let all: Vec<f64> = (0..m * r).map(|at| f64::from(h[at / r]) * entry(at / r, at % r)).collect();
        assert_close("scales", &sheet.read(out), &sums, TOLERANCE);
        assert_close("latents", &sheet.read(product), &all, TOLERANCE);
    });
}

#[test]
fn steps_of_adam_are_the_hosts() {
    on_every_device(|sheet| {
        let len = 5000;
        let (x, start) = sheet.random(1, len);
        let [mean, square] = [(); 2].map(|()| sheet.blank(1, len).at);
        let (mut expected, mut m, mut v) = (wide(&start), vec![0.0; len], vec![0.0; len]);
        for step in 0..5 {
            let (gradient, g) = sheet.random(1, len);
            let item = Adam { parameters: x.at, gradient: gradient.at, mean, square, len, rate: 0.01 };
            adam(&mut sheet.arena, step, &[item]);
            for k in 0..len {
                let slope = f64::from(g[k]);
                m[k] = 0.9 * m[k] + 0.1 * slope;
                v[k] = 0.999 * v[k] + 0.001 * slope * slope;
                let [c1, c2] = [0.9f64, 0.999].map(|b| 1.0 / (1.0 - b.powi(step as i32 + 1)));
                expected[k] -= 0.01 * (c1 * m[k]) / ((c2 * v[k]).sqrt() + 1e-10);
            }
        }
        assert_close("adam", &sheet.read(x), &expected, TOLERANCE);
    });
}
