use lapidary::device::arena::{Arena, Layout, View};
use lapidary::ops::gauge_rows::{GaugeRows, gauge_rows};
use lapidary::ops::gemm::{Gemm, gemm};
use lapidary::ops::pair_solve::{PairSolve, Unknown, pair_solve};
use lapidary::ops::polar_batch::{Polar, polar_batch};
use lapidary::ops::rank_one_batch::{RankOne, rank_one_batch};
use lapidary::ops::splitmix::SplitMix64;

use super::{Given, Sheet, assert_close, on_every_device, rounding};

#[test]
fn rows_are_normalised_and_weighted() {
    on_every_device(|sheet| {
        let mut items = Vec::new();
        for (rows, r) in [(1, 1), (13, 37), (70, 8), (5, 131)] {
            let numbers = sheet.random(rows, r);
            let a = sheet.fill(numbers.view, |i, j| if i == 2 { 0.0 } else { numbers.at(i, j) });
            items.push((a, sheet.vector(rows), sheet.blank(rows, r), sheet.blank(rows, r)));
        }
        let weights = |at: usize, d: &Given| at.is_multiple_of(2).then_some(d.view.at);
        let rows: Vec<_> = items
            .iter()
            .enumerate()
            .map(|(at, (a, d, z, w))| GaugeRows {
                a: a.view,
                weights: weights(at, d),
                normalised: *z,
                weighted: *w,
            })
            .collect();
        gauge_rows(&mut sheet.arena, &rows);
        for (at, (a, d, z, w)) in items.iter().enumerate() {
            let norm = |i: usize| (0..a.view.cols).map(|k| a.at(i, k) * a.at(i, k)).sum::<f64>().sqrt();
            let tolerance = norm(0).max(1.0) * rounding(a.view.cols);
            assert_close(&sheet.read(*z), *z, tolerance, |i, k| {
                if norm(i) > 0.0 { a.at(i, k) / norm(i) } else { 0.0 }
            });
            let d = |i: usize| weights(at, d).map_or(1.0, |_| d.at(0, i));
            assert_close(&sheet.read(*w), *w, tolerance, |i, k| a.at(i, k) * norm(i) * d(i));
        }
    });
}

#[test]
fn systems_of_one_and_two_unknowns() {
    on_every_device(|sheet| {
        let m = 300;
        let [p, q] = [sheet.vector(m), sheet.vector(m)];
        let a = sheet.matrix(1, m, |_, i| if i == 7 { 0.0 } else { 1.0 + (i % 5) as f64 });
        let d = sheet.matrix(1, m, |_, i| 1.0 + (i % 3) as f64);
        // Row 9 is indefinite.
        let b = sheet.matrix(1, m, |_, i| if i == 9 { 9.0 } else { 0.5 });
        let mut unknown = |rhs: &Given, diagonal: &Given| {
            let x = sheet.room(m);
            Unknown { rhs: rhs.view.at, diagonal: diagonal.view.at, x }
        };
        let (alone, first, second) = (unknown(&p, &a), unknown(&p, &a), unknown(&q, &d));
        let items = [
            PairSolve { rows: m, first: alone, second: None },
            PairSolve { rows: m, first, second: Some((second, b.view.at)) },
        ];
        pair_solve(&mut sheet.arena, &items);
        let [alone, x, y] = [alone, first, second].map(|unknown| sheet.read_vector(unknown.x, m));
        for i in 0..m {
            let (p, q, a, b, d) = (p.at(0, i), q.at(0, i), a.at(0, i), b.at(0, i), d.at(0, i));
            let determinant = a * d - b * b;
            assert_eq!(alone[i].is_nan(), i == 7);
            assert!(i == 7 || (alone[i] - p / a).abs() < 1e-6);
            assert_eq!((x[i].is_nan(), y[i].is_nan()), (determinant <= 0.0, determinant <= 0.0));
            if determinant > 0.0 {
                assert!((x[i] - (d * p - b * q) / determinant).abs() < 1e-5, "{i}: {}", x[i]);
                assert!((y[i] - (a * q - b * p) / determinant).abs() < 1e-5, "{i}: {}", y[i]);
            }
        }
    });
}

/// A polar problem whose matrices have no gaps between rows.
fn polar(sheet: &mut Sheet, r: usize, entry: impl Fn(usize, usize) -> f64) -> (Given, Polar) {
    let mut square = || View::new(sheet.room(r * r), r, r);
    let [a, x, y, m] = [square(), square(), square(), square()];
    let status = sheet.matrix(1, 1, |_, _| 0.0).view.at;
    (sheet.fill(a, entry), Polar { a, x, y, m, done: sheet.room(1), status, parts: View::EMPTY })
}

