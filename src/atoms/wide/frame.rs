use super::super::AtomsError;
use super::fit::State;
use super::plan::Plan;
use crate::device::arena::{Arena, View};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::non_finite::{NonFinite, non_finite};
use crate::ops::principal::{Principal, principal};
use crate::ops::scale::{Scale, scale};

/// What the rows show before anything is fitted.
pub(super) struct Frame {
    /// Variance of a row
    pub total: f64,
    /// Variances along the axes, descending
    pub values: Vec<f64>,
}

/// Mean and principal components of every fit, from two readings of its rows: the second moments are taken around the
/// mean of the first batch, so that a large mean costs no digits.
pub(super) fn frames(arena: &mut Arena, states: &mut [State<'_>]) -> Result<(), AtomsError> {
    for state in states.iter() {
        arena.write(state.plan.ones.at, &vec![1.0; state.plan.batch]);
        state.job.source.prepare(arena, state.plan.source, state.plan.batch);
    }
    moments(arena, states)?;
    let mut bad = Vec::new();
    for state in states.iter_mut() {
        let plan = &state.plan;
        let diagonal = plan.framing.diagonal;
        let from = View { at: plan.framing.gram.at, rows: plan.width, cols: 1, stride: plan.width + 1 };
        scale(arena, &[Scale::new(from, diagonal)]);
        let total: f64 = arena.read(diagonal.at, plan.width)?.iter().map(|v| f64::from(*v)).sum();
        state.frame = Frame { total, values: Vec::new() };
        bad.push(!total.is_finite() || total <= 0.0);
    }
    for (state, bad) in states.iter_mut().zip(bad) {
        if bad {
            state.failed = Some(if state.frame.total.is_finite() {
                AtomsError::Constant { rows: state.plan.rows }
            } else {
                offender(arena, state)?
            });
        }
    }
    let good: Vec<usize> = (0..states.len()).filter(|i| states[*i].failed.is_none()).collect();
    let items: Vec<Principal> = (good.iter().map(|i| &states[*i].plan))
        .map(|plan| Principal { gram: plan.framing.gram, axes: plan.axes, scratch: plan.framing.eigen })
        .collect();
    for (i, values) in good.iter().zip(principal(arena, &items)?) {
        match values {
            Some(values) => states[*i].frame.values = values,
            None => states[*i].failed = Some(AtomsError::Eigen),
        }
    }
    keep(arena, states)
}

/// Covariances into `framing.gram`.
fn moments(arena: &mut Arena, states: &[State<'_>]) -> Result<(), AtomsError> {
    let plans = || states.iter().map(|state| &*state.plan);
    let batches = plans().map(Plan::batches).max().unwrap_or(0);
    for c in 0..batches {
        let now: Vec<(&Plan, View, f32)> = load(arena, states, c)?;
        if c == 0 {
            let first = |(plan, raw, _): &(&Plan, View, f32)| {
                let ones = plan.ones.part((0, 0), (raw.rows, 1));
                Gemm::new(ones, *raw, plan.shift).a_transposed().alpha(1.0 / raw.rows as f32)
            };
            gemm(arena, &now.iter().map(first).collect::<Vec<_>>());
        }
        let ones = |plan: &Plan, raw: View| plan.ones.part((0, 0), (raw.rows, 1));
        let centre = now
            .iter()
            .map(|(plan, raw, _)| Gemm::new(ones(plan, *raw), plan.shift, *raw).alpha(-1.0).beta(1.0));
        gemm(arena, &centre.collect::<Vec<_>>());
        let sums = now
            .iter()
            .map(|(plan, raw, keep)| Gemm::new(ones(plan, *raw), *raw, plan.sums).a_transposed().beta(*keep));
        gemm(arena, &sums.collect::<Vec<_>>());
        let grams = now
            .iter()
            .map(|(plan, raw, keep)| Gemm::new(*raw, *raw, plan.framing.gram).a_transposed().beta(*keep));
        gemm(arena, &grams.collect::<Vec<_>>());
    }
    let one = |plan: &Plan| plan.ones.part((0, 0), (1, 1));
    let share = |plan: &Plan| 1.0 / plan.rows as f32;
    let mean: Vec<_> =
        plans().map(|plan| Gemm::new(one(plan), plan.sums, plan.mean).alpha(share(plan))).collect();
    gemm(arena, &mean);
    let centred = plans().map(|plan| {
        Gemm::new(plan.mean, plan.mean, plan.framing.gram).a_transposed().alpha(-1.0).beta(share(plan))
    });
    gemm(arena, &centred.collect::<Vec<_>>());
    let shifted: Vec<_> = plans().map(|plan| Gemm::new(one(plan), plan.shift, plan.mean).beta(1.0)).collect();
    gemm(arena, &shifted);
    Ok(())
}

/// Batch `c` of all fits that have one, as it was read; with what its sums are multiplied by before.
fn load<'a>(
    arena: &mut Arena,
    states: &'a [State<'_>],
    c: usize,
) -> Result<Vec<(&'a Plan, View, f32)>, AtomsError> {
    let mut now = Vec::new();
    for state in states.iter().filter(|state| c < state.plan.batches()) {
        let plan = &*state.plan;
        let (first, rows) = plan.span(c);
        let raw = plan.raw.part((0, 0), (rows, plan.width));
        state.job.source.load(arena, (plan.source, plan.batch), first, raw)?;
        now.push((plan, raw, if c == 0 { 0.0 } else { 1.0 }));
    }
    Ok(now)
}

