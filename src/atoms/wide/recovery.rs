use std::collections::HashMap;

use super::heldout::Codes;

/// How well each planted circle is found again: the best of all atoms' `|Σ exp(i(φ ∓ φ'))|` over the rows in which both are
/// on, divided by the rows in which the circle is: the circular correlation at the best rotation and direction, times the
/// share of rows in which it was seen. No atom counts twice; 0 without one.
pub fn recoveries(planted: &Codes, found: &Codes, circles: usize) -> Vec<f64> {
    let mut on = vec![0.0f64; circles];
    // (Re, Im) of the sums in both directions.
    let mut sums: HashMap<(u32, u32), [f64; 4]> = HashMap::new();
    for (truth, code) in planted.rows().zip(found.rows()) {
        for (circle, u) in truth.circles() {
            on[circle as usize] += 1.0;
            for (atom, v) in code.circles() {
                let length = f64::hypot(v[0], v[1]).max(f64::MIN_POSITIVE);
                let v = [v[0] / length, v[1] / length];
                let (cc, ss, sc, cs) = (u[0] * v[0], u[1] * v[1], u[1] * v[0], u[0] * v[1]);
                let sum = sums.entry((circle, atom)).or_default();
                for (sum, term) in sum.iter_mut().zip([cc + ss, sc - cs, cc - ss, sc + cs]) {
                    *sum += term;
                }
            }
        }
    }
    let mut all: Vec<(f64, u32, u32)> = sums
        .into_iter()
        .map(|((circle, atom), [a, b, c, d])| {
            (f64::hypot(a, b).max(f64::hypot(c, d)) / on[circle as usize], circle, atom)
        })
        .collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let (mut result, mut done, mut taken) = (vec![0.0; circles], Vec::new(), Vec::new());
    for (value, circle, atom) in all {
        if !done.contains(&circle) && !taken.contains(&atom) {
            result[circle as usize] = value;
            done.push(circle);
            taken.push(atom);
        }
    }
    result
}
