//! The decoder's ops on every device that is there, one body for all, against formulas written plainly in f64: sizes that
//! are no multiple of any tile, several items in a table, results poisoned with NaN.

mod common;
#[path = "common/sheet.rs"]
mod sheet;

use std::f64::consts::PI;
use std::ops::Range;

use lapidary::device::arena::View;
use lapidary::ops::attention::{Heads, Mask};
use lapidary::ops::attention_batch::{Attention, CachedAttention, attention_batch, attention_cached};
use lapidary::ops::draw::{Draw, draw, draw_batch, draw_tolerance};
use lapidary::ops::gated::{Activation, Gated, gated_batch};
use lapidary::ops::log_softmax::{LOG_PROBABILITY_TOLERANCE, LogProbability, log_probability_batch};
use lapidary::ops::non_finite::{NonFinite, non_finite};
use lapidary::ops::rms_norm::{RmsNorm, rms_norm_batch};
use lapidary::ops::rope::{Frequencies, Positions, Rope, Rotation, rope_batch};
use lapidary::ops::scatter::{Scatter, scatter};
use sheet::{Sheet, assert_close};

/// Relative to numbers of order one: sums of a few hundred f32 products.
const TOLERANCE: f64 = 4e-6;

/// The same for attention: scores of up to sqrt(128), in an exponential.
const ATTENTION_TOLERANCE: f64 = 2e-5;

/// The same for GELU: the error of its exponent, at most 40 before the factor saturates.
const GELU_TOLERANCE: f64 = 2e-5;

/// Runs a body once a device.
fn on_every_device(body: impl Fn(&mut Sheet)) {
    for device in common::devices() {
        body(&mut Sheet::new(&device));
    }
}

#[test]
fn rows_are_normed() {
    on_every_device(|sheet| {
        let mut items = Vec::new();
        for (rows, cols) in [(1, 1), (13, 37), (70, 576)] {
            let ((x, x_numbers), (weight, w)) = (sheet.spaced(rows, cols), sheet.random(1, cols));
            let y = sheet.blank(rows, cols);
            let expected: Vec<f64> = (x_numbers.chunks(cols))
                .flat_map(|row| {
                    let square: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
                    let scale = 1.0 / (square / cols as f64 + 1e-5).sqrt();
                    row.iter().zip(&w).map(move |(x, w)| f64::from(*x) * scale * f64::from(*w))
                })
                .collect();
            items.push((RmsNorm { x, weight: weight.at, y }, expected));
        }
        let norms: Vec<RmsNorm> = items.iter().map(|item| item.0).collect();
        rms_norm_batch(&mut sheet.arena, 1e-5, &norms);
        for (norm, expected) in &items {
            assert_close("norm", &sheet.read(norm.y), expected, TOLERANCE);
        }
    });
}

#[test]
fn heads_are_turned_to_their_positions() {
    on_every_device(|sheet| {
        let (dim, most) = (6, 400);
        let rotation = Rotation::new(dim, Frequencies::unscaled(10_000.0), 0..most);
        let turns = sheet.given(most, dim, rotation.numbers());
        let listed: Vec<f32> = (0..17).map(|i| ((i * 71) % most) as f32).collect();
        let at = sheet.given(1, 17, &listed).at;
        let ((q, q_numbers), (k, k_numbers)) = (sheet.spaced(15, 3 * dim), sheet.spaced(17, dim));
        let items = [
            Rope { x: q, turns, positions: Positions::Windows { len: 5 } },
            Rope { x: k, turns, positions: Positions::Listed { at } },
        ];
        rope_batch(&mut sheet.arena, &items);
        let turned = |numbers: &[f32], cols: usize, position: &dyn Fn(usize) -> usize| -> Vec<f64> {
            let mut out: Vec<f64> = numbers.iter().map(|x| f64::from(*x)).collect();
            for (row, x) in out.chunks_mut(cols).enumerate() {
                for head in x.chunks_mut(dim) {
                    for i in 0..dim / 2 {
                        let frequency = 10_000f64.powf(-2.0 * i as f64 / dim as f64);
                        let (sin, cos) = (position(row) as f64 * frequency).sin_cos();
                        let (a, b) = (head[i], head[i + dim / 2]);
                        (head[i], head[i + dim / 2]) = (a * cos - b * sin, b * cos + a * sin);
                    }
                }
            }
            out
        };
        assert_close("windows", &sheet.read(q), &turned(&q_numbers, 3 * dim, &|row| row % 5), TOLERANCE);
        let expected = turned(&k_numbers, dim, &|row| listed[row] as usize);
        assert_close("listed", &sheet.read(k), &expected, TOLERANCE);
    });
}

