use rayon::prelude::*;

use super::gemm::NONE;
use crate::device::arena::{Arena, Memory, Program, Table, View};

/// Pairs that one workgroup turns.
pub const PAIRS: usize = 2048;

pub(super) static ROPE: Program = program!("rope", "rope", 256, [("PAIRS", PAIRS as u32)]);

/// The frequencies of a rotary embedding, in radians a position: `f_i = θ^(-2i/d)` for i below d/2, then scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frequencies {
    /// θ
    pub theta: f64,
    pub scaling: Scaling,
}

/// How frequencies are stretched for contexts longer than those of the first training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    Unscaled,
    /// `f/factor` (Chen et al. 2023).
    Linear {
        factor: f64,
    },
    /// Slow frequencies are divided, fast ones kept, those between blended (Llama 3.1). With `t = original·f/2π`, the
    /// turns within the original context, and `s = (t − low)/(high − low)` cut to 0..1: `(s + (1 − s)/factor)·f`.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
}

impl Frequencies {
    pub const fn unscaled(theta: f64) -> Self {
        Self { theta, scaling: Scaling::Unscaled }
    }

    /// The d/2 frequencies of heads of d numbers.
    pub fn values(self, head_dim: usize) -> Vec<f64> {
        let plain = |i: usize| self.theta.powf(-2.0 * i as f64 / head_dim as f64);
        (0..head_dim / 2).map(|i| self.scaling.apply(plain(i))).collect()
    }
}

impl Scaling {
    fn apply(self, frequency: f64) -> f64 {
        match self {
            Self::Unscaled => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, low, high, original } => {
                let turns = original * frequency / std::f64::consts::TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (kept + (1.0 - kept) / factor) * frequency
            }
        }
    }
}

/// Cosines and sines of rotary position embeddings for a run of positions.
///
/// Position p turns the pair `(x_i, x_{i + d/2})` of every head by the angle `p·f_i`: Hugging Face's half-split order
/// of Su et al. 2021, eq. 34. Angles are computed in f64.
///
/// | symbol | argument | meaning |
/// |---|---|---|
/// | d | `head_dim` | numbers in a head, even |
/// | f | `frequencies` | [`Frequencies`] |
pub struct Rotation {
    half: usize,
    /// Per position, d/2 pairs of cosine and sine.
    turns: Vec<[f32; 2]>,
}

impl Rotation {
    pub fn new(head_dim: usize, frequencies: Frequencies, positions: std::ops::Range<usize>) -> Self {
        let half = head_dim / 2;
        let frequencies = frequencies.values(head_dim);
        let turn = |position: usize| {
            frequencies.iter().map(move |f| {
                let (sin, cos) = (position as f64 * f).sin_cos();
                [cos as f32, sin as f32]
            })
        };
        Self { half, turns: positions.flat_map(turn).collect() }
    }

    /// Turns every head of `x` (rows of whole heads, one row a position), in place.
    pub fn apply(&self, x: &mut [f32], width: usize) {
        assert_eq!(x.len() / width * self.half, self.turns.len(), "one row a position");
        for (x, turns) in x.chunks_exact_mut(width).zip(self.turns.chunks_exact(self.half)) {
            turn(x, turns);
        }
    }

    /// One row of d numbers a position, cosine and sine of each pair side by side: what [`rope_batch`] reads.
    pub fn numbers(&self) -> &[f32] {
        self.turns.as_flattened()
    }
}

