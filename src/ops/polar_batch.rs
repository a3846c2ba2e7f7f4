//! [`polar`](super::polar) for many matrices at once, in f32, in an arena.

use rayon::prelude::*;

use super::gemm::{Gemm, gemm};
use super::gemm_library::LEAST;
use super::scale::{Scale, scale};
use crate::device::arena::{Arena, Memory, Precision, Program, Table, View, float_word};

/// ‖QᵀQ − I‖_F at which a factor counts as orthogonal, over the root of its order: some hundred roundings of f32.
pub const POLAR_TOLERANCE_F32: f32 = 1e-5;

/// Pairs of plain steps after the scaled ones at most. Those brought singular values of 6e-3 near 1, and a pair multiplies a
/// small one by 2.25: with these, 2e-6 of the largest gets there, below which f32 knows little of it.
const MAX_PAIRS: usize = 10;

/// Pairs of plain steps in TF32 of a matrix that fills a card.
const ROUGH_PAIRS: usize = 3;

/// Pairs of exact ones behind those: singular values of 1e-6 take them, which TF32 knows nothing of.
const SPARE_PAIRS: usize = 4;

/// How far above 1 singular values may get by a step in TF32. Its operands are off by 2⁻¹² of their entries or less, which
/// adds noise of a 2-norm of 6e-4 to XᵀX of an orthogonal X, whatever its order; α is at most 2.6, and there are two products.
const ROUGH: f64 = 4e-3;

/// The smallest singular value, over the largest, that the scaled steps are made for: what rotations towards signs ask for
/// at ranks of a few hundred. At those that fill a card it is 2e-3, and steps are cheap.
const LEAST_EXPECTED: f64 = 6e-3;
const LEAST_EXPECTED_LARGE: f64 = 1e-3;

pub(super) static POLAR_SCALE: Program = program!("polar", "polar_scale", 256, [("CUDA_THREADS", 1024)]);
pub(super) static POLAR_CHECK: Program = program!("polar", "polar_check", 256, [("CUDA_THREADS", 1024)]);

/// One polar factor of a batch; every matrix is r x r, its rows one after another.
#[derive(Clone, Copy, Debug)]
pub struct Polar {
    pub a: View,
    /// The orthogonal factor of A
    pub x: View,
    /// Scratch
    pub y: View,
    /// Scratch
    pub m: View,
    /// 1 once X is orthogonal
    pub done: usize,
    /// Becomes 1 where A is not finite, zero, or singular to working precision; X means nothing then
    pub status: usize,
    /// Where large products take their operands apart ([`Gemm::in_parts`]); where that is nowhere, they are not rounded
    pub parts: View,
}

/// Orthogonal polar factors by Newton-Schulz, `X ← X·M, M = (3I − XᵀX)/2`, from `X = A/‖(AᵀA)²‖_∞^¼`, the first steps
/// scaled.
///
/// Every device does the same steps; a matrix that is orthogonal already, to [`POLAR_TOLERANCE_F32`]·√r, rests. Those that
/// fill a card take steps of their own: a step corrects the errors of those before it, so all but the last two may round
/// to TF32.
pub fn polar_batch(arena: &mut Arena, items: &[Polar]) {
    let of = |make: fn(&Polar) -> Gemm| -> Vec<Gemm> { items.iter().map(make).collect() };
    gemm(arena, &of(|i| Gemm::new(i.a, i.a, i.y).a_transposed().precision(i.rough())));
    gemm(arena, &of(|i| Gemm::new(i.y, i.y, i.m).precision(i.rough())));
    polar_scale(arena, items);
    let (large, small): (Vec<Polar>, Vec<Polar>) = items.iter().partition(|i| i.is_large());
    small_steps(arena, &small);
    large_steps(arena, &large);
}

/// Coefficients of I and of XᵀX in a step that is not scaled.
const PLAIN: (f32, f32) = (1.5, -0.5);

/// `M = δI + α·XᵀX`.
fn of_gram(item: &Polar, x: View, (delta, alpha): (f32, f32)) -> Gemm {
    Gemm::new(x, x, item.m).a_transposed().alpha(alpha).diagonal(delta)
}

fn small_steps(arena: &mut Arena, items: &[Polar]) {
    for pair in scaled_steps(LEAST_EXPECTED, 0.0).as_chunks::<2>().0 {
        scaled_pair(arena, items, *pair, None);
    }
    plain_pairs(arena, items, MAX_PAIRS);
}

