use super::super::AtomsError;
use super::codes::{Batch, encode};
use super::fit::State;
use super::frame::framed;
use crate::device::arena::{Arena, View};
use crate::ops::dots::{Dots, row_dots};
use crate::ops::gemm::{Gemm, gemm};

/// Which atoms rows have, and what of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Codes {
    /// Atoms of a row
    pub active: usize,
    /// Their numbers, row by row
    pub support: Vec<u32>,
    /// One number a ray, two a circle: a(cos φ, sin φ)
    pub values: Vec<f32>,
}

/// One row of codes.
#[derive(Clone, Copy, Debug)]
pub struct RowCode<'a> {
    atoms: &'a [u32],
    values: &'a [f32],
}

impl Codes {
    pub fn rows(&self) -> impl Iterator<Item = RowCode<'_>> {
        let active = self.active.max(1);
        let values = (self.values.len() / self.support.len().max(1)).max(1) * active;
        let rows = self.support.chunks(active).zip(self.values.chunks(values));
        rows.map(|(atoms, values)| RowCode { atoms, values })
    }
}

impl<'a> RowCode<'a> {
    /// Atoms with their two numbers; the second is 0 for rays.
    pub fn circles(self) -> impl Iterator<Item = (u32, [f64; 2])> + 'a {
        let m = self.values.len() / self.atoms.len();
        let pair = move |u: &[f32]| [f64::from(u[0]), if m > 1 { f64::from(u[1]) } else { 0.0 }];
        self.atoms.iter().zip(self.values.chunks(m)).map(move |(atom, u)| (*atom, pair(u)))
    }
}

/// Sums over held-out rows.
#[derive(Default)]
struct Sums {
    missed: f64,
    squares: f64,
    mean: Vec<f64>,
    codes: Codes,
}

/// Explained variance of the rows that no fit has seen, `1 − Σ‖x − x̂‖²/Σ‖x − x̄‖²` with x̄ their own mean, and their codes.
pub(super) fn measure(arena: &mut Arena, state: &mut State<'_>) -> Result<(), AtomsError> {
    let plan = state.plan.clone();
    if plan.all == plan.rows {
        return Ok(());
    }
    let mut sums = Sums { mean: vec![0.0; plan.width], ..Sums::default() };
    sums.codes.active = plan.params.active;
    for first in (plan.rows..plan.all).step_by(plan.batch) {
        add(arena, state, (first, plan.batch.min(plan.all - first)), &mut sums)?;
    }
    let rows = (plan.all - plan.rows) as f64;
    let shift: f64 = sums.mean.iter().map(|m| m * m).sum::<f64>() / rows;
    state.heldout = Some(1.0 - sums.missed / (sums.squares - shift));
    state.codes = sums.codes;
    Ok(())
}

fn add(
    arena: &mut Arena,
    state: &State<'_>,
    (first, rows): (usize, usize),
    sums: &mut Sums,
) -> Result<(), AtomsError> {
    let plan = &state.plan;
    let part = |view: View| view.part((0, 0), (rows, view.cols));
    let (x, raw) = (part(plan.x), part(plan.raw));
    framed(arena, &[(state, first, x)])?;
    let (support, values) = (part(plan.spare_support), part(plan.spare_values));
    let errors = plan.errors.at;
    encode(arena, &[Batch { plan, x, support, values, errors, stiffness: state.stiffness() }]);
    let norms = [plan.norms.at, plan.norms.at + plan.batch];
    row_dots(arena, &[Dots { a: raw, b: raw, out: norms[0] }, Dots { a: x, b: x, out: norms[1] }]);
    gemm(arena, &[Gemm::new(part(plan.ones), raw, plan.sums).a_transposed()]);
    let mut total = |at: usize| -> Result<f64, AtomsError> {
        Ok(arena.read(at, rows)?.iter().map(|v| f64::from(*v)).sum())
    };
    let (missed, squares, inside) = (total(errors)?, total(norms[0])?, total(norms[1])?);
    sums.missed += missed + (squares - inside).max(0.0);
    sums.squares += squares;
    let mean = arena.read(plan.sums.at, plan.width)?;
    sums.mean.iter_mut().zip(mean).for_each(|(sum, m)| *sum += f64::from(m));
    let support = arena.read(support.at, support.len())?;
    sums.codes.support.extend(support.iter().map(|atom| atom.to_bits()));
    sums.codes.values.extend(arena.read(values.at, values.len())?);
    Ok(())
}
