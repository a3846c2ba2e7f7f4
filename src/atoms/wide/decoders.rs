use super::super::AtomsError;
use super::codes::Batch;
use super::fit::State;
use super::plan::Plan;
use crate::device::arena::{Arena, View};
use crate::ops::atom_lists::{AtomLists, atom_lists};
use crate::ops::atom_sums::{AtomSums, atom_sums};
use crate::ops::conjugate::{Conjugate, conjugate_step, conjugate_turn};
use crate::ops::dots::{Dots, col_dots, row_dots};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::principal::{Principal, principal};
use crate::ops::round_atoms::{RoundAtoms, round_atoms};
use crate::ops::scale::{Scale, scale};
use crate::ops::sparse_rows::{SparseRows, sparse_rows};

/// Steps of conjugate gradients a round. They start at the decoder of the round before, and codes move until the end.
const STEPS: usize = 8;

/// What a batch adds to the normal equations, `R = HᵀX` and diag(HᵀH), and to `(X − HD)ᵀ(X − HD)`; its lists are kept.
pub(super) fn assemble(arena: &mut Arena, c: usize, batches: &[Batch<'_>]) {
    let keep = if c == 0 { 0.0 } else { 1.0 };
    let lists = batches.iter().map(|b| {
        let (starts, entries) = lists_of(b.plan, c);
        let spans = b.x.rows.div_ceil(crate::ops::atom_lists::SPAN);
        let counts = b.plan.room.counts.part((0, 0), (spans, b.plan.params.atoms));
        AtomLists { support: b.support, starts, entries, counts, activity: b.plan.activity }
    });
    atom_lists(arena, &lists.collect::<Vec<_>>());
    let sums = batches.iter().map(|b| AtomSums {
        squares: Some(b.plan.weights),
        ..sums_of(b.plan, c, b.values, b.x, b.plan.room.rest, (keep, 1.0))
    });
    atom_sums(arena, &sums.collect::<Vec<_>>());
    let with_bulk = || batches.iter().filter(|b| b.plan.params.bulk > 0);
    let rest = with_bulk().map(|b| SparseRows {
        support: b.support,
        values: b.values,
        decoder: b.plan.decoder,
        base: Some(b.x),
        out: b.y(),
        alpha: -1.0,
    });
    sparse_rows(arena, &rest.collect::<Vec<_>>());
    let grams = with_bulk().map(|b| Gemm::new(b.y(), b.y(), b.plan.room.residual).a_transposed().beta(keep));
    gemm(arena, &grams.collect::<Vec<_>>());
}

fn lists_of(plan: &Plan, c: usize) -> (View, usize) {
    let starts = plan.starts.part((c, 0), (1, plan.starts.cols));
    (starts, plan.entries + c * plan.batch * plan.params.active)
}

fn sums_of(
    plan: &Plan,
    c: usize,
    values: View,
    rows: View,
    out: View,
    (keep, alpha): (f32, f32),
) -> AtomSums {
    let (starts, entries) = lists_of(plan, c);
    let columns = plan.params.active;
    AtomSums { starts, entries, values, columns, rows, out, keep, alpha, squares: None }
}

/// Decoders by conjugate gradients on what [`assemble`] left, then their form.
pub(super) fn solve(arena: &mut Arena, plans: &[&Plan]) {
    let items: Vec<Conjugate> = plans.iter().map(|plan| conjugate(plan)).collect();
    applied(arena, plans, |plan| (plan.decoder, plan.room.rest, -1.0));
    // A step without curvature is none, and leaves Z.
    for plan in plans {
        let zeros = vec![0.0; plan.rank];
        plan.room.lines.iter().for_each(|at| arena.write(*at, &zeros));
    }
    let start = plans.iter().map(|plan| Scale::new(plan.decoder, plan.room.direction));
    scale(arena, &start.collect::<Vec<_>>());
    conjugate_step(arena, &items);
    let start = plans.iter().map(|plan| Scale::new(plan.room.scaled, plan.room.direction));
    scale(arena, &start.collect::<Vec<_>>());
    let dots = |of: fn(&Conjugate) -> (View, View, usize)| -> Vec<Dots> {
        items.iter().map(of).map(|(a, b, out)| Dots { a, b, out }).collect()
    };
    col_dots(arena, &dots(|i| (i.rest, i.scaled, i.before)));
    for _ in 0..STEPS {
        applied(arena, plans, |plan| (plan.room.direction, plan.room.image, 1.0));
        col_dots(arena, &dots(|i| (i.direction, i.image, i.curvature)));
        conjugate_step(arena, &items);
        col_dots(arena, &dots(|i| (i.rest, i.scaled, i.after)));
        conjugate_turn(arena, &items);
        let line = |at, plan: &Plan| View::vector(at, plan.rank);
        let next = plans.iter().map(|plan| {
            let [before, _, after] = plan.room.lines;
            Scale::new(line(after, plan), line(before, plan))
        });
        scale(arena, &next.collect::<Vec<_>>());
    }
    form(arena, plans);
}

/// Rays of length 1, round circles.
pub(super) fn form(arena: &mut Arena, plans: &[&Plan]) {
    let items =
        plans.iter().map(|plan| RoundAtoms { decoder: plan.decoder, rows_an_atom: plan.params.kind.rows() });
    round_atoms(arena, &items.collect::<Vec<_>>());
}

fn conjugate(plan: &Plan) -> Conjugate {
    let room = &plan.room;
    let [before, curvature, after] = room.lines;
    Conjugate {
        solution: plan.decoder,
        rest: room.rest,
        direction: room.direction,
        image: room.image,
        scaled: room.scaled,
        diagonal: plan.weights,
        before,
        curvature,
        after,
    }
}

/// `out ← HᵀH·from` (α = 1), or what is there less that (α = −1), batch by batch; HᵀH is never formed.
fn applied(arena: &mut Arena, plans: &[&Plan], what: impl Fn(&Plan) -> (View, View, f32)) {
    let batches = plans.iter().map(|plan| plan.batches()).max().unwrap_or(0);
    for c in 0..batches {
        let now = || plans.iter().filter(|plan| c < plan.batches());
        let codes = |plan: &Plan| {
            let (first, rows) = plan.span(c);
            let part = |view: View| view.part((first, 0), (rows, view.cols));
            (part(plan.support), part(plan.values), plan.y.part((0, 0), (rows, plan.rank)))
        };
        let products = now().map(|plan| {
            let (support, values, out) = codes(plan);
            SparseRows { support, values, decoder: what(plan).0, base: None, out, alpha: 1.0 }
        });
        sparse_rows(arena, &products.collect::<Vec<_>>());
        let sums = now().map(|plan| {
            let ((_, values, rows), (_, out, alpha)) = (codes(plan), what(plan));
            let keep = if c == 0 && alpha > 0.0 { 0.0 } else { 1.0 };
            sums_of(plan, c, values, rows, out, (keep, alpha))
        });
        atom_sums(arena, &sums.collect::<Vec<_>>());
    }
}

/// The bulk from what the atoms leave.
pub(super) fn bulk(arena: &mut Arena, states: &mut [State<'_>], which: &[usize]) -> Result<(), AtomsError> {
    let with: Vec<usize> = (which.iter().copied())
        .filter(|i| states[*i].failed.is_none() && states[*i].plan.params.bulk > 0)
        .collect();
    let items: Vec<Principal> = (with.iter().map(|i| &states[*i].plan))
        .map(|plan| Principal { gram: plan.room.residual, axes: plan.bulk, scratch: plan.room.eigen })
        .collect();
    if items.is_empty() {
        return Ok(());
    }
    for (i, found) in with.into_iter().zip(principal(arena, &items)?) {
        if found.is_none() {
            states[i].failed = Some(AtomsError::Eigen);
        }
    }
    Ok(())
}

/// What the bulk does not hold of the decoders, with its squared lengths.
pub(super) fn see(arena: &mut Arena, plans: &[&Plan]) {
    let copies = plans.iter().map(|plan| Scale::new(plan.decoder, plan.seen));
    scale(arena, &copies.collect::<Vec<_>>());
    let with_bulk = || plans.iter().filter(|plan| plan.params.bulk > 0);
    let held = with_bulk().map(|plan| Gemm::new(plan.decoder, plan.bulk, plan.room.held).b_transposed());
    gemm(arena, &held.collect::<Vec<_>>());
    let without =
        with_bulk().map(|plan| Gemm::new(plan.room.held, plan.bulk, plan.seen).alpha(-1.0).beta(1.0));
    gemm(arena, &without.collect::<Vec<_>>());
    let squares = plans.iter().map(|plan| Dots { a: plan.seen, b: plan.seen, out: plan.squares });
    row_dots(arena, &squares.collect::<Vec<_>>());
}
