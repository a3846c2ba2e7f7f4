//! What rows have of the atoms that were chosen for them, from small normal equations.

use rayon::prelude::*;

use super::top_atoms::MOST_ATOMS;
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

/// Passes over the active atoms of a row. Planes of different atoms are nearly at right angles: what one pass leaves is the
/// square of their overlap.
pub const SWEEPS: usize = 8;

/// Ridge of amplitudes of rays, a share of the diagonal: some roundings of f32.
pub const RIDGE: f32 = 1e-5;

const CONSTANTS: [(&str, u32); 3] =
    [("MOST", MOST_ATOMS as u32), ("SWEEPS", SWEEPS as u32), ("RIDGE_BITS", RIDGE.to_bits())];

pub(super) static RAY_CODE: Program = cuda_program!("sparse_code", "ray_code", 128, CONSTANTS);
pub(super) static CIRCLE_CODE: Program = cuda_program!("sparse_code", "circle_code", 128, CONSTANTS);

/// One batch of codes u, a row each of T: the minimum of `½uᵀGu − hᵀu` over what the atoms allow.
///
/// | rows an atom | u | how |
/// |---|---|---|
/// | 1, a ray | any | Cholesky of G with a ridge of [`RIDGE`]·diag(G) |
/// | 2, a circle | pairs `a(cos φ, sin φ)` with ½κ(a − 1)² added | [`SWEEPS`] passes, one circle after another at its exact minimum |
///
/// The circle's step: with λ the larger eigenvalue of its own 2 x 2 block, `v = h − Gu + λu` (its two entries), then φ is
/// the angle of v and `a = (‖v‖ + κ)/(λ + κ)`. Where the circle is round this is the minimum over it alone, and elsewhere
/// that of a bound that touches at u; either way the objective never rises. `κ = ∞` keeps every amplitude at 1.
#[derive(Clone, Copy, Debug)]
pub struct SparseCode {
    /// G, T x n²
    pub gram: View,
    /// h, T x n
    pub right: View,
    /// u, T x n; entries before `known` are where a circle's passes start, the others start at 0
    pub values: View,
    pub known: usize,
    /// κ of circles, in units of G
    pub stiffness: f32,
    pub rows_an_atom: usize,
}

/// Finds all codes.
///
/// # Panics
/// When shapes contradict each other.
pub fn sparse_code(arena: &mut Arena, items: &[SparseCode]) {
    for item in items {
        let n = item.values.cols;
        assert_eq!((item.gram.cols, item.right.cols), (n * n, n), "normal equations of order {n}");
        assert!(n <= MOST_ATOMS * item.rows_an_atom, "{n} unknowns a row");
    }
    if let Some(memory) = arena.memory() {
        return items.iter().for_each(|item| on_host(memory, item));
    }
    for (rows_an_atom, program) in [(1, &RAY_CODE), (2, &CIRCLE_CODE)] {
        let mut table = Table::new(10);
        for item in items.iter().filter(|item| item.rows_an_atom == rows_an_atom) {
            let (g, h, u) = (item.gram, item.right, item.values);
            let stiff = float_word(item.stiffness);
            let words = [g.at, g.stride, h.at, h.stride, u.at, u.stride, u.rows, u.cols, item.known, stiff];
            table.push(u.rows.div_ceil(program.threads as usize / 32), &words);
        }
        arena.queue(program, table);
    }
}

fn on_host(memory: Memory, item: &SparseCode) {
    (0..item.values.rows).into_par_iter().for_each(|i| {
        // SAFETY: the equations are read; row i of the codes is touched by this turn alone.
        let (g, h, u) =
            unsafe { (memory.row(item.gram, i), memory.row(item.right, i), memory.row_mut(item.values, i)) };
        if item.rows_an_atom == 1 {
            rays(g, h, u);
        } else {
            u[item.known..].fill(0.0);
            circles(g, h, u, item.stiffness);
        }
    });
}

fn rays(g: &[f32], h: &[f32], u: &mut [f32]) {
    let n = u.len();
    let mut l = vec![0.0f32; n * n];
    for j in 0..n {
        for i in j..n {
            let sum: f32 = (0..j).map(|k| l[i * n + k] * l[j * n + k]).sum();
            let entry = g[i * n + j] - sum;
            l[i * n + j] = if i > j {
                entry / l[j * n + j]
            } else {
                let own = g[j * n + j];
                (entry + RIDGE * own).max(RIDGE * own).max(f32::MIN_POSITIVE).sqrt()
            };
        }
    }
    for i in 0..n {
        let sum: f32 = (0..i).map(|k| l[i * n + k] * u[k]).sum();
        u[i] = (h[i] - sum) / l[i * n + i];
    }
    for i in (0..n).rev() {
        let sum: f32 = (i + 1..n).map(|k| l[k * n + i] * u[k]).sum();
        u[i] = (u[i] - sum) / l[i * n + i];
    }
}

fn circles(g: &[f32], h: &[f32], u: &mut [f32], stiffness: f32) {
    let n = u.len();
    for _ in 0..SWEEPS {
        for a in (0..n).step_by(2) {
            let [p, q] = [a, a + 1]
                .map(|a| h[a] - g[a * n..(a + 1) * n].iter().zip(&*u).map(|(g, u)| g * u).sum::<f32>());
            let (aa, bb, ab) = (g[a * n + a], g[(a + 1) * n + a + 1], g[a * n + a + 1]);
            let (x, y) = moved([p, q], [u[a], u[a + 1]], largest(aa, bb, ab), stiffness);
            (u[a], u[a + 1]) = (x, y);
        }
    }
}

/// The larger eigenvalue of a symmetric 2 x 2 matrix.
fn largest(aa: f32, bb: f32, ab: f32) -> f32 {
    let half = 0.5 * (aa - bb);
    0.5 * (aa + bb) + (half * half + ab * ab).sqrt()
}

fn moved(slope: [f32; 2], u: [f32; 2], lambda: f32, stiffness: f32) -> (f32, f32) {
    let v = [slope[0] + lambda * u[0], slope[1] + lambda * u[1]];
    let length = (v[0] * v[0] + v[1] * v[1]).sqrt();
    let free = (length + stiffness) / (lambda + stiffness).max(f32::MIN_POSITIVE);
    let amplitude = if stiffness.is_infinite() { 1.0 } else { free };
    if length > 0.0 { (amplitude * v[0] / length, amplitude * v[1] / length) } else { (amplitude, 0.0) }
}
