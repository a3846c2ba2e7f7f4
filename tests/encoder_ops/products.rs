use lapidary::ops::gemm::{Gemm, gemm};

use super::{Given, Sheet, assert_close, on_every_device, rounding};

/// m, n, k
const SHAPES: [(usize, usize, usize); 5] =
    [(1, 1, 1), (70, 67, 37), (130, 5, 200), (3, 129, 16), (65, 64, 17)];

struct Operands {
    a: Given,
    b: Given,
    a_transposed: bool,
    b_transposed: bool,
}

impl Operands {
    fn new(sheet: &mut Sheet, (m, n, k): (usize, usize, usize), transposed: (bool, bool)) -> Self {
        let a = if transposed.0 { sheet.random(k, m) } else { sheet.random(m, k) };
        let b = if transposed.1 { sheet.random(n, k) } else { sheet.random(k, n) };
        Self { a, b, a_transposed: transposed.0, b_transposed: transposed.1 }
    }

    fn product(&self, c: lapidary::device::arena::View) -> Gemm {
        let product = Gemm::new(self.a.view, self.b.view, c);
        let product = if self.a_transposed { product.a_transposed() } else { product };
        if self.b_transposed { product.b_transposed() } else { product }
    }

    fn entry(&self, i: usize, j: usize) -> f64 {
        let k = if self.a_transposed { self.a.view.rows } else { self.a.view.cols };
        let a = |p| if self.a_transposed { self.a.transposed(i, p) } else { self.a.at(i, p) };
        let b = |p| if self.b_transposed { self.b.transposed(p, j) } else { self.b.at(p, j) };
        (0..k).map(|p| a(p) * b(p)).sum()
    }
}

#[test]
fn products_of_every_orientation_in_one_launch() {
    on_every_device(|sheet| {
        let mut items = Vec::new();
        for shape in SHAPES {
            for transposed in [(false, false), (true, false), (false, true), (true, true)] {
                let operands = Operands::new(sheet, shape, transposed);
                let c = sheet.blank(shape.0, shape.1);
                items.push((operands, c, shape.2));
            }
        }
        let products: Vec<_> = items.iter().map(|(operands, c, _)| operands.product(*c).alpha(1.5)).collect();
        gemm(&mut sheet.arena, &products);
        for (operands, c, k) in &items {
            assert_close(&sheet.read(*c), *c, 1.5 * rounding(*k), |i, j| 1.5 * operands.entry(i, j));
        }
    });
}

#[test]
fn products_are_added_scaled_and_shifted() {
    on_every_device(|sheet| {
        for shape in SHAPES {
            let operands = Operands::new(sheet, shape, (false, true));
            let before = sheet.random(shape.0, shape.1);
            let c = before.view;
            gemm(&mut sheet.arena, &[operands.product(c).alpha(-1.0).beta(0.5).diagonal(2.0)]);
            assert_close(&sheet.read(c), c, 4.0 * rounding(shape.2), |i, j| {
                0.5 * before.at(i, j) - operands.entry(i, j) + if i == j { 2.0 } else { 0.0 }
            });
        }
    });
}

#[test]
fn products_are_multiplied_entry_by_entry() {
    on_every_device(|sheet| {
        for shape in SHAPES {
            let operands = Operands::new(sheet, shape, (true, false));
            let h = sheet.random(shape.0, shape.1);
            let c = sheet.blank(shape.0, shape.1);
            gemm(&mut sheet.arena, &[operands.product(c).hadamard(h.view)]);
            assert_close(&sheet.read(c), c, rounding(shape.2), |i, j| operands.entry(i, j) * h.at(i, j));
        }
    });
}

#[test]
fn a_lower_product_is_right_on_and_below_the_diagonal() {
    on_every_device(|sheet| {
        let operands = Operands::new(sheet, (150, 150, 33), (true, false));
        let c = sheet.blank(150, 150);
        gemm(&mut sheet.arena, &[operands.product(c).lower()]);
        let found = sheet.read(c);
        for (i, j) in (0..150).flat_map(|i| (0..=i).map(move |j| (i, j))) {
            assert!((found[i * 150 + j] - operands.entry(i, j)).abs() <= rounding(33), "({i}, {j})");
        }
    });
}

#[test]
fn a_lower_product_may_be_taller_than_wide() {
    on_every_device(|sheet| {
        let operands = Operands::new(sheet, (200, 70, 33), (false, true));
        let c = sheet.blank(200, 70);
        gemm(&mut sheet.arena, &[operands.product(c).lower()]);
        let found = sheet.read(c);
        for (i, j) in (0..200).flat_map(|i| (0..=i.min(69)).map(move |j| (i, j))) {
            assert!((found[i * 70 + j] - operands.entry(i, j)).abs() <= rounding(33), "({i}, {j})");
        }
    });
}

#[test]
fn signs_of_products_and_of_zero() {
    on_every_device(|sheet| {
        // Small whole numbers: their sums are exact, and some are zero.
        let a = sheet.matrix(67, 19, |i, p| ((i * 5 + p * 3) % 3) as f64 - 1.0);
        let b = sheet.matrix(19, 70, |p, j| ((p * 7 + j * 2) % 3) as f64 - 1.0);
        let c = sheet.blank(67, 70);
        gemm(&mut sheet.arena, &[Gemm::new(a.view, b.view, c).sign()]);
        let entry = |i: usize, j: usize| (0..19).map(|p| a.at(i, p) * b.at(p, j)).sum::<f64>();
        assert!((0..70).any(|j| entry(0, j) == 0.0));
        assert_close(&sheet.read(c), c, 0.0, |i, j| if entry(i, j) < 0.0 { -1.0 } else { 1.0 });
    });
}

#[test]
fn a_product_is_skipped_where_its_flag_is_raised() {
    on_every_device(|sheet| {
        let operands = Operands::new(sheet, (5, 6, 7), (false, false));
        let flags = sheet.matrix(1, 2, |_, j| j as f64).view.at;
        let (done, skipped) = (sheet.blank(5, 6), sheet.blank(5, 6));
        gemm(
            &mut sheet.arena,
            &[operands.product(done).skip(flags), operands.product(skipped).skip(flags + 1)],
        );
        assert_close(&sheet.read(done), done, rounding(7), |i, j| operands.entry(i, j));
        assert!(sheet.read(skipped).iter().all(|value| value.is_nan()));
    });
}
