use lapidary::device::arena::View;
use lapidary::ops::column_search_batch::{ColumnSearchItem, column_search_batch};
use lapidary::ops::row_flips::{RowFlips, row_flips_batch};

use super::{Given, Sheet, on_every_device};

struct Rows {
    s: Given,
    h: Given,
    q: Given,
    c: Given,
    item: RowFlips,
}

/// Whole numbers and halves: everything is exact in f32, so results must be the same to the last flip.
fn rows(sheet: &mut Sheet, m: usize, r: usize) -> Rows {
    let s = sheet.signs(m, r);
    let h = sheet.matrix(1, m, |_, i| [0.5, 1.0, -0.5, 2.0, 0.0][i % 5]);
    let x = sheet.random(r, 5);
    let x = |i: usize, k: usize| (3.0 * x.at(i, k)).round();
    let q = sheet
        .matrix(r, r, |i, j| (0..5).map(|k| x(i, k) * x(j, k)).sum::<f64>() + if i == j { 2.0 } else { 0.0 });
    let c = sheet.random(m, r);
    let c = sheet.fill(c.view, |i, k| (20.0 * c.at(i, k)).round());
    let sq = sheet.matrix(m, r, |i, k| (0..r).map(|p| s.at(i, p) * q.at(p, k)).sum());
    let (scale, flips) = (h.view.at, sheet.room(m));
    let item = RowFlips { signs: s.view, scale, q: q.view, sq: sq.view, c: c.view, flips };
    Rows { s, h, q, c, item }
}

/// The definition, sequentially, in f64.
fn flipped(rows: &Rows, i: usize) -> (Vec<f64>, f64) {
    let (r, h, q) = (rows.q.view.rows, rows.h.at(0, i), &rows.q);
    let mut s: Vec<f64> = (0..r).map(|k| rows.s.at(i, k)).collect();
    let mut flips = 0.0;
    for _ in 0..4 {
        let before = flips;
        for k in 0..r {
            let qs: f64 = (0..r).map(|p| q.at(k, p) * s[p]).sum();
            let change = 4.0 * h * s[k] * (rows.c.at(i, k) - h * (qs - q.at(k, k) * s[k]));
            if change < -1e-7 * h * h * q.at(k, k) {
                s[k] = -s[k];
                flips += 1.0;
            }
        }
        if flips == before {
            break;
        }
    }
    (s, flips)
}

#[test]
fn rows_flip_in_the_order_of_their_entries() {
    on_every_device(|sheet| {
        let problems: Vec<_> = [(1, 1), (11, 40), (6, 300), (3, 257)].map(|(m, r)| rows(sheet, m, r)).into();
        row_flips_batch(&mut sheet.arena, &problems.iter().map(|p| p.item).collect::<Vec<_>>());
        let mut total = 0.0;
        for problem in &problems {
            let (m, r) = (problem.s.view.rows, problem.s.view.cols);
            let (s, flips) = (sheet.read(problem.s.view), sheet.read_vector(problem.item.flips, m));
            for i in 0..m {
                let expected = flipped(problem, i);
                assert_eq!((&s[i * r..][..r], flips[i]), (&expected.0[..], expected.1), "row {i} of {m}x{r}");
                total += flips[i];
            }
        }
        assert!(total > 100.0, "{total} flips");
    });
}

struct Columns {
    s: Given,
    b: Given,
    k: Given,
    rt: Given,
    item: ColumnSearchItem,
}

fn columns(sheet: &mut Sheet, n: usize, r: usize) -> Columns {
    let (s, b) = (sheet.signs(n, r), sheet.random(n, r));
    let x = sheet.random(r, r);
    let k = sheet.matrix(r, r, |i, j| {
        (0..r).map(|p| x.at(i, p) * x.at(j, p)).sum::<f64>() / r as f64 + if i == j { 0.5 } else { 0.0 }
    });
    let noise = sheet.random(n, n);
    let rt = sheet.matrix(n, n, |i, j| match j {
        j if j > i => 0.0,
        j if j == i => 1.0 + 0.1 * noise.at(i, i),
        _ => 0.05 * noise.at(i, j),
    });
    let (scale, flips) = (sheet.room(n), sheet.room(n));
    let (ks, errors) = (sheet.blank(n, r), sheet.blank(128, r));
    let item = ColumnSearchItem {
        signs: s.view,
        b: b.view,
        k: k.view,
        r_transposed: rt.view,
        scale,
        flips,
        ks,
        errors,
        parts: View::EMPTY,
    };
    Columns { s, b, k, rt, item }
}

