//! The ops of wide dictionaries on every device that has them, one body for all: the formula written plainly in f64, at
//! sizes that are no multiple of any block, results poisoned with NaN.

mod common;
#[path = "common/sheet.rs"]
mod sheet;

use lapidary::device::arena::View;
use lapidary::ops::atom_lists::{AtomLists, SPAN, atom_lists};
use lapidary::ops::atom_sums::{AtomSums, atom_sums};
use lapidary::ops::conjugate::{Conjugate, conjugate_step, conjugate_turn};
use lapidary::ops::dots::{Dots, col_dots};
use lapidary::ops::powers::{Powers, powers};
use lapidary::ops::principal::{Principal, principal};
use lapidary::ops::random::{Normal, RandomCode, random_code, random_normal};
use lapidary::ops::round_atoms::{RoundAtoms, round_atoms};
use lapidary::ops::sparse_code::{SparseCode, sparse_code};
use lapidary::ops::sparse_rows::{SparseRows, sparse_rows};
use lapidary::ops::support_gram::{SupportGram, support_gram};
use lapidary::ops::top_atoms::{TopAtoms, top_atoms};
use sheet::{Sheet, assert_close};

/// Relative to numbers of order one: sums of some hundred f32 products.
const TOLERANCE: f64 = 2e-5;

/// The same for logarithms and turns of random numbers, and for factors of small systems.
const LOOSE: f64 = 2e-4;

fn on_every_device(body: impl Fn(&mut Sheet)) {
    for device in common::tuning_devices() {
        body(&mut Sheet::new(&device));
    }
}

fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|x| f64::from(*x)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Different atoms for each row, with a pattern that visits all.
fn supports(rows: usize, k: usize, atoms: usize) -> Vec<u32> {
    let row = |i: usize| (0..k).map(move |j| ((i * 7 + j * (atoms / k).max(1)) % atoms) as u32);
    (0..rows).flat_map(row).collect()
}

fn indices(sheet: &mut Sheet, rows: usize, cols: usize, numbers: &[u32]) -> View {
    let bits: Vec<f32> = numbers.iter().map(|x| f32::from_bits(*x)).collect();
    sheet.given(rows, cols, &bits)
}

fn read_indices(sheet: &mut Sheet, view: View) -> Vec<u32> {
    sheet.read(view).iter().map(|x| x.to_bits()).collect()
}

#[test]
fn the_best_atoms_are_chosen() {
    on_every_device(|sheet| {
        for (rows, atoms, m, k) in [(3, 5, 2, 4), (17, 700, 1, 9), (5, 3001, 2, 16)] {
            let (scores, s) = sheet.spaced(rows, atoms * m);
            let squares: Vec<f32> = sheet.numbers(atoms * m).iter().map(|x| x.abs() + 0.1).collect();
            let at = sheet.given(1, atoms * m, &squares).at;
            let taken = k / 3;
            let first = supports(rows, k, atoms);
            let support = indices(sheet, rows, k, &first);
            top_atoms(
                &mut sheet.arena,
                &[TopAtoms { scores, squares: at, support, taken, add: k - taken, rows_an_atom: m }],
            );
            let found = read_indices(sheet, support);
            for i in 0..rows {
                let s = &s[i * atoms * m..(i + 1) * atoms * m];
                let gain = |k: usize| match m {
                    1 => s[k] * s[k] / squares[k],
                    _ => s[2 * k].hypot(s[2 * k + 1]) - 0.25 * (squares[2 * k] + squares[2 * k + 1]),
                };
                let row = &found[i * k..(i + 1) * k];
                assert_eq!(row[..taken], first[i * k..i * k + taken], "those it has stay");
                let mut left: Vec<usize> =
                    (0..atoms).filter(|a| !row[..taken].contains(&(*a as u32))).collect();
                left.sort_by(|a, b| gain(*b).total_cmp(&gain(*a)).then(a.cmp(b)));
                for (chosen, best) in row[taken..].iter().zip(left) {
                    let (found, expected) = (gain(*chosen as usize), gain(best));
                    assert!((found - expected).abs() < 1e-6, "row {i}: {found}, expected {expected}");
                }
                let mut distinct = row.to_vec();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!(distinct.len(), k, "row {i} has an atom twice");
            }
        }
    });
}