#[test]
fn gates_are_closed_and_opened() {
    on_every_device(|sheet| {
        let (rows, cols) = (37, 131);
        let gates: Vec<f32> = (0..rows * cols).map(|k| (k as f32 - 2400.0) * 0.05).collect();
        for (activation, tolerance) in [(Activation::Silu, TOLERANCE), (Activation::GeluTanh, GELU_TOLERANCE)]
        {
            let (gate, (up, factors)) = (sheet.given(rows, cols, &gates), sheet.spaced(rows, cols));
            gated_batch(&mut sheet.arena, activation, &[Gated { gate, up }]);
            let expected: Vec<f64> =
                gates.iter().zip(&factors).map(|(g, u)| activate(activation, *g) * f64::from(*u)).collect();
            assert_close(&format!("{activation:?}"), &sheet.read(gate), &expected, tolerance);
        }
    });
}

fn activate(activation: Activation, g: f32) -> f64 {
    let g = f64::from(g);
    match activation {
        Activation::Silu => g / (1.0 + (-g).exp()),
        Activation::GeluTanh => 0.5 * g * (1.0 + ((2.0 / PI).sqrt() * (g + 0.044715 * g.powi(3))).tanh()),
    }
}

const MASKS: [Mask; 5] = [
    Mask::Causal,
    Mask::Sliding { window: 1 },
    Mask::Sliding { window: 20 },
    Mask::Sliding { window: 65 },
    Mask::Sliding { window: 5000 },
];

/// Positions that a query at this one sees.
fn shown(mask: Mask, position: usize) -> Range<usize> {
    match mask {
        Mask::Causal => 0..position + 1,
        Mask::Sliding { window } => (position + 1).saturating_sub(window)..position + 1,
    }
}

/// Attention of one query over these keys.
fn attend(heads: Heads, q: &[f32], k: &[f32], v: &[f32], seen: Range<usize>) -> Vec<f64> {
    let (k, v) = (&k[seen.start * heads.kv_width()..], &v[seen.start * heads.kv_width()..]);
    let seen = seen.len();
    let (dim, width) = (heads.head_dim, heads.kv_width());
    let mut out = Vec::new();
    for head in 0..heads.heads {
        let kv = head / (heads.heads / heads.kv_heads) * dim;
        let q = &q[head * dim..][..dim];
        let score = |s: usize| -> f64 {
            let k = &k[s * width + kv..][..dim];
            let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            dot / (dim as f64).sqrt()
        };
        let weights: Vec<f64> = (0..seen).map(|s| score(s).exp()).collect();
        let total: f64 = weights.iter().sum();
        out.extend((0..dim).map(|j| {
            let terms = weights.iter().enumerate().map(|(s, w)| w * f64::from(v[s * width + kv + j]));
            terms.sum::<f64>() / total
        }));
    }
    out
}

#[test]
fn windows_attend_to_what_came_before() {
    let groups: [(Heads, &[(usize, usize)]); 5] = [
        (Heads { heads: 4, kv_heads: 2, head_dim: 8 }, &[(1, 1), (33, 33), (5, 77), (70, 150)]),
        (Heads { heads: 3, kv_heads: 1, head_dim: 64 }, &[(130, 130), (9, 9)]),
        (Heads { heads: 2, kv_heads: 2, head_dim: 126 }, &[(40, 65)]),
        (Heads { heads: 4, kv_heads: 1, head_dim: 250 }, &[(40, 65), (67, 67)]),
        (Heads { heads: 1, kv_heads: 1, head_dim: 16 }, &[(2048, 2048)]),
    ];
    on_every_device(|sheet| {
        for (heads, sizes) in groups {
            let mut items = Vec::new();
            for (queries, keys) in sizes {
                // Larger scores than a model's, so that the running softmax has something to scale down.
                let ((q, mut x), (k, y), (v, z)) = (
                    sheet.random(*queries, heads.width()),
                    sheet.random(*keys, heads.kv_width()),
                    sheet.random(*keys, heads.kv_width()),
                );
                x.iter_mut().for_each(|x| *x *= 4.0);
                sheet.arena.write(q.at, &x);
                let out = sheet.blank(*queries, heads.width());
                items.push((Attention { q, k, v, out }, [x, y, z]));
            }
            let windows: Vec<Attention> = items.iter().map(|item| item.0).collect();
            for mask in MASKS {
                for Attention { out, .. } in &windows {
                    sheet.arena.write(out.at, &vec![f32::NAN; out.len()]);
                }
                attention_batch(&mut sheet.arena, heads, mask, &windows);
                for (Attention { q, k, out, .. }, [x, y, z]) in &items {
                    let expected: Vec<f64> = (x.chunks(heads.width()).enumerate())
                        .flat_map(|(t, x)| attend(heads, x, y, z, shown(mask, k.rows - q.rows + t)))
                        .collect();
                    let what = format!("{} of {} keys, {heads:?}, {mask:?}", q.rows, k.rows);
                    assert_close(&what, &sheet.read(*out), &expected, ATTENTION_TOLERANCE);
                }
            }
        }
    });
}