/// Turns every head of one row.
fn turn(x: &mut [f32], turns: &[[f32; 2]]) {
    for head in x.chunks_exact_mut(2 * turns.len()) {
        let (first, second) = head.split_at_mut(turns.len());
        for ((a, b), [cos, sin]) in first.iter_mut().zip(second).zip(turns) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

/// One turning of a batch, in place.
#[derive(Clone, Copy, Debug)]
pub struct Rope {
    /// Rows of whole heads.
    pub x: View,
    /// [`Rotation::numbers`] from position 0 on, d a row.
    pub turns: View,
    pub positions: Positions,
}

/// The position of each row.
#[derive(Clone, Copy, Debug)]
pub enum Positions {
    /// Windows of `len` rows one after another, each from position 0.
    Windows { len: usize },
    /// A vector of positions, stored as numbers, at this place.
    Listed { at: usize },
}

/// Turns all rows of all items of an arena.
///
/// # Panics
/// When a row is not whole heads.
pub fn rope_batch(arena: &mut Arena, items: &[Rope]) {
    for Rope { x, turns, .. } in items {
        assert!(x.cols.is_multiple_of(turns.cols), "{} numbers are no heads of {}", x.cols, turns.cols);
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(8);
    for Rope { x, turns, positions } in items {
        let (listed, len) = match positions {
            Positions::Windows { len } => (NONE, *len),
            Positions::Listed { at } => (*at, 1),
        };
        table.push(
            (x.len() / 2).div_ceil(PAIRS),
            &[x.at, x.stride, x.rows, x.cols, turns.cols, turns.at, listed, len],
        );
    }
    arena.queue(&ROPE, table);
}

fn on_host(memory: Memory, item: &Rope) {
    (0..item.x.rows).into_par_iter().for_each(|i| {
        // SAFETY: positions and turns are read only; row i of x is written here alone.
        unsafe {
            let position = match item.positions {
                Positions::Windows { len } => i % len,
                Positions::Listed { at } => *memory.pointer(View::vector(at + i, 1)) as usize,
            };
            let turns = memory.row(item.turns, position).as_chunks().0;
            turn(memory.row_mut(item.x, i), turns);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Frequencies = Frequencies::unscaled(10_000.0);

    #[test]
    fn scaled_frequencies_follow_their_formulas() {
        let plain = Frequencies::unscaled(500_000.0).values(64);
        let linear = Frequencies { theta: 500_000.0, scaling: Scaling::Linear { factor: 8.0 } }.values(64);
        assert!(plain.iter().zip(&linear).all(|(plain, linear)| *linear == plain / 8.0));
        let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let scaled = Frequencies { theta: 500_000.0, scaling }.values(64);
        for (plain, scaled) in plain.iter().zip(&scaled) {
            // As the reference has it, by wavelengths.
            let wavelength = std::f64::consts::TAU / plain;
            let smooth = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
            let expected = match wavelength {
                long if long > 8192.0 => plain / 8.0,
                short if short < 2048.0 => *plain,
                _ => (1.0 - smooth) * plain / 8.0 + smooth * plain,
            };
            assert!((scaled / expected - 1.0).abs() < 1e-12, "{plain}: {scaled}, {expected}");
        }
        assert!(scaled[0] == plain[0] && scaled[31] == plain[31] / 8.0);
    }

    #[test]
    fn products_depend_on_the_distance_only() {
        let (q, k) = ([0.3f32, -1.2, 0.7, 0.4], [1.1f32, 0.2, -0.5, 0.9]);
        let product = |at_q: usize, at_k: usize| -> f32 {
            let (mut q, mut k) = (q, k);
            Rotation::new(4, PLAIN, at_q..at_q + 1).apply(&mut q, 4);
            Rotation::new(4, PLAIN, at_k..at_k + 1).apply(&mut k, 4);
            q.iter().zip(k).map(|(q, k)| q * k).sum()
        };
        assert!((product(9, 4) - product(105, 100)).abs() < 1e-5);
        assert!((product(9, 4) - product(9, 5)).abs() > 1e-3);
    }

    #[test]
    fn a_quarter_turn_by_hand() {
        // d = 2: the one frequency is 1; position 0 leaves x alone, and position 1 turns it by one radian.
        let mut x = [1.0f32, 0.0, 1.0, 0.0];
        Rotation::new(2, PLAIN, 0..2).apply(&mut x, 2);
        assert_eq!(x, [1.0, 0.0, 1f32.cos(), 1f32.sin()]);
    }
}