#[test]
fn polar_factors_are_orthogonal_and_leave_a_symmetric_rest() {
    on_every_device(|sheet| {
        let entry =
            |i: usize, j: usize| ((i * 7 + j * 13) % 11) as f64 - 5.0 + if i == j { 9.0 } else { 0.0 };
        let mut items: Vec<_> = [1, 37, 70].map(|r| polar(sheet, r, entry)).into();
        items.push(polar(sheet, 9, |i, j| if j == 3 { 0.0 } else { entry(i, j) }));
        items.push(polar(sheet, 5, |i, _| if i == 1 { f64::NAN } else { 1.0 }));
        let problems: Vec<_> = items.iter().map(|(_, problem)| *problem).collect();
        polar_batch(&mut sheet.arena, &problems);
        for (at, (a, problem)) in items.iter().enumerate() {
            let status = sheet.read_vector(problem.status, 1)[0];
            assert_eq!(status, if at < 3 { 0.0 } else { 1.0 }, "item {at}");
            if status != 0.0 {
                continue;
            }
            let r = a.view.rows;
            let q = sheet.read(problem.x);
            let q = |i: usize, j: usize| q[i * r + j];
            let rest = |i: usize, j: usize| (0..r).map(|k| q(k, i) * a.at(k, j)).sum::<f64>();
            for (i, j) in (0..r).flat_map(|i| (0..r).map(move |j| (i, j))) {
                let one = (0..r).map(|k| q(k, i) * q(k, j)).sum::<f64>();
                assert!((one - if i == j { 1.0 } else { 0.0 }).abs() < 1e-5, "item {at} ({i}, {j}): {one}");
                assert!((rest(i, j) - rest(j, i)).abs() < 1e-3, "item {at} ({i}, {j}): {}", rest(i, j));
            }
            assert!((0..r).all(|i| rest(i, i) > 0.0));
        }
    });
}

/// Those with room to be taken apart go other steps, which round on a card alone.
#[test]
fn large_polar_factors_are_orthogonal() {
    for device in crate::common::tuning_devices() {
        let r = 1296;
        let mut layout = Layout::default();
        let [a, x, y, m] = [(); 4].map(|()| layout.matrix(r, r));
        let (done, status, parts) = (layout.vector(1), layout.vector(1), layout.matrix(1, 4));
        let mut arena = Arena::new(&device, layout.most()).unwrap();
        let mut random = SplitMix64::new(5);
        let diagonal = |k: usize| if k.is_multiple_of(r + 1) { 8.0 } else { 0.0 };
        let numbers: Vec<f32> = (0..r * r).map(|k| random.signed() as f32 + diagonal(k)).collect();
        arena.write(a.at, &numbers);
        arena.write(status, &[0.0]);
        polar_batch(&mut arena, &[Polar { a, x, y, m, done, status, parts }]);
        gemm(&mut arena, &[Gemm::new(x, x, y).a_transposed(), Gemm::new(x, a, m).a_transposed()]);
        let [done, status] = [done, status].map(|at| arena.read(at, 1).unwrap()[0]);
        assert_eq!((done, status), (1.0, 0.0), "{}", device.name());
        let [gram, rest] = [y, m].map(|view| arena.read(view.at, view.len()).unwrap());
        let apart = |k: usize| gram[k] - if k.is_multiple_of(r + 1) { 1.0 } else { 0.0 };
        let sum: f32 = (0..r * r).map(|k| apart(k).powi(2)).sum();
        assert!(sum.sqrt() <= 1.5e-5 * (r as f32).sqrt(), "{}: {}", device.name(), sum.sqrt());
        // QᵀA is symmetric.
        let (i, j) = (0..r * r)
            .map(|k| (k / r, k % r))
            .max_by(|p, q| {
                let apart = |(i, j): (usize, usize)| (rest[i * r + j] - rest[j * r + i]).abs();
                apart(*p).total_cmp(&apart(*q))
            })
            .unwrap();
        let (one, other) = (rest[i * r + j], rest[j * r + i]);
        assert!((one - other).abs() < 0.1, "{} ({i}, {j}): {one} and {other}", device.name());
    }
}

/// Power iteration as it is defined, in f64.
fn leading_pair(a: &Given) -> (Vec<f64>, Vec<f64>) {
    let (m, r) = (a.view.rows, a.view.cols);
    let mut lambda = vec![1.0 / (r as f64).sqrt(); r];
    let product = |lambda: &[f64], i: usize| (0..r).map(|k| a.at(i, k).abs() * lambda[k]).sum::<f64>();
    for _ in 0..200 {
        let x: Vec<f64> = (0..m).map(|i| product(&lambda, i)).collect();
        let next: Vec<f64> = (0..r).map(|k| (0..m).map(|i| a.at(i, k).abs() * x[i]).sum()).collect();
        let norm = next.iter().map(|v| v * v).sum::<f64>().sqrt();
        lambda = next.iter().map(|v| v / norm).collect();
    }
    ((0..m).map(|i| product(&lambda, i)).collect(), lambda)
}

#[test]
fn magnitudes_are_fitted_by_one_rank() {
    on_every_device(|sheet| {
        let shapes = [(1, 1), (77, 35), (130, 70), (9, 300)];
        let items: Vec<_> = shapes
            .map(|(m, r)| {
                let a = sheet.random(m, r);
                let fit = RankOne { a: a.view, x: sheet.room(m), lambda: sheet.room(r), next: sheet.room(r) };
                (a, fit)
            })
            .into();
        let zero = sheet.matrix(5, 6, |_, _| 0.0);
        let nothing = RankOne { a: zero.view, x: sheet.room(5), lambda: sheet.room(6), next: sheet.room(6) };
        let fits: Vec<_> = items.iter().map(|(_, fit)| *fit).chain([nothing]).collect();
        rank_one_batch(&mut sheet.arena, &fits);
        for (a, fit) in &items {
            let (x, lambda) = leading_pair(a);
            let (x_view, lambda_view) =
                (View::vector(fit.x, x.len()), View::vector(fit.lambda, lambda.len()));
            let largest = x.iter().fold(0.0, |most: f64, x| most.max(*x));
            assert_close(&sheet.read(x_view), x_view, 1e-5 * largest, |_, i| x[i]);
            assert_close(&sheet.read(lambda_view), lambda_view, 1e-5, |_, k| lambda[k]);
        }
        assert_eq!(sheet.read_vector(nothing.x, 5), [0.0; 5]);
    });
}