#[test]
fn sequences_attend_to_their_own_cache() {
    on_every_device(|sheet| {
        for (heads, room) in [
            (Heads { heads: 6, kv_heads: 2, head_dim: 8 }, 700),
            (Heads { heads: 2, kv_heads: 1, head_dim: 100 }, 300),
            (Heads { heads: 3, kv_heads: 1, head_dim: 256 }, 270),
        ] {
            let positions = [0, 7, room - 1, 64, 255];
            let count = positions.len();
            let (q, x) = sheet.random(count, heads.width());
            let (keys, y) = sheet.random(count * room, heads.kv_width());
            let (values, z) = sheet.random(count * room, heads.kv_width());
            let listed = sheet.given(1, count, &positions.map(|p| p as f32));
            for mask in MASKS {
                let out = sheet.blank(count, heads.width());
                let item = CachedAttention { q, keys, values, positions: listed.at, out };
                attention_cached(&mut sheet.arena, heads, mask, &[item]);
                let cache = room * heads.kv_width();
                let expected: Vec<f64> = (x.chunks(heads.width()).enumerate())
                    .flat_map(|(s, x)| {
                        attend(heads, x, &y[s * cache..], &z[s * cache..], shown(mask, positions[s]))
                    })
                    .collect();
                let what = format!("cached, {heads:?}, {mask:?}");
                assert_close(&what, &sheet.read(out), &expected, ATTENTION_TOLERANCE);
            }
        }
    });
}

/// Draws from every row of `logits` with these temperatures and numbers.
fn drawn(sheet: &mut Sheet, logits: View, draws: &[[f32; 2]]) -> Vec<usize> {
    let of = |k: usize| draws.iter().map(|draw| draw[k]).collect::<Vec<f32>>();
    let [temperatures, uniforms] = [of(0), of(1)].map(|numbers| sheet.given(1, draws.len(), &numbers).at);
    let tokens = sheet.blank(1, draws.len());
    draw_batch(&mut sheet.arena, &[Draw { logits, temperatures, uniforms, tokens: tokens.at }]);
    sheet.read(tokens).into_iter().map(|token| token as usize).collect()
}

#[test]
fn numbers_draw_tokens_by_their_probability() {
    on_every_device(|sheet| {
        let mut same = 0;
        for (rows, cols, spread) in [(9, 1, 1.0), (40, 37, 4.0), (33, 1000, 12.0), (8, 50_257, 9.0)] {
            let numbers: Vec<f32> = sheet.numbers(rows * cols).iter().map(|z| spread * z).collect();
            let logits = sheet.given(rows, cols, &numbers);
            let mut draws: Vec<[f32; 2]> = sheet.numbers(rows).iter().map(|u| [0.8, u.abs()]).collect();
            draws[rows - 1] = [1.3, 0.0];
            draws[rows - 2] = [1.3, 1.0 - f32::EPSILON / 2.0];
            let found = drawn(sheet, logits, &draws);
            for ((logits, [temperature, u]), token) in numbers.chunks(cols).zip(draws).zip(found) {
                let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let weight = |z: &f32| (f64::from(z - top) / f64::from(temperature)).exp();
                let total: f64 = logits.iter().map(weight).sum();
                let before = logits[..token].iter().map(weight).sum::<f64>() / total;
                let behind = before + weight(&logits[token]) / total;
                let (u_exact, slack) = (f64::from(u), draw_tolerance(cols));
                assert!(
                    before - slack <= u_exact && u_exact <= behind + slack,
                    "{cols} logits: {u} drew token {token} of {before} to {behind}"
                );
                same += usize::from(token == draw(logits, temperature, u));
            }
        }
        assert!(same >= 88, "{same} of 90 draws are the host's");
    });
}

