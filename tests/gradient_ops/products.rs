//! Products of training, rounded to TF32.

use super::*;

/// Operands in [-1, 1) rounded to 11 bits each, sums of 576 products: 2·2^-11·sqrt(576/9) at one standard deviation.
const TF32_TOLERANCE: f64 = 5.0 * 0.008;

/// Sums of 35 such products, twice their standard deviation of 2^-11·sqrt(35/9)·sqrt(2) five times over.
const SMALL_TF32_TOLERANCE: f64 = 0.015;

#[test]
fn small_rounded_products_stay_close_in_every_order() {
    let depth = 35;
    for device in common::tuning_devices() {
        let mut sheet = Sheet::new(&device);
        let mut items = Vec::new();
        for (a_turned, b_turned) in [(false, false), (false, true), (true, false), (true, true)] {
            for (m, n) in [(3, 5), (64, 64), (100, 72), (129, 130)] {
                let turned = |turned, rows, cols| if turned { (cols, rows) } else { (rows, cols) };
                let [(am, an), (bm, bn)] = [turned(a_turned, m, depth), turned(b_turned, depth, n)];
                let ((a, x), (b, y), (c, z)) =
                    (sheet.random(am, an), sheet.random(bm, bn), sheet.random(m, n));
                let mut item = Gemm::new(a, b, c).alpha(0.5).beta(2.0).precision(Precision::Tf32);
                item = if a_turned { item.a_transposed() } else { item };
                item = if b_turned { item.b_transposed() } else { item };
                items.push((item, c, [x, y, z], (m, n), (a_turned, b_turned)));
            }
        }
        gemm(&mut sheet.arena, &items.iter().map(|item| item.0).collect::<Vec<_>>());
        let mut worst = 0.0f64;
        for (_, c, [x, y, z], (m, n), (a_turned, b_turned)) in items {
            let found = sheet.read(c);
            for (at, z) in z.iter().enumerate() {
                let (i, j) = (at / n, at % n);
                let term = |k: usize| {
                    let x = x[if a_turned { k * m + i } else { i * depth + k }];
                    f64::from(x) * f64::from(y[if b_turned { j * depth + k } else { k * n + j }])
                };
                let exact = 0.5 * (0..depth).map(term).sum::<f64>() + 2.0 * f64::from(*z);
                worst = worst.max((f64::from(found[at]) - exact).abs());
            }
        }
        println!("{}: {worst:.1e} at most off", device.name());
        assert!(worst <= SMALL_TF32_TOLERANCE, "{worst:e}");
    }
}

#[test]
fn rounded_products_stay_close() {
    for device in common::tuning_devices() {
        let mut sheet = Sheet::new(&device);
        // Large enough for a card's library.
        let ((a, x), (b, y)) = (sheet.random(1000, 576), sheet.random(500, 576));
        let c = sheet.blank(1000, 500);
        let item = Gemm::new(a, b, c).b_transposed().precision(Precision::Tf32);
        gemm(&mut sheet.arena, &[item]);
        let (found, mut worst) = (sheet.read(c), 0.0f64);
        for at in (0..found.len()).step_by(397) {
            let (i, j) = (at / 500, at % 500);
            let exact = dot(&wide(&x[i * 576..][..576]), &wide(&y[j * 576..][..576]));
            worst = worst.max((f64::from(found[at]) - exact).abs());
        }
        println!("{}: {worst:.1e} at most off in products of about 8", device.name());
        assert!(worst <= TF32_TOLERANCE, "{worst:e}");
    }
}