/// The first number that is not finite, for the message.
fn offender(arena: &mut Arena, state: &State<'_>) -> Result<AtomsError, AtomsError> {
    let plan = &state.plan;
    for c in 0..plan.batches() {
        let (first, rows) = plan.span(c);
        let raw = plan.raw.part((0, 0), (rows, plan.width));
        state.job.source.load(arena, (plan.source, plan.batch), first, raw)?;
        non_finite(arena, &[NonFinite { a: raw, out: plan.norms.at }]);
        let found = arena.read(plan.norms.at, rows)?;
        if let Some(row) = found.iter().position(|column| (*column as usize) < plan.width) {
            let column = found[row] as usize;
            let value = f64::from(arena.read(raw.at + row * raw.stride + column, 1)?[0]);
            return Ok(AtomsError::NonFinite { row: first + row, column, value });
        }
    }
    let what = "the squares of the rows are beyond f32: scale them down".into();
    Ok(AtomsError::Wide { what })
}

/// Brings the rows that a fit keeps into its frame.
fn keep(arena: &mut Arena, states: &[State<'_>]) -> Result<(), AtomsError> {
    let good = || states.iter().filter(|state| state.failed.is_none());
    let batches = good().map(|state| state.plan.kept.rows.div_ceil(state.plan.batch)).max().unwrap_or(0);
    for c in 0..batches {
        let mut now = Vec::new();
        for state in good() {
            let plan = &state.plan;
            let first = c * plan.batch;
            if first < plan.kept.rows {
                let rows = plan.batch.min(plan.kept.rows - first);
                now.push((state, first, plan.kept.part((first, 0), (rows, plan.rank))));
            }
        }
        framed(arena, &now)?;
    }
    Ok(())
}

/// Reads rows from their source and brings them into the frame: `into = (x − μ)·Vᵀ`; `raw` holds x − μ afterwards.
pub(super) fn framed(arena: &mut Arena, now: &[(&State<'_>, usize, View)]) -> Result<(), AtomsError> {
    let raw = |plan: &Plan, into: &View| plan.raw.part((0, 0), (into.rows, plan.width));
    for (state, first, into) in now {
        let plan = &state.plan;
        state.job.source.load(arena, (plan.source, plan.batch), *first, raw(plan, into))?;
    }
    let plans = || now.iter().map(|(state, _, into)| (&state.plan, into));
    let centred = plans().map(|(plan, into)| {
        let ones = plan.ones.part((0, 0), (into.rows, 1));
        Gemm::new(ones, plan.mean, raw(plan, into)).alpha(-1.0).beta(1.0)
    });
    gemm(arena, &centred.collect::<Vec<_>>());
    let projected = plans().map(|(plan, into)| Gemm::new(raw(plan, into), plan.axes, *into).b_transposed());
    gemm(arena, &projected.collect::<Vec<_>>());
    Ok(())
}