#[test]
fn small_normal_equations_are_assembled_and_solved() {
    on_every_device(|sheet| {
        for (rows, atoms, m, k, r) in
            [(5, 9, 1, 3, 40), (3, 70, 2, 20, 101), (2, 90, 1, 64, 130), (4, 64, 2, 3, 33)]
        {
            let ((y, ys), (d, ds)) = (sheet.spaced(rows, r), sheet.spaced(atoms * m, r));
            let s = supports(rows, k, atoms);
            let support = indices(sheet, rows, k, &s);
            let n = k * m;
            let (gram, right, values) =
                (sheet.blank(rows, n * n), sheet.blank(rows, n), sheet.blank(rows, n));
            support_gram(
                &mut sheet.arena,
                &[SupportGram { rows: y, decoder: d, support, rows_an_atom: m, gram, right }],
            );
            let (ys, ds) = (wide(&ys), wide(&ds));
            let line = |i: usize, a: usize| {
                let row = s[i * k + a / m] as usize * m + a % m;
                &ds[row * r..(row + 1) * r]
            };
            let pairs = (0..rows).flat_map(|i| (0..n * n).map(move |e| (i, e / n, e % n)));
            let expected: Vec<f64> = pairs.map(|(i, a, b)| dot(line(i, a), line(i, b))).collect();
            assert_close("gram", &sheet.read(gram), &expected, TOLERANCE);
            let each = (0..rows).flat_map(|i| (0..n).map(move |a| (i, a)));
            let expected: Vec<f64> = each.map(|(i, a)| dot(line(i, a), &ys[i * r..(i + 1) * r])).collect();
            assert_close("right", &sheet.read(right), &expected, TOLERANCE);
            let code =
                SparseCode { gram, right, values, known: 0, stiffness: f32::INFINITY, rows_an_atom: m };
            sparse_code(&mut sheet.arena, &[code]);
            let u = wide(&sheet.read(values));
            for i in 0..rows {
                let u = &u[i * n..(i + 1) * n];
                let missed = |u: &[f64]| {
                    let left =
                        (0..r).map(|c| ys[i * r + c] - (0..n).map(|a| u[a] * line(i, a)[c]).sum::<f64>());
                    left.map(|v| v * v).sum::<f64>()
                };
                let here = missed(u);
                // No step that the atoms allow leads lower: rays move freely, circles turn.
                for a in (0..n).step_by(m) {
                    for step in [-1e-2, 1e-2] {
                        let mut moved = u.to_vec();
                        if m == 1 {
                            moved[a] += step;
                        } else {
                            let (sin, cos) = f64::sin_cos(step);
                            assert!((u[a].hypot(u[a + 1]) - 1.0).abs() < 1e-5);
                            (moved[a], moved[a + 1]) =
                                (cos * u[a] - sin * u[a + 1], sin * u[a] + cos * u[a + 1]);
                        }
                        let there = missed(&moved);
                        // Eight passes over strongly coherent circles are not to the end.
                        let slack = if m == 1 || k < 10 { 1e-3 } else { 0.1 } * here.max(0.1);
                        assert!(there >= here - slack, "row {i}, unknown {a}: {here} falls to {there}");
                    }
                }
            }
        }
    });
}

#[test]
fn a_soft_amplitude_lies_between_free_and_one() {
    on_every_device(|sheet| {
        // One circle of radius 2 and a row of length 3 in its plane: a = (|h| + κ)/(λ + κ) with |h| = 6, λ = 4.
        let gram = sheet.given(1, 4, &[4.0, 0.0, 0.0, 4.0]);
        let right = sheet.given(1, 2, &[0.0, 6.0]);
        let values = sheet.blank(1, 2);
        for (stiffness, amplitude) in [(0.0, 1.5), (4.0, 1.25), (f32::INFINITY, 1.0)] {
            sparse_code(
                &mut sheet.arena,
                &[SparseCode { gram, right, values, known: 0, stiffness, rows_an_atom: 2 }],
            );
            assert_close("amplitude", &sheet.read(values), &[0.0, amplitude], TOLERANCE);
        }
    });
}

