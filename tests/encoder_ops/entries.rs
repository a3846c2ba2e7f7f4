//! Scalings, permutations, inner products.

use lapidary::device::arena::View;
use lapidary::ops::dots::{Dots, PARTS, col_dots, inner, row_dots, total};
use lapidary::ops::gather::{Gather, Order, gather};
use lapidary::ops::scale::{Scale, scale};

use super::{Given, Sheet, assert_close, on_every_device, rounding};

const SHAPES: [(usize, usize); 5] = [(1, 1), (9, 33), (70, 131), (129, 40), (2, 300)];

#[test]
fn rows_and_columns_are_scaled() {
    on_every_device(|sheet| {
        let items: Vec<_> = SHAPES
            .map(|(rows, cols)| {
                (sheet.random(rows, cols), sheet.vector(rows), sheet.vector(cols), sheet.blank(rows, cols))
            })
            .into();
        let scalings: Vec<_> = items
            .iter()
            .map(|(a, row, col, out)| Scale::new(a.view, *out).rows(row.view.at).cols(col.view.at))
            .collect();
        scale(&mut sheet.arena, &scalings);
        for (a, row, col, out) in &items {
            assert_close(&sheet.read(*out), *out, rounding(1), |i, j| {
                row.at(0, i) * a.at(i, j) * col.at(0, j)
            });
        }
    });
}

#[test]
fn signs_are_taken_and_results_added_in_place() {
    on_every_device(|sheet| {
        let a = sheet.matrix(35, 70, |i, j| ((i * 3 + j) % 5) as f64 - 2.0);
        let row = sheet.vector(35);
        scale(&mut sheet.arena, &[Scale::new(a.view, a.view).rows(row.view.at).sign().add()]);
        assert_close(&sheet.read(a.view), a.view, rounding(1), |i, j| {
            a.at(i, j) + row.at(0, i) * if a.at(i, j) < 0.0 { -1.0 } else { 1.0 }
        });
    });
}

#[test]
fn entries_are_multiplied_and_cut_in_two_of_eleven_bits() {
    on_every_device(|sheet| {
        let mut a = sheet.random(35, 70);
        let special = [0.0, -0.0, 1.0, 1.0 + f64::from(f32::EPSILON), f64::from(f32::MAX) / 2.0];
        a = sheet.fill(a.view, |i, j| if i == 0 && j < special.len() { special[j] } else { a.at(i, j) });
        let [leading, rest] = [0; 2].map(|_| sheet.blank(35, 70));
        let product = sheet.random(35, 70);
        scale(
            &mut sheet.arena,
            &[
                Scale::new(a.view, leading).leading(),
                Scale::new(a.view, rest).rest(),
                Scale::new(a.view, product.view).times(),
            ],
        );
        let [leading, rest] = [leading, rest].map(|view| sheet.read(view));
        for (k, (leading, rest)) in leading.iter().zip(&rest).enumerate() {
            let a = a.values[k];
            let low = |x: f64| (x as f32).to_bits() & 0x1fff;
            assert_eq!((low(*leading), low(*rest)), (0, 0), "{a}: {leading} and {rest}");
            assert!((leading + rest - a).abs() <= 2f64.powi(-23) * a.abs(), "{a}: {leading} and {rest}");
        }
        assert_close(&sheet.read(product.view), product.view, 1e35, |i, j| a.at(i, j) * product.at(i, j));
        let infinite = sheet.matrix(1, 2, |_, j| if j == 0 { f64::INFINITY } else { f64::NAN });
        scale(&mut sheet.arena, &[Scale::new(infinite.view, infinite.view).leading()]);
        let found = sheet.read(infinite.view);
        assert!(found[0] == f64::INFINITY && found[1].is_nan(), "{found:?}");
    });
}

