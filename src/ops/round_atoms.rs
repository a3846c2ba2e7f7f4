use rayon::prelude::*;

use crate::device::arena::{Arena, Memory, Program, Table, View};

pub(super) static ROUND_ATOMS: Program = cuda_program!("round_atoms", "round_atoms", 128, []);

/// The decoder of one batch, brought into the form that its atoms have.
///
/// | rows an atom | becomes |
/// |---|---|
/// | 1, a ray | of length 1 |
/// | 2, a circle | the nearest pair at right angles and of one length: ρ·(polar factor), ρ the mean singular value |
///
/// For a pair with Gram `[[a, c], [c, b]]` and `q = √(ab − c²)`, the polar factor is `(G + qI)⁻¹·(√(a + b + 2q))` times the
/// pair (the square root of a 2 x 2 matrix, by Cayley and Hamilton), and ρ = ½√(a + b + 2q). Atoms of no length, and pairs
/// on one line, stay.
#[derive(Clone, Copy, Debug)]
pub struct RoundAtoms {
    pub decoder: View,
    /// 1 or 2
    pub rows_an_atom: usize,
}

/// Brings all decoders into form. Cost: two passes.
pub fn round_atoms(arena: &mut Arena, items: &[RoundAtoms]) {
    if let Some(memory) = arena.memory() {
        return items.iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(4);
    for RoundAtoms { decoder: d, rows_an_atom } in items {
        table.push(d.rows / rows_an_atom, &[d.at, d.stride, d.cols, *rows_an_atom]);
    }
    arena.queue(&ROUND_ATOMS, table);
}

fn on_host(memory: Memory, item: &RoundAtoms) {
    let m = item.rows_an_atom;
    (0..item.decoder.rows / m).into_par_iter().for_each(|k| {
        // SAFETY: the rows of atom k are touched by this turn alone.
        unsafe {
            let x = memory.row_mut(item.decoder, k * m);
            let a: f32 = x.iter().map(|x| x * x).sum();
            if m == 1 {
                let factor = if a > 0.0 { 1.0 / a.sqrt() } else { 1.0 };
                return x.iter_mut().for_each(|x| *x *= factor);
            }
            let y = memory.row_mut(item.decoder, k * m + 1);
            let b: f32 = y.iter().map(|y| y * y).sum();
            let c: f32 = x.iter().zip(&*y).map(|(x, y)| x * y).sum();
            let Some([aa, ab, bb]) = turn(a, b, c) else { return };
            for (x, y) in x.iter_mut().zip(y) {
                (*x, *y) = (aa * *x + ab * *y, ab * *x + bb * *y);
            }
        }
    });
}

/// ρ·(G)^−½ of `[[a, c], [c, b]]`: its entries at (0, 0), (0, 1) and (1, 1).
fn turn(a: f32, b: f32, c: f32) -> Option<[f32; 3]> {
    let determinant = a * b - c * c;
    if determinant.is_nan() || determinant <= 1e-6 * (a + b) * (a + b) {
        return None;
    }
    // G^½ = (G + qI)/t with t = √(a + b + 2q), whose inverse is adj(G + qI)/(q·t); ρ = t/2.
    let q = determinant.sqrt();
    let factor = 0.5 / q;
    Some([factor * (b + q), -factor * c, factor * (a + q)])
}