#[test]
fn sparse_products_and_their_transposed_agree_with_dense_ones() {
    on_every_device(|sheet| {
        for (rows, atoms, m, k, r) in [(150, 11, 2, 3, 37), (9, 300, 1, 7, 260), (SPAN, 8, 2, 4, 128)] {
            let (d, ds) = sheet.spaced(atoms * m, r);
            let (values, u) = sheet.random(rows, k * m);
            let (x, xs) = sheet.spaced(rows, r);
            let s = supports(rows, k, atoms);
            let support = indices(sheet, rows, k, &s);
            let (u, ds, xs) = (wide(&u), wide(&ds), wide(&xs));
            let dense = |i: usize| {
                let mut h = vec![0.0; atoms * m];
                (0..k * m).for_each(|a| h[s[i * k + a / m] as usize * m + a % m] = u[i * k * m + a]);
                h
            };
            let out = sheet.blank(rows, r);
            sparse_rows(
                &mut sheet.arena,
                &[SparseRows { support, values, decoder: d, base: Some(x), out, alpha: -0.5 }],
            );
            let entry = |i: usize, c: usize| {
                xs[i * r + c] - 0.5 * dense(i).iter().enumerate().map(|(a, h)| h * ds[a * r + c]).sum::<f64>()
            };
            let expected: Vec<f64> = (0..rows * r).map(|e| entry(e / r, e % r)).collect();
            assert_close("rows", &sheet.read(out), &expected, TOLERANCE);

            let (starts, counts) = (sheet.blank(1, atoms + 1), sheet.blank(rows.div_ceil(SPAN), atoms));
            let entries = sheet.blank(1, rows * k);
            let activity = sheet.given(1, atoms, &vec![1.0; atoms]);
            let lists = AtomLists { support, starts, entries: entries.at, counts, activity: activity.at };
            atom_lists(&mut sheet.arena, &[lists]);
            let (from, list) = (read_indices(sheet, starts), read_indices(sheet, entries));
            assert_eq!(from[atoms] as usize, rows * k);
            for a in 0..atoms {
                let expected: Vec<u32> =
                    (0..(rows * k) as u32).filter(|e| s[*e as usize] == a as u32).collect();
                assert_eq!(list[from[a] as usize..from[a + 1] as usize], expected, "list of atom {a}");
                assert_eq!(sheet.read(activity)[a], 1.0 + expected.len() as f32);
            }
            let (out, squares) = (
                sheet.given(atoms * m, r, &vec![1.0; atoms * m * r]),
                sheet.given(1, atoms * m, &vec![0.0; atoms * m]),
            );
            for (keep, alpha, base) in [(0.0f32, 2.0f32, 0.0), (0.5, 1.0, 2.0)] {
                let sums = AtomSums {
                    starts,
                    entries: entries.at,
                    values,
                    columns: k,
                    rows: x,
                    out,
                    keep,
                    alpha,
                    squares: (alpha == 2.0).then_some(squares.at),
                };
                atom_sums(&mut sheet.arena, &[sums]);
                let hs: Vec<Vec<f64>> = (0..rows).map(dense).collect();
                let entry = |a: usize, c: usize| {
                    let sum: f64 = (0..rows).map(|i| hs[i][a] * xs[i * r + c]).sum();
                    sum * (f64::from(alpha) + base * f64::from(keep))
                };
                let expected: Vec<f64> = (0..atoms * m * r).map(|e| entry(e / r, e % r)).collect();
                assert_close("sums", &sheet.read(out), &expected, 4.0 * TOLERANCE);
            }
            let square = |a: usize| (0..rows).map(|i| dense(i)[a].powi(2)).sum::<f64>();
            let expected: Vec<f64> = (0..atoms * m).map(square).collect();
            assert_close("squares", &sheet.read(squares), &expected, TOLERANCE);
        }
    });
}