/// Signs and scales by the definition, column by column, in f64.
fn searched(problem: &Columns) -> (Vec<f64>, Vec<f64>) {
    let (n, r) = (problem.s.view.rows, problem.s.view.cols);
    let (mut signs, mut scales) = (Vec::new(), Vec::new());
    let mut b: Vec<Vec<f64>> = (0..n).map(|j| (0..r).map(|k| problem.b.at(j, k)).collect()).collect();
    for j in 0..n {
        let mut s: Vec<f64> = (0..r).map(|k| problem.s.at(j, k)).collect();
        let g = search(&mut s, &b[j], &problem.k);
        let ks = times(&problem.k, &s);
        for k in 0..r {
            let e = (b[j][k] - g * ks[k]) / problem.rt.at(j, j);
            (j + 1..n).for_each(|later| b[later][k] -= problem.rt.at(later, j) * e);
        }
        signs.extend(s);
        scales.push(g);
    }
    (signs, scales)
}

fn times(k: &Given, s: &[f64]) -> Vec<f64> {
    (0..s.len()).map(|i| s.iter().enumerate().map(|(j, s)| k.at(i, j) * s).sum()).collect()
}

fn search(s: &mut [f64], b: &[f64], k: &Given) -> f64 {
    let fit = |s: &mut [f64]| {
        let energy: f64 = times(k, s).iter().zip(&*s).map(|(ks, s)| ks * s).sum();
        let g = b.iter().zip(&*s).map(|(b, s)| b * s).sum::<f64>() / energy;
        if g < 0.0 {
            s.iter_mut().for_each(|s| *s = -*s);
        }
        g.abs()
    };
    let mut g = fit(s);
    for _ in 0..3 {
        let mut flips = 0;
        while flips < 4 * s.len() {
            let ks = times(k, s);
            let change = |i: usize| 4.0 * g * s[i] * (b[i] - g * (ks[i] - k.at(i, i) * s[i]));
            let best = (1..s.len()).fold(0, |best, i| if change(i) < change(best) { i } else { best });
            if change(best) >= -1e-7 * g * g * k.at(best, best) {
                break;
            }
            s[best] = -s[best];
            flips += 1;
        }
        let before = std::mem::replace(&mut g, fit(s));
        if flips == 0 || (g - before).abs() <= 1e-6 * before.abs() {
            break;
        }
    }
    g
}

#[test]
fn columns_are_searched_and_their_errors_fed_on() {
    on_every_device(|sheet| {
        // One block, several, and more entries than a workgroup has threads.
        let problems: Vec<_> =
            [(1, 1), (60, 24), (150, 40), (20, 270)].map(|(n, r)| columns(sheet, n, r)).into();
        column_search_batch(&mut sheet.arena, &problems.iter().map(|p| p.item).collect::<Vec<_>>());
        for problem in &problems {
            let (n, r) = (problem.s.view.rows, problem.s.view.cols);
            let (signs, scales) = searched(problem);
            let found = sheet.read(problem.s.view);
            let different = found.iter().zip(&signs).filter(|(a, b)| a != b).count();
            assert!(different * 1000 <= n * r, "{n}x{r}: {different} signs differ");
            let g = View::vector(problem.item.scale, n);
            super::assert_close(&sheet.read(g), g, 1e-3, |_, j| scales[j]);
            assert!(sheet.read_vector(problem.item.flips, n).iter().all(|flips| *flips >= 0.0));
        }
    });
}

#[test]
fn columns_whose_loops_are_cut_short_say_so() {
    on_every_device(|sheet| {
        // Every row of K is (−1, 2, 0, ...), which no Gram could be: a flip of the first sign changes nothing, so a search
        // may take it back and forth as often as it is allowed to, 4r times. Mesa's software adapter ends the loops of
        // so many columns before that.
        let (n, r) = (128, 127);
        let s = sheet.matrix(n, r, |_, k| if k > 0 && k % 2 == 0 { -1.0 } else { 1.0 });
        let b = sheet.matrix(n, r, |j, k| if k == 0 { 0.0 } else { s.at(j, k) });
        let k = sheet.matrix(1, r, |_, k| [-1.0, 2.0].get(k).copied().unwrap_or(0.0));
        let k = View { at: k.view.at, rows: r, cols: r, stride: 0 };
        let r_transposed = sheet.matrix(n, n, |i, j| if i == j { 1.0 } else { 0.0 }).view;
        let (scale, flips) = (sheet.room(n), sheet.room(n));
        let (ks, errors) = (sheet.blank(n, r), sheet.blank(128, r));
        let (signs, b) = (s.view, b.view);
        column_search_batch(
            &mut sheet.arena,
            &[ColumnSearchItem { signs, b, k, r_transposed, scale, flips, ks, errors, parts: View::EMPTY }],
        );
        let cut = sheet.arena.turns() < usize::MAX;
        for at in [scale, flips] {
            let found = sheet.read_vector(at, n);
            assert!(found.iter().all(|v| v.is_nan() == cut), "{found:?}");
        }
    });
}
