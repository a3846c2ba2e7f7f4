use super::super::AtomsError;
use super::codes::{Batch, encode};
use super::fit::State;
use super::plan::Plan;
use crate::device::arena::{Arena, View};
use crate::ops::gather::{Gather, Order, gather};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::round_atoms::{RoundAtoms, round_atoms};
use crate::ops::scale::{Scale, scale};
use crate::ops::scatter::{Scatter, scatter};
use crate::ops::splitmix::SplitMix64;

/// Length of a first circle, over what each atom's share of the rows' variance would make it: shorter circles are chosen
/// more often, and grow to what the rows say.
const SHORTER: f64 = 0.7;

/// The first bulk of a fit that begins at rows: the first axes of the frame.
pub(super) fn bulk(arena: &mut Arena, plan: &Plan) {
    let mut axes = vec![0.0; plan.bulk.len()];
    (0..plan.params.bulk).for_each(|j| axes[j * plan.rank + j] = 1.0);
    arena.write(plan.bulk.at, &axes);
}

/// Atoms from `first` on begin at rows drawn by the seed, less what the bulk holds of them.
pub(super) fn from_rows(arena: &mut Arena, state: &State<'_>, first: usize) {
    let plan = &state.plan;
    let m = plan.params.kind.rows();
    let count = (plan.params.atoms - first) * m;
    if count == 0 {
        return;
    }
    let drawn = draw(plan.kept.rows, count, plan.params.seed);
    arena.write(plan.squares, &drawn);
    let target = plan.room.rest.part((0, 0), (count, plan.rank));
    gather(
        arena,
        &[Gather { a: plan.kept, out: target, rows: Some(plan.squares), cols: None, order: Order::Straight }],
    );
    if plan.params.bulk > 0 {
        let held = plan.room.held.part((0, 0), (count, plan.params.bulk));
        gemm(arena, &[Gemm::new(target, plan.bulk, held).b_transposed()]);
        gemm(arena, &[Gemm::new(held, plan.bulk, target).alpha(-1.0).beta(1.0)]);
    }
    let rest: f64 = state.frame.values.iter().skip(plan.params.bulk).sum();
    let length = SHORTER * (rest / plan.params.active as f64).sqrt();
    let places: Vec<usize> = (first * m..plan.decoder.rows).collect();
    settle(arena, plan, target, &places, length as f32);
}

/// Different rows, or, where there are too few, the same ones again.
fn draw(rows: usize, count: usize, seed: u64) -> Vec<f32> {
    let mut random = SplitMix64::new(seed ^ 0xbe61_0000);
    let mut order: Vec<usize> = (0..rows).collect();
    for i in 0..count.min(rows) {
        let j = i + (random.uniform() * (rows - i) as f64) as usize;
        order.swap(i, j);
    }
    (0..count).map(|i| order[i % rows] as f32).collect()
}

/// Rows become decoder rows at some places: of length 1 for rays, circles of that length.
fn settle(arena: &mut Arena, plan: &Plan, target: View, places: &[usize], length: f32) {
    round_atoms(arena, &[RoundAtoms { decoder: target, rows_an_atom: 1 }]);
    if plan.is_circle() {
        round_atoms(arena, &[RoundAtoms { decoder: target, rows_an_atom: 2 }]);
        arena.write(plan.squares, &vec![length; target.rows]);
        scale(arena, &[Scale::new(target, target).rows(plan.squares)]);
    }
    arena.write(plan.weights, &places.iter().map(|place| *place as f32).collect::<Vec<_>>());
    scatter(arena, &[Scatter { a: target, out: plan.decoder, places: plan.weights }]);
}

/// Dead atoms begin anew at what is left of the worst explained rows that are kept; returns how many.
pub(super) fn revive(
    arena: &mut Arena,
    state: &State<'_>,
    dead: &[usize],
    errors: &[f32],
) -> Result<usize, AtomsError> {
    let plan = &state.plan;
    let m = plan.params.kind.rows();
    let atoms = dead.len().min(plan.batch.min(plan.kept.rows) / m);
    if atoms == 0 {
        return Ok(0);
    }
    let count = atoms * m;
    let mut worst: Vec<usize> = (0..plan.kept.rows).collect();
    worst.sort_by(|a, b| errors[*b].total_cmp(&errors[*a]).then(a.cmp(b)));
    worst.truncate(count);
    arena.write(plan.norms.at, &worst.iter().map(|row| *row as f32).collect::<Vec<_>>());
    let part = |view: View| view.part((0, 0), (count, view.cols));
    let x = part(plan.x);
    gather(
        arena,
        &[Gather { a: plan.kept, out: x, rows: Some(plan.norms.at), cols: None, order: Order::Straight }],
    );
    let batch = Batch {
        plan,
        x,
        support: part(plan.spare_support),
        values: part(plan.spare_values),
        errors: plan.norms.at,
        stiffness: state.stiffness(),
    };
    encode(arena, &[batch]);
    let places: Vec<usize> =
        dead[..atoms].iter().flat_map(|atom| (0..m).map(move |part| atom * m + part)).collect();
    let length = if plan.is_circle() { alive_length(arena, plan, dead)? } else { 1.0 };
    settle(arena, plan, batch.left(), &places, length);
    Ok(atoms)
}

/// Mean length of the decoder rows of the atoms that live.
fn alive_length(arena: &mut Arena, plan: &Plan, dead: &[usize]) -> Result<f32, AtomsError> {
    let squares = arena.read(plan.squares, plan.decoder.rows)?;
    let mut alive = vec![true; plan.params.atoms];
    dead.iter().for_each(|atom| alive[*atom] = false);
    let lengths = squares.chunks(2).zip(&alive).filter(|(_, alive)| **alive);
    let (mut sum, mut count) = (0.0, 0.0);
    for (pair, _) in lengths {
        sum += f64::from(0.5 * (pair[0] + pair[1])).sqrt();
        count += 1.0;
    }
    Ok(if count > 0.0 { (sum / count) as f32 } else { 1.0 })
}