#[test]
fn conjugate_gradients_solve_a_small_system() {
    on_every_device(|sheet| {
        // A = diag(w) + 1·1ᵀ, which conjugate gradients with Jacobi solve in few steps.
        let (n, r) = (37, 23);
        let weights: Vec<f32> = (0..n).map(|i| 2.0 + i as f32).collect();
        let diagonal = sheet.given(1, n, &weights).at;
        let (b, bs) = sheet.random(n, r);
        let mut zeros = || sheet.given(n, r, &vec![0.0; n * r]);
        let (solution, direction, image, scaled) = (zeros(), zeros(), zeros(), zeros());
        let lines: Vec<usize> = (0..3).map(|_| sheet.given(1, r, &vec![0.0; r]).at).collect();
        let [before, curvature, after] = [lines[0], lines[1], lines[2]];
        let item =
            Conjugate { solution, rest: b, direction, image, scaled, diagonal, before, curvature, after };
        conjugate_step(&mut sheet.arena, &[item]);
        let z = sheet.read(scaled);
        sheet.arena.write(direction.at, &z);
        col_dots(&mut sheet.arena, &[Dots { a: b, b: scaled, out: before }]);
        let apply = |p: &[f64]| -> Vec<f64> {
            let sums: Vec<f64> = (0..r).map(|j| (0..n).map(|i| p[i * r + j]).sum()).collect();
            (0..n * r).map(|e| (f64::from(weights[e / r]) - 1.0) * p[e] + sums[e % r]).collect()
        };
        for _ in 0..12 {
            let p = wide(&sheet.read(direction));
            let q: Vec<f32> = apply(&p).iter().map(|q| *q as f32).collect();
            sheet.arena.write(image.at, &q);
            col_dots(&mut sheet.arena, &[Dots { a: direction, b: image, out: curvature }]);
            conjugate_step(&mut sheet.arena, &[item]);
            col_dots(&mut sheet.arena, &[Dots { a: b, b: scaled, out: after }]);
            conjugate_turn(&mut sheet.arena, &[item]);
            let next = sheet.arena.read(after, r).unwrap();
            sheet.arena.write(before, &next);
        }
        let again: Vec<f32> = apply(&wide(&sheet.read(solution))).iter().map(|x| *x as f32).collect();
        assert_close("A·x", &again, &wide(&bs), LOOSE);
    });
}

#[test]
fn pairs_become_round_and_rays_of_length_one() {
    on_every_device(|sheet| {
        let (atoms, r) = (7, 150);
        let (pairs, before) = sheet.spaced(2 * atoms, r);
        round_atoms(&mut sheet.arena, &[RoundAtoms { decoder: pairs, rows_an_atom: 2 }]);
        let (after, before) = (wide(&sheet.read(pairs)), wide(&before));
        for k in 0..atoms {
            let pair = |x: &[f64]| {
                [x[2 * k * r..(2 * k + 1) * r].to_vec(), x[(2 * k + 1) * r..(2 * k + 2) * r].to_vec()]
            };
            let ([x, y], [u, v]) = (pair(&before), pair(&after));
            let (a, b, c) = (dot(&x, &x), dot(&y, &y), dot(&x, &y));
            // Half the trace of the square root of the Gram.
            let radius = 0.5 * (a + b + 2.0 * (a * b - c * c).sqrt()).sqrt();
            for (found, expected) in
                [(dot(&u, &u), radius.powi(2)), (dot(&v, &v), radius.powi(2)), (dot(&u, &v), 0.0)]
            {
                assert!((found - expected).abs() < 1e-4 * radius * radius, "{found}, expected {expected}");
            }
            // The nearest round pair: moving it by a rotation in its plane only gets further away.
            assert!((dot(&x, &v) - dot(&y, &u)).abs() < 1e-3, "atom {k} is turned");
        }
        let (rays, before) = sheet.spaced(atoms, r);
        round_atoms(&mut sheet.arena, &[RoundAtoms { decoder: rays, rows_an_atom: 1 }]);
        let before = wide(&before);
        let unit = before.chunks(r).flat_map(|x| x.iter().map(|v| v / dot(x, x).sqrt()));
        assert_close("rays", &sheet.read(rays), &unit.collect::<Vec<_>>(), TOLERANCE);
    });
}