#[test]
fn rows_and_columns_are_permuted() {
    on_every_device(|sheet| {
        for (rows, cols) in SHAPES {
            let a = sheet.random(rows, cols);
            let row = sheet.matrix(1, rows, |_, i| ((i * 7 + 3) % rows) as f64);
            let col = sheet.matrix(1, cols, |_, j| (cols - 1 - j) as f64);
            let across = sheet.random(cols, rows);
            let [both, one, turned] = [0; 3].map(|_| sheet.blank(rows, cols));
            let (rows, cols) = (Some(row.view.at), Some(col.view.at));
            let items = [
                Gather { a: a.view, out: both, rows, cols, order: Order::Straight },
                Gather { a: a.view, out: one, rows: None, cols, order: Order::Straight },
                Gather { a: across.view, out: turned, rows, cols, order: Order::Transposed },
            ];
            gather(&mut sheet.arena, &items);
            let (from, last) = (|i: usize| row.at(0, i) as usize, a.view.cols - 1);
            assert_close(&sheet.read(both), both, 0.0, |i, j| a.at(from(i), last - j));
            assert_close(&sheet.read(one), one, 0.0, |i, j| a.at(i, last - j));
            assert_close(&sheet.read(turned), turned, 0.0, |i, j| across.at(last - j, from(i)));
        }
    });
}

/// Two matrices of every shape, and as many blank numbers as `len` says.
fn pairs(sheet: &mut Sheet, len: fn((usize, usize)) -> usize) -> Vec<(Given, Given, usize)> {
    SHAPES
        .map(|(rows, cols)| {
            (sheet.random(rows, cols), sheet.random(rows, cols), sheet.room(len((rows, cols))))
        })
        .into()
}

fn dots(pairs: &[(Given, Given, usize)]) -> Vec<Dots> {
    pairs.iter().map(|(a, b, out)| Dots { a: a.view, b: b.view, out: *out }).collect()
}

#[test]
fn inner_products_of_rows() {
    on_every_device(|sheet| {
        let pairs = pairs(sheet, |(rows, _)| rows);
        row_dots(&mut sheet.arena, &dots(&pairs));
        for ((rows, cols), (a, b, out)) in SHAPES.iter().zip(&pairs) {
            let view = View::vector(*out, *rows);
            assert_close(&sheet.read(view), view, rounding(*cols), |_, i| {
                (0..*cols).map(|k| a.at(i, k) * b.at(i, k)).sum()
            });
        }
    });
}

#[test]
fn inner_products_of_columns() {
    on_every_device(|sheet| {
        let pairs = pairs(sheet, |(_, cols)| cols);
        col_dots(&mut sheet.arena, &dots(&pairs));
        for ((rows, cols), (a, b, out)) in SHAPES.iter().zip(&pairs) {
            let view = View::vector(*out, *cols);
            assert_close(&sheet.read(view), view, rounding(*rows), |_, k| {
                (0..*rows).map(|i| a.at(i, k) * b.at(i, k)).sum()
            });
        }
    });
}

#[test]
fn inner_products_of_matrices() {
    on_every_device(|sheet| {
        let pairs = pairs(sheet, |_| PARTS);
        inner(&mut sheet.arena, &dots(&pairs));
        for ((rows, cols), (a, b, out)) in SHAPES.iter().zip(&pairs) {
            let parts = sheet.arena.read(*out, PARTS).unwrap();
            let expected: f64 = a.values.iter().zip(&b.values).map(|(a, b)| a * b).sum();
            assert!((total(&parts) - expected).abs() <= rounding(rows * cols), "{rows}x{cols}");
        }
    });
}

/// A grid of one dimension holds 65,535 workgroups.
#[test]
fn more_workgroups_than_one_dimension_of_a_grid() {
    on_every_device(|sheet| {
        let rows = 530_000;
        let (a, out) = (sheet.room(rows), sheet.room(rows));
        let values: Vec<f32> = (0..rows).map(|i| (i % 1000) as f32).collect();
        sheet.arena.write(a, &values);
        let ones = sheet.room(rows);
        sheet.arena.write(ones, &vec![1.0; rows]);
        let column = |at: usize| View::new(at, rows, 1);
        let item = Dots { a: column(a), b: column(ones), out };
        row_dots(&mut sheet.arena, &[item]);
        let found = sheet.arena.read(out, rows).unwrap();
        assert!(found.iter().zip(&values).all(|(found, value)| found == value));
    });
}
