use super::plan::Plan;
use crate::device::arena::{Arena, Precision, View};
use crate::ops::dots::{Dots, row_dots};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::scale::{Scale, scale};
use crate::ops::sparse_code::{SparseCode, sparse_code};
use crate::ops::sparse_rows::{SparseRows, sparse_rows};
use crate::ops::support_gram::{SupportGram, support_gram};
use crate::ops::top_atoms::{TopAtoms, top_atoms};

/// Rows of one fit that get their codes, in the frame.
#[derive(Clone, Copy)]
pub(super) struct Batch<'a> {
    pub plan: &'a Plan,
    pub x: View,
    pub support: View,
    pub values: View,
    /// Gets what each row is missed by, squared
    pub errors: usize,
    /// κ of circles
    pub stiffness: f32,
}

impl Batch<'_> {
    fn rows(&self, view: View) -> View {
        view.part((0, 0), (self.x.rows, view.cols))
    }

    /// What the bulk leaves of the rows, and what the atoms leave of that.
    pub fn y(&self) -> View {
        self.rows(self.plan.y)
    }

    pub fn left(&self) -> View {
        self.rows(self.plan.left)
    }

    /// Atoms that a row has after a turn.
    fn taken(&self, stage: usize) -> usize {
        let (k, stages) = (self.plan.params.active, self.plan.params.stages);
        (k * stage).div_ceil(stages)
    }

    fn stage(&self, stage: usize) -> Stage {
        let (m, room) = (self.plan.params.kind.rows(), &self.plan.room);
        let (before, taken) = (self.taken(stage), self.taken(stage + 1));
        let n = taken * m;
        let columns = |view: View, cols| view.part((0, 0), (self.x.rows, cols));
        let scratch = |view: View, cols| View::new(view.at, self.x.rows, cols);
        Stage {
            before,
            taken,
            support: columns(self.support, taken),
            values: columns(self.values, n),
            gram: scratch(room.gram, n * n),
            right: scratch(room.right, n),
            scores: self.rows(room.scores),
        }
    }
}

struct Stage {
    before: usize,
    taken: usize,
    support: View,
    values: View,
    gram: View,
    right: View,
    scores: View,
}

/// Finds the codes of all batches, what is left of their rows, and by how much they are missed.
pub(super) fn encode(arena: &mut Arena, batches: &[Batch<'_>]) {
    let copies = batches.iter().map(|b| Scale::new(b.x, b.y()));
    scale(arena, &copies.collect::<Vec<_>>());
    let with_bulk = || batches.iter().filter(|b| b.plan.params.bulk > 0);
    let coefficients = |b: &Batch<'_>| b.rows(b.plan.room.coefficients);
    let held = with_bulk().map(|b| Gemm::new(b.x, b.plan.bulk, coefficients(b)).b_transposed());
    gemm(arena, &held.collect::<Vec<_>>());
    let without = with_bulk().map(|b| Gemm::new(coefficients(b), b.plan.bulk, b.y()).alpha(-1.0).beta(1.0));
    gemm(arena, &without.collect::<Vec<_>>());
    let copies = batches.iter().map(|b| Scale::new(b.y(), b.left()));
    scale(arena, &copies.collect::<Vec<_>>());
    let stages = batches.iter().map(|b| b.plan.params.stages).max().unwrap_or(0);
    for stage in 0..stages {
        let now: Vec<(&Batch<'_>, Stage)> =
            (batches.iter()).filter(|b| stage < b.plan.params.stages).map(|b| (b, b.stage(stage))).collect();
        choose(arena, &now);
        solve(arena, &now);
    }
    let missed = batches.iter().map(|b| Dots { a: b.left(), b: b.left(), out: b.errors });
    row_dots(arena, &missed.collect::<Vec<_>>());
}

/// Chooses the next atoms. Scores may be rounded to TF32: they decide who is chosen, and nothing else.
fn choose(arena: &mut Arena, now: &[(&Batch<'_>, Stage)]) {
    let scores = now.iter().map(|(b, stage)| {
        Gemm::new(b.left(), b.plan.seen, stage.scores).b_transposed().precision(Precision::Tf32)
    });
    gemm(arena, &scores.collect::<Vec<_>>());
    let tops = now.iter().map(|(b, stage)| TopAtoms {
        scores: stage.scores,
        squares: b.plan.squares,
        support: b.support,
        taken: stage.before,
        add: stage.taken - stage.before,
        rows_an_atom: b.plan.params.kind.rows(),
    });
    top_atoms(arena, &tops.collect::<Vec<_>>());
}

/// All codes of the atoms chosen so far anew, and what they leave.
fn solve(arena: &mut Arena, now: &[(&Batch<'_>, Stage)]) {
    let grams = now.iter().map(|(b, stage)| SupportGram {
        rows: b.y(),
        decoder: b.plan.seen,
        support: stage.support,
        rows_an_atom: b.plan.params.kind.rows(),
        gram: stage.gram,
        right: stage.right,
    });
    support_gram(arena, &grams.collect::<Vec<_>>());
    let codes = now.iter().map(|(b, stage)| SparseCode {
        gram: stage.gram,
        right: stage.right,
        values: stage.values,
        known: stage.before * b.plan.params.kind.rows(),
        stiffness: b.stiffness,
        rows_an_atom: b.plan.params.kind.rows(),
    });
    sparse_code(arena, &codes.collect::<Vec<_>>());
    let rest = now.iter().map(|(b, stage)| SparseRows {
        support: stage.support,
        values: stage.values,
        decoder: b.plan.seen,
        base: Some(b.y()),
        out: b.left(),
        alpha: -1.0,
    });
    sparse_rows(arena, &rest.collect::<Vec<_>>());
}