#[test]
fn random_numbers_are_the_same_in_parts() {
    on_every_device(|sheet| {
        let (rows, cols) = (130, 67);
        let whole = sheet.blank(rows, cols);
        let fill = |out, first| Normal { out, seed: 11, first, deviation: 2.0 };
        random_normal(&mut sheet.arena, &[fill(whole, 0)]);
        let numbers = wide(&sheet.read(whole));
        let (mean, n) = (numbers.iter().sum::<f64>() / numbers.len() as f64, numbers.len() as f64);
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        assert!(mean.abs() < 0.1 && (variance - 4.0).abs() < 0.3, "mean {mean}, variance {variance}");
        let part = sheet.blank(30, cols);
        random_normal(&mut sheet.arena, &[fill(part, 100)]);
        assert_eq!(wide(&sheet.read(part)), numbers[100 * cols..]);

        let (support, values) = (sheet.blank(rows, 5), sheet.blank(rows, 10));
        random_code(&mut sheet.arena, &[RandomCode { support, values, atoms: 12, seed: 5, first: 0 }]);
        let (atoms, u) = (read_indices(sheet, support), wide(&sheet.read(values)));
        for row in atoms.chunks(5) {
            assert!(row.iter().all(|a| *a < 12) && (0..5).all(|i| !row[..i].contains(&row[i])), "{row:?}");
        }
        assert!(u.chunks(2).all(|u| (u[0].hypot(u[1]) - 1.0).abs() < 1e-5));
        let (later, turns) = (sheet.blank(30, 5), sheet.blank(30, 10));
        random_code(
            &mut sheet.arena,
            &[RandomCode { support: later, values: turns, atoms: 12, seed: 5, first: 100 }],
        );
        assert_eq!(read_indices(sheet, later), atoms[500..]);
    });
}

/// What the host draws is what a device draws, to roundings of logarithm and cosine: planted data is one.
#[test]
fn devices_draw_the_same() {
    let drawn: Vec<(Vec<f64>, Vec<u32>)> = (common::tuning_devices().iter())
        .map(|device| {
            let sheet = &mut Sheet::new(device);
            let (out, support, values) = (sheet.blank(50, 40), sheet.blank(50, 4), sheet.blank(50, 8));
            random_normal(&mut sheet.arena, &[Normal { out, seed: 1 << 40 | 3, first: 9, deviation: 1.0 }]);
            random_code(&mut sheet.arena, &[RandomCode { support, values, atoms: 64, seed: 2, first: 9 }]);
            let mut numbers = wide(&sheet.read(out));
            numbers.extend(wide(&sheet.read(values)));
            (numbers, read_indices(sheet, support))
        })
        .collect();
    for other in &drawn[1..] {
        assert_eq!(other.1, drawn[0].1);
        let numbers: Vec<f32> = other.0.iter().map(|x| *x as f32).collect();
        assert_close("drawn", &numbers, &drawn[0].0, LOOSE);
    }
}

#[test]
fn powers_and_principal_axes() {
    on_every_device(|sheet| {
        let (a, numbers) = sheet.spaced(13, 70);
        let out = sheet.blank(13, 70);
        powers(&mut sheet.arena, &[Powers { a, out, power: 3 }]);
        let cubes: Vec<f64> = wide(&numbers).iter().map(|x| x.powi(3)).collect();
        assert_close("cubes", &sheet.read(out), &cubes, TOLERANCE);
        // C = Σ λ_k e_k e_kᵀ over a Householder basis: its axes are known.
        let (p, r) = (20, 4);
        let v: Vec<f64> = (0..p).map(|i| (i as f64 + 1.0) / 53.6).collect();
        let v: Vec<f64> = v.iter().map(|x| x / dot(&v, &v).sqrt()).collect();
        let axis = |k: usize| -> Vec<f64> {
            (0..p).map(|i| f64::from(u8::from(i == k)) - 2.0 * v[i] * v[k]).collect()
        };
        let value = |k: usize| 10.0 / (1.0 + k as f64);
        let entry = |i: usize, j: usize| (0..p).map(|k| value(k) * axis(k)[i] * axis(k)[j]).sum::<f64>();
        let c: Vec<f32> = (0..p * p).map(|e| entry(e / p, e % p) as f32).collect();
        let gram = sheet.given(p, p, &c);
        let (axes, scratch) = (sheet.blank(r, p), [sheet.blank(p, p), sheet.blank(p, r)]);
        let found = principal(&mut sheet.arena, &[Principal { gram, axes, scratch }]).unwrap();
        let values = found[0].clone().unwrap();
        let axes = wide(&sheet.read(axes));
        for k in 0..r {
            assert!((values[k] - value(k)).abs() < 1e-4, "{values:?}");
            assert!((dot(&axes[k * p..(k + 1) * p], &axis(k)).abs() - 1.0).abs() < 1e-5, "axis {k}");
        }
    });
}
