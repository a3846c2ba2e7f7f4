use std::f64::consts::TAU;

use faer::linalg::matmul::matmul;
use faer::{Accum, Par};

use crate::atoms::Code;
use crate::atoms::zoo::normal;
use crate::model::SplitMix64;
use crate::ops::matmul::{rows, rows_mut};

/// A cyclic order of words: positions 0..n, the first word first.
pub type Order = Vec<usize>;

/// Angle of each word on a circle atom, in radians: the mean direction of its rows; `None` where the atom is off in more
/// than half of them.
pub fn word_angles(codes: &[Code], word: &[usize], words: usize, atom: usize) -> Vec<Option<f64>> {
    (0..words)
        .map(|w| {
            let mine: Vec<&Code> =
                codes.iter().zip(word).filter(|(_, at)| **at == w).map(|(code, _)| code).collect();
            let on: Vec<f64> = mine
                .iter()
                .filter_map(|code| code.iter().find(|active| active.atom == atom))
                .map(|active| TAU * active.at[0])
                .collect();
            let (sin, cos) = on.iter().fold((0.0, 0.0), |(s, c), a| (s + a.sin(), c + a.cos()));
            (2 * on.len() > mine.len()).then(|| sin.atan2(cos))
        })
        .collect()
}

/// `|mean exp(i(angle_w − 2π·position_w/n))|`, the better of both directions; a word without an angle adds nothing.
/// 1 means that the words lie evenly on the circle in this order.
pub fn coherence(angles: &[Option<f64>], order: &[usize]) -> f64 {
    let n = order.len() as f64;
    let along = |sign: f64| {
        let (mut re, mut im) = (0.0, 0.0);
        for (position, word) in order.iter().enumerate() {
            if let Some(angle) = angles[*word] {
                let (sin, cos) = (angle - sign * TAU * position as f64 / n).sin_cos();
                (re, im) = (re + cos, im + sin);
            }
        }
        f64::hypot(re, im) / n
    };
    along(1.0).max(along(-1.0))
}

/// All (n − 1)!/2 cyclic orders of n words, those that are rotations or mirror images of each other counted once; the
/// own order first. For n up to 8.
pub fn cyclic_orders(n: usize) -> Vec<Order> {
    let mut orders = Vec::new();
    let mut rest: Vec<usize> = (1..n.min(8)).collect();
    permute(&mut rest, 0, &mut |rest| {
        if rest.len() < 2 || rest[0] < rest[rest.len() - 1] {
            orders.push(std::iter::once(0).chain(rest.iter().copied()).collect());
        }
    });
    orders.sort();
    orders
}

fn permute(items: &mut Vec<usize>, from: usize, found: &mut dyn FnMut(&[usize])) {
    if from == items.len() {
        return found(items);
    }
    for k in from..items.len() {
        items.swap(from, k);
        permute(items, from + 1, found);
        items.swap(from, k);
    }
}

/// Rows drawn from the normal distribution with the covariance of some rows (n x width): what has no shape but is as wide.
pub fn control(x: &[f64], width: usize, seed: u64) -> Vec<f64> {
    let n = x.len() / width;
    let mut mean = vec![0.0; width];
    for row in x.chunks_exact(width) {
        mean.iter_mut().zip(row).for_each(|(m, x)| *m += x / n as f64);
    }
    let centred: Vec<f64> = x
        .chunks_exact(width)
        .flat_map(|row| row.iter().zip(&mean).map(|(x, m)| x - m).collect::<Vec<_>>())
        .collect();
    let mut random = SplitMix64::new(seed);
    let mix: Vec<f64> = (0..n * n).map(|_| normal(&mut random)).collect();
    let mut drawn = vec![0.0; n * width];
    let scale = 1.0 / (n as f64).sqrt();
    matmul(
        rows_mut(&mut drawn, n, width),
        Accum::Replace,
        rows(&mix, n, n),
        rows(&centred, n, width),
        scale,
        Par::Seq,
    );
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_360_orders_of_the_week_and_one_fits_best() {
        let orders = cyclic_orders(7);
        assert_eq!(orders.len(), 360);
        assert_eq!(orders[0], [0, 1, 2, 3, 4, 5, 6]);
        let angles: Vec<Option<f64>> = (0..7).map(|k| Some(1.0 - TAU * f64::from(k) / 7.0)).collect();
        let own = coherence(&angles, &orders[0]);
        assert!((own - 1.0).abs() < 1e-12);
        assert!(orders[1..].iter().all(|order| coherence(&angles, order) < 0.9));
        let without: Vec<Option<f64>> =
            angles.iter().enumerate().map(|(k, a)| a.filter(|_| k != 3)).collect();
        assert!((coherence(&without, &orders[0]) - 6.0 / 7.0).abs() < 1e-12);
    }

    #[test]
    fn a_control_varies_as_much_as_the_rows() {
        let mut random = SplitMix64::new(1);
        let x: Vec<f64> = (0..200 * 3).map(|k| normal(&mut random) * [3.0, 1.0, 0.1][k % 3] + 5.0).collect();
        let drawn = control(&x, 3, 7);
        for (j, spread) in [3.0, 1.0, 0.1].into_iter().enumerate() {
            let square = drawn.chunks_exact(3).map(|row| row[j] * row[j]).sum::<f64>() / 200.0;
            assert!((square.sqrt() / spread - 1.0).abs() < 0.25, "{j}: {}", square.sqrt());
        }
    }
}
