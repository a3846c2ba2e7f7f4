use rayon::prelude::*;

use super::scale::ENTRIES;
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

pub(super) static ADAM: Program = cuda_program!("adam", "adam", 256, [("ENTRIES", ENTRIES as u32)]);

/// Decay of the mean of gradients, and of the mean of their squares (Kingma & Ba 2015, section 2).
const BETA: [f32; 2] = [0.9, 0.999];

/// Added to the root of the mean square. Gradients of a normalised loss with respect to one sign go down to 1e-7; the
/// usual 1e-8 would slow the smallest.
const EPSILON: f32 = 1e-10;

/// One vector of parameters, and what goes with it.
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    pub parameters: usize,
    pub gradient: usize,
    /// Means of the gradient and of its square. Not read at step 0.
    pub mean: usize,
    pub square: usize,
    pub len: usize,
    /// What a parameter moves at most in one step, nearly.
    pub rate: f64,
}

/// Step `step` (from 0) of all vectors: `x ← x − rate·m̂/(sqrt(v̂) + ε)` (Kingma & Ba 2015, algorithm 1).
pub fn adam(arena: &mut Arena, step: usize, items: &[Adam]) {
    let power = step as i32 + 1;
    let corrections = BETA.map(|beta| (1.0 / (1.0 - f64::from(beta).powi(power))) as f32);
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, step, corrections, item));
    }
    let mut table = Table::new(12);
    for Adam { parameters, gradient, mean, square, len, rate } in items {
        let [b1, b2, c1, c2, rate, epsilon] =
            [BETA[0], BETA[1], corrections[0], corrections[1], *rate as f32, EPSILON].map(float_word);
        let first = usize::from(step == 0);
        let words = [*parameters, *gradient, *mean, *square, *len, b1, b2, c1, c2, rate, epsilon, first];
        table.push(len.div_ceil(ENTRIES), &words);
    }
    arena.queue(&ADAM, table);
}

fn on_host(memory: Memory, step: usize, corrections: [f32; 2], item: &Adam) {
    // SAFETY: the gradient is read only; the other three are touched by this item alone.
    unsafe {
        let part = |at: usize| memory.row_mut(View::vector(at, item.len), 0);
        let (x, mean, square) = (part(item.parameters), part(item.mean), part(item.square));
        let gradient = memory.row(View::vector(item.gradient, item.len), 0);
        if step == 0 {
            mean.fill(0.0);
            square.fill(0.0);
        }
        let moments = mean.par_iter_mut().zip(square).with_min_len(ENTRIES);
        x.par_iter_mut().zip(gradient).zip(moments).for_each(|((x, g), (m, v))| {
            *m = (1.0 - BETA[0]) * g + BETA[0] * *m;
            *v = (1.0 - BETA[1]) * g * g + BETA[1] * *v;
            let root = (corrections[1] * *v).sqrt() + EPSILON;
            *x -= item.rate as f32 * (corrections[0] * *m) / root;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn steps_are_those_of_the_paper() {
        // f(x) = x²/2 from x = 1: the gradient is x.
        let mut arena = Arena::new(&Device::Host, 8).unwrap();
        arena.write(0, &[1.0, f32::NAN, f32::NAN, f32::NAN]);
        let (mut x, mut m, mut v) = (1.0f64, 0.0f64, 0.0f64);
        for step in 0..20 {
            let now = arena.read(0, 1).unwrap()[0];
            arena.write(1, &[now]);
            let item = Adam { parameters: 0, gradient: 1, mean: 2, square: 3, len: 1, rate: 0.05 };
            adam(&mut arena, step, &[item]);
            m = 0.9 * m + 0.1 * x;
            v = 0.999 * v + 0.001 * x * x;
            let (b1, b2) = (1.0 - 0.9f64.powi(step as i32 + 1), 1.0 - 0.999f64.powi(step as i32 + 1));
            x -= 0.05 * (m / b1) / ((v / b2).sqrt() + 1e-10);
            let found = f64::from(arena.read(0, 1).unwrap()[0]);
            assert!((found - x).abs() < 1e-5, "step {step}: {found}, expected {x}");
        }
    }
}