#[test]
fn likely_tokens_are_drawn_as_on_the_host() {
    // Eight tokens with weight among many without: each takes far more than the tolerance.
    const WEIGHTS: [f32; 8] = [1.0, 7.0, 2.0, 5.0, 3.0, 1.0, 4.0, 2.0];
    on_every_device(|sheet| {
        let (rows, cols) = (25, 3001);
        let place = |k: usize| 5 + k * 397;
        let mut numbers = vec![-150.0; rows * cols];
        for row in numbers.chunks_mut(cols) {
            WEIGHTS.iter().enumerate().for_each(|(k, weight)| row[place(k)] = weight.ln());
        }
        let logits = sheet.given(rows, cols, &numbers);
        // The weights add to 25: number i is in the middle of one unit.
        let draws: Vec<[f32; 2]> = (0..rows).map(|i| [1.0, (i as f32 + 0.5) / 25.0]).collect();
        let units = |(k, weight): (usize, &f32)| vec![place(k); *weight as usize];
        let expected: Vec<usize> = WEIGHTS.iter().enumerate().flat_map(units).collect();
        assert_eq!(drawn(sheet, logits, &draws), expected);
        let ends = [0.0, 1.0 - f32::EPSILON / 2.0].map(|u| [1.0, u]);
        let two = logits.part((0, 0), (2, cols));
        assert_eq!(drawn(sheet, two, &ends), [place(0), place(7)], "tokens without weight never come");
        sheet.arena.write(logits.at + 2999, &[7f32.ln()]);
        let greedy = [[0.0, 0.9]; 2];
        assert_eq!(drawn(sheet, two, &greedy), [place(1); 2], "the first of equals");
    });
}

#[test]
fn log_probabilities_follow_their_formula() {
    on_every_device(|sheet| {
        for (rows, cols) in [(3, 1), (9, 333), (2, 100_003)] {
            let numbers: Vec<f32> = sheet.numbers(rows * cols).iter().map(|z| 30.0 + 9.0 * z).collect();
            let logits = sheet.given(rows, cols, &numbers);
            let target = |row: usize| (row * 7919 + 5) % cols;
            let targets: Vec<f32> = (0..rows).map(|row| target(row) as f32).collect();
            let (targets, out) = (sheet.given(1, rows, &targets).at, sheet.blank(1, rows));
            log_probability_batch(&mut sheet.arena, &[LogProbability { logits, targets, out: out.at }]);
            for (row, (z, found)) in numbers.chunks(cols).zip(sheet.read(out)).enumerate() {
                let sum: f64 = z.iter().map(|z| (f64::from(*z) - 39.0).exp()).sum();
                let exact = f64::from(z[target(row)]) - 39.0 - sum.ln();
                let apart = (f64::from(found) - exact).abs();
                assert!(apart <= LOG_PROBABILITY_TOLERANCE, "{cols} logits: {found}, {exact}");
            }
            sheet.arena.write(logits.at, &[f32::NAN]);
            log_probability_batch(&mut sheet.arena, &[LogProbability { logits, targets, out: out.at }]);
            assert!(sheet.read(out)[0].is_nan(), "what is not finite shows");
        }
    });
}

#[test]
fn the_first_column_that_is_not_finite_is_found() {
    on_every_device(|sheet| {
        let (rows, cols) = (19, 333);
        let (a, _) = sheet.spaced(rows, cols);
        let bad = [(0, 332, f32::NAN), (7, 5, f32::INFINITY), (7, 40, f32::NAN), (18, 0, f32::NEG_INFINITY)];
        for (row, column, value) in bad {
            sheet.arena.write(a.at + row * a.stride + column, &[value]);
        }
        let out = sheet.blank(1, rows);
        non_finite(&mut sheet.arena, &[NonFinite { a, out: out.at }]);
        let mut expected = vec![cols as f32; rows];
        (expected[0], expected[7], expected[18]) = (332.0, 5.0, 0.0);
        assert_eq!(sheet.read(out), expected);
    });
}

#[test]
fn rows_go_to_their_places() {
    on_every_device(|sheet| {
        let (a, numbers) = sheet.spaced(3, 1500);
        let out = sheet.blank(9, 1500);
        let places = sheet.given(1, 3, &[4.0, 0.0, 8.0]).at;
        scatter(&mut sheet.arena, &[Scatter { a, out, places }]);
        let found = sheet.read(out);
        for (row, place) in [4, 0, 8].into_iter().enumerate() {
            assert_eq!(found[place * 1500..][..1500], numbers[row * 1500..][..1500]);
        }
        assert!(found[1500..4 * 1500].iter().all(|x| x.is_nan()), "other rows stay");
    });
}