/// Pairs of plain steps for what is not orthogonal yet; what is not afterwards has failed.
fn plain_pairs(arena: &mut Arena, items: &[Polar], pairs: usize) {
    for _ in 0..pairs {
        scaled_pair(arena, items, [PLAIN; 2], Some(Check::Correction));
    }
    gemm(arena, &items.iter().map(|i| of_gram(i, i.x, PLAIN).skip(i.done)).collect::<Vec<_>>());
    polar_check(arena, items, Check::Last);
}

/// From X by Y back to X; X may be checked first.
fn scaled_pair(arena: &mut Arena, items: &[Polar], pair: [(f32, f32); 2], check: Option<Check>) {
    for (step, back) in pair.into_iter().zip([false, true]) {
        let correction = |i: &Polar| of_gram(i, ends(i, back).0, step).skip(i.done);
        gemm(arena, &items.iter().map(correction).collect::<Vec<_>>());
        if let Some(check) = check.filter(|_| !back) {
            polar_check(arena, items, check);
        }
        let turned = |i: &Polar| Gemm::new(ends(i, back).0, i.m, ends(i, back).1).skip(i.done);
        gemm(arena, &items.iter().map(turned).collect::<Vec<_>>());
    }
}

/// Scaled steps, as many plain ones as singular values of 1e-4 take to get near 1, then two that are exact; more where that
/// was not enough.
fn large_steps(arena: &mut Arena, items: &[Polar]) {
    let scaled = scaled_steps(LEAST_EXPECTED_LARGE, ROUGH);
    for pair in scaled.as_chunks::<2>().0.iter().chain(&[[PLAIN; 2]; ROUGH_PAIRS]) {
        for (step, back) in pair.iter().zip([false, true]) {
            rough_step(arena, items, back, *step);
        }
    }
    exact_step(arena, items, false);
    exact_step(arena, items, true);
    plain_pairs(arena, items, SPARE_PAIRS);
}

/// Where a step comes from and where it leads: from X to Y, or back.
fn ends(item: &Polar, back: bool) -> (View, View) {
    if back { (item.y, item.x) } else { (item.x, item.y) }
}

/// `Y = δX + α·X(XᵀX)` in TF32, X in f32 where it stands alone.
fn rough_step(arena: &mut Arena, items: &[Polar], back: bool, (delta, alpha): (f32, f32)) {
    let rough = |a: View, b: View, c: View| Gemm::new(a, b, c).precision(Precision::Tf32);
    let grams = |i: &Polar| rough(ends(i, back).0, ends(i, back).0, i.m).a_transposed();
    gemm(arena, &items.iter().map(grams).collect::<Vec<_>>());
    copy(arena, items, back);
    let turned = |i: &Polar| rough(ends(i, back).0, i.m, ends(i, back).1).alpha(alpha).beta(delta);
    gemm(arena, &items.iter().map(turned).collect::<Vec<_>>());
}

/// `Y = X + X·E, E = (I − XᵀX)/2` summed in true f32, so small that its product may be rounded. On the way back E tells
/// whether Y was orthogonal.
fn exact_step(arena: &mut Arena, items: &[Polar], back: bool) {
    gemm(arena, &items.iter().map(|i| of_gram(i, ends(i, back).0, (0.5, -0.5))).collect::<Vec<_>>());
    if back {
        polar_check(arena, items, Check::Rest);
    }
    copy(arena, items, back);
    let turned =
        |i: &Polar| Gemm::new(ends(i, back).0, i.m, ends(i, back).1).beta(1.0).precision(Precision::Tf32);
    gemm(arena, &items.iter().map(turned).collect::<Vec<_>>());
}

fn copy(arena: &mut Arena, items: &[Polar], back: bool) {
    let copies = |i: &Polar| Scale::new(ends(i, back).0, ends(i, back).1);
    scale(arena, &items.iter().map(copies).collect::<Vec<_>>());
}

/// Coefficients (of I and of XᵀX) of the scaled steps, an even number.
///
/// For singular values in [l, 1] the best step is `x ← √c·x(3 − c·x²)/2` with `c = 3/(1 + l + l²)`: it maps 1 and l to
/// the same value, its largest is 1, and a small x grows by up to 2.6 instead of 1.5 (Chen and Chow, A stable scaling
/// of Newton-Schulz, 2014). What is below the expected l grows as well; plain steps do the rest. A value above 1 may turn
/// round, so there is room for `1 + margin`.
fn scaled_steps(least: f64, margin: f64) -> Vec<(f32, f32)> {
    let (mut steps, shrink) = (Vec::new(), 1.0 / (1.0 + margin));
    let mut l = least;
    while l < 0.8 || steps.len() % 2 == 1 {
        let c: f64 = 3.0 / (1.0 + l + l * l);
        let (delta, alpha) = (1.5 * c.sqrt() * shrink, -0.5 * c * c.sqrt() * shrink.powi(3));
        steps.push((delta as f32, alpha as f32));
        l *= c.sqrt() * (3.0 - c * l * l) / 2.0;
    }
    steps
}

fn polar_scale(arena: &mut Arena, items: &[Polar]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| scale_on_host(memory, item));
    }
    let mut table = Table::new(6);
    for Polar { a, x, m, done, status, .. } in items {
        table.push(1, &[a.at, m.at, x.at, a.rows, *done, *status]);
    }
    arena.queue(&POLAR_SCALE, table);
}

/// What M holds when it is checked.
#[derive(Clone, Copy, PartialEq)]
enum Check {
    /// `(3I − XᵀX)/2`
    Correction,
    /// The same, and what is not orthogonal now has failed.
    Last,
    /// `(I − XᵀX)/2`
    Rest,
}

impl Check {
    /// What M is of I where X is orthogonal.
    fn unit(self) -> f32 {
        if self == Self::Rest { 0.0 } else { 1.0 }
    }
}

fn polar_check(arena: &mut Arena, items: &[Polar], check: Check) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| check_on_host(memory, item, check));
    }
    let mut table = Table::new(7);
    for item in items {
        let (m, tolerance, unit) = (item.m.at, float_word(item.tolerance()), float_word(check.unit()));
        let last = usize::from(check == Check::Last);
        table.push(1, &[m, item.a.rows, item.done, item.status, tolerance, last, unit]);
    }
    arena.queue(&POLAR_CHECK, table);
}

impl Polar {
    /// Whether its products fill a card.
    fn is_large(&self) -> bool {
        self.a.rows.pow(3) >= LEAST && !self.parts.is_empty()
    }

    /// How products may be rounded that only choose where to start.
    fn rough(&self) -> Precision {
        if self.is_large() { Precision::Tf32 } else { Precision::F32 }
    }

    fn tolerance(&self) -> f32 {
        POLAR_TOLERANCE_F32 * (self.a.rows as f32).sqrt()
    }
}

fn scale_on_host(memory: Memory, item: &Polar) {
    let r = item.a.rows;
    // SAFETY: A and the square are read; X and the flags are written by this item alone.
    unsafe {
        let sums = (0..r).map(|i| memory.row(item.m, i).iter().map(|v| v.abs()).sum::<f32>());
        let norm = sums.fold(0.0, |most: f32, sum| if sum > most || sum.is_nan() { sum } else { most });
        let scale = norm.sqrt().sqrt();
        let (done, status) =
            (memory.pointer(View::vector(item.done, 1)), memory.pointer(View::vector(item.status, 1)));
        if !(scale > 0.0 && scale.is_finite()) {
            *status = 1.0;
        }
        let factor = if *status == 0.0 { 1.0 / scale } else { 0.0 };
        *done = if *status == 0.0 { 0.0 } else { 1.0 };
        for i in 0..r {
            let (x, a) = (memory.row_mut(item.x, i), memory.row(item.a, i));
            x.iter_mut().zip(a).for_each(|(x, a)| *x = if factor == 0.0 { 0.0 } else { a * factor });
        }
    }
}

fn check_on_host(memory: Memory, item: &Polar, check: Check) {
    // SAFETY: M is read; the flags are written by this item alone.
    unsafe {
        let (done, status) =
            (memory.pointer(View::vector(item.done, 1)), memory.pointer(View::vector(item.status, 1)));
        let mut sum = 0.0;
        for i in 0..item.a.rows {
            for (j, m) in memory.row(item.m, i).iter().enumerate() {
                let d = m - if i == j { check.unit() } else { 0.0 };
                sum += d * d;
            }
        }
        let near = 2.0 * sum.sqrt() <= item.tolerance();
        if near || *status != 0.0 {
            *done = 1.0;
        } else if check == Check::Last && *done == 0.0 {
            *status = 1.0;
        }
    }
}
