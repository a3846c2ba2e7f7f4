//! Cholesky factors of many symmetric positive definite matrices at once, in f32, in an arena, and what is done with
//! them: solving and inverting.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{LltParams, cholesky_in_place, cholesky_in_place_scratch};
use faer::linalg::triangular_inverse::invert_lower_triangular;
use faer::linalg::triangular_solve::{solve_lower_triangular_in_place, solve_upper_triangular_in_place};
use faer::{MatMut, Par, Spec};
use rayon::prelude::*;

use super::gemm::{Gemm, gemm, matrix, matrix_mut};
use super::scale::ENTRIES;
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

/// Columns of a panel.
pub const PANEL: usize = 64;

/// Columns of a block of panels, and the order from which there are blocks: what lies right of a block is brought up to date
/// by it alone, in one product that is deep enough for a library.
const BLOCK: usize = 512;
const BLOCKED: usize = 1536;

/// Ridge of a factored matrix, which has ones on its diagonal: some roundings of f32, so that a matrix which is
/// singular only to rounding still has a factor.
pub const RIDGE: f32 = 1e-6;

pub(super) static SCALE: Program =
    program!("spd_factor", "cholesky_scale", 256, [("PANEL", PANEL as u32), ("ENTRIES", ENTRIES as u32)]);
pub(super) static EQUILIBRATE: Program = program!(
    "spd_factor",
    "cholesky_equilibrate",
    256,
    [("PANEL", PANEL as u32), ("ENTRIES", ENTRIES as u32)]
);
pub(super) static FACTOR_PANEL: Program =
    program!("spd_factor", "cholesky_panel", 256, [("PANEL", PANEL as u32), ("ENTRIES", ENTRIES as u32)]);
pub(super) static GATHER: Program =
    program!("spd_factor", "cholesky_gather", 256, [("PANEL", PANEL as u32), ("ENTRIES", ENTRIES as u32)]);
pub(super) static SOLVE: Program =
    program!("spd_solve", "spd_solve", 256, [("PANEL", PANEL as u32), ("CUDA_THREADS", 1024)]);
pub(super) static LEAF: Program = program!(
    "triangular_inverse",
    "triangular_leaf",
    256,
    [("PANEL", PANEL as u32), ("ENTRIES", ENTRIES as u32)]
);

/// One matrix of a batch, `D·A·D + ridge·I = L·Lᵀ` with `D = diag(A)^−½`: equilibrated, so that f32 is enough for
/// unknowns of very different size.
#[derive(Clone, Copy, Debug)]
pub struct SpdFactor {
    /// A, n x n, lower triangle read; L's blocks below the diagonal ones afterwards
    pub a: View,
    /// The diagonal of D, n
    pub d: usize,
    /// L's diagonal blocks and their inverses, [`Self::blocks_len`] numbers each
    pub blocks: usize,
    pub inverses: usize,
    /// 0, or one more than the index of a pivot that is not positive
    pub status: usize,
    /// Where large products take their operands apart ([`Gemm::in_parts`])
    pub parts: View,
}

impl SpdFactor {
    /// Numbers that the diagonal blocks of an order take.
    pub const fn blocks_len(n: usize) -> usize {
        n.div_ceil(PANEL) * PANEL * PANEL
    }
}

/// Factors all matrices; panels of all of them go side by side. Cost: n³/3 each.
pub fn spd_factor(arena: &mut Arena, items: &[SpdFactor]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| factor_on_host(memory, item));
    }
    let mut scales = Table::new(5);
    let mut equilibrated = Table::new(5);
    for SpdFactor { a, d, status, .. } in items {
        scales.push(1, &[a.at, a.stride, a.rows, *d, *status]);
        equilibrated.push(a.len().div_ceil(ENTRIES), &[a.at, a.stride, a.rows, *d, float_word(RIDGE)]);
    }
    arena.queue(&SCALE, scales);
    arena.queue(&EQUILIBRATE, equilibrated);
    let widest = items.iter().map(|item| item.a.rows).max().unwrap_or(0);
    for start in (0..widest).step_by(PANEL) {
        let mut panels = Table::new(7);
        let mut trailing = Vec::new();
        for item in items.iter().filter(|item| start < item.a.rows) {
            let (a, n) = (item.a, item.a.rows);
            let (blocks, inverses) = (item.blocks + start * PANEL, item.inverses + start * PANEL);
            panels.push(
                (n - start).div_ceil(PANEL),
                &[a.at, a.stride, n, start, blocks, inverses, item.status],
            );
            let end = block_end(n, start);
            if start + PANEL < end {
                let (at, rest) = (start + PANEL, n - start - PANEL);
                let panel = a.part((at, start), (rest, PANEL));
                let right = panel.part((0, 0), (end - at, PANEL));
                let update = Gemm::new(panel, right, a.part((at, at), (rest, end - at)));
                trailing.push(update.b_transposed().alpha(-1.0).beta(1.0).lower().skip(item.status));
            }
        }
        arena.queue(&FACTOR_PANEL, panels);
        gemm(arena, &trailing);
        gemm(arena, &items.iter().filter_map(|item| behind_block(item, start)).collect::<Vec<_>>());
    }
}

/// Where the block ends that a panel belongs to.
fn block_end(n: usize, start: usize) -> usize {
    if n < BLOCKED { n } else { n.min((start / BLOCK + 1) * BLOCK) }
}

/// What the block whose last panel starts here takes off everything right of it.
fn behind_block(item: &SpdFactor, start: usize) -> Option<Gemm> {
    let (a, n) = (item.a, item.a.rows);
    let end = block_end(n, start);
    (start + PANEL == end && end < n).then(|| {
        let rest = n - end;
        let block = a.part((end, end - BLOCK), (rest, BLOCK));
        let update = Gemm::new(block, block, a.part((end, end), (rest, rest))).b_transposed();
        update.alpha(-1.0).beta(1.0).lower().in_parts(item.parts)
    })
}

/// Makes A the whole of L, with zeros above its diagonal.
pub fn spd_gather(arena: &mut Arena, items: &[SpdFactor]) {
    if arena.memory().is_some() {
        return; // The host's factor is whole already.
    }
    let mut table = Table::new(4);
    for SpdFactor { a, blocks, .. } in items {
        table.push(a.len().div_ceil(ENTRIES), &[a.at, a.stride, a.rows, *blocks]);
    }
    arena.queue(&GATHER, table);
}

/// A right-hand side for a factor.
#[derive(Clone, Copy, Debug)]
pub struct SpdSolve {
    pub factor: SpdFactor,
    /// n
    pub b: usize,
    /// n; written where the matrix has a factor and the solution is finite, left as it is elsewhere
    pub x: usize,
    /// Scratch, n
    pub work: usize,
}

/// `x = A⁻¹ b` for all of them; a solution that is not finite raises the status of its factor.
pub fn spd_solve_batch(arena: &mut Arena, items: &[SpdSolve]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| solve_on_host(memory, item));
    }
    let mut table = Table::new(9);
    for SpdSolve { factor: f, b, x, work } in items {
        table.push(1, &[f.a.at, f.a.stride, f.a.rows, f.inverses, f.d, *b, *x, *work, f.status]);
    }
    arena.queue(&SOLVE, table);
}

/// One inverse of a batch.
#[derive(Clone, Copy, Debug)]
pub struct TriangularInverse {
    /// After [`spd_gather`]
    pub factor: SpdFactor,
    /// L⁻¹, n x n, with zeros above its diagonal
    pub out: View,
    /// Scratch, n x n
    pub work: View,
}

/// Inverts all factors: the diagonal blocks are known, blocks of twice the size follow from two products each,
/// `[A 0; B C]⁻¹ = [A⁻¹ 0; −C⁻¹BA⁻¹ C⁻¹]`. Cost: n³/3 each.
pub fn triangular_inverse(arena: &mut Arena, items: &[TriangularInverse]) {
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| invert_on_host(memory, item));
    }
    let mut leaves = Table::new(4);
    for item in items {
        let n = item.out.rows;
        leaves
            .push(item.out.len().div_ceil(ENTRIES), &[item.factor.inverses, n, item.out.at, item.out.stride]);
    }
    arena.queue(&LEAF, leaves);
    let widest = items.iter().map(|item| item.out.rows).max().unwrap_or(0);
    let mut size = PANEL;
    while size < widest {
        let (mut inner, mut outer) = (Vec::new(), Vec::new());
        for item in items {
            let n = item.out.rows;
            for top in (0..n.saturating_sub(size)).step_by(2 * size) {
                let (low, rest) = (top + size, size.min(n - top - size));
                let b = item.factor.a.part((low, top), (rest, size));
                let work = item.work.part((low, top), (rest, size));
                let parts = item.factor.parts;
                inner.push(Gemm::new(b, item.out.part((top, top), (size, size)), work).in_parts(parts));
                let c = item.out.part((low, low), (rest, rest));
                let product = Gemm::new(c, work, item.out.part((low, top), (rest, size)));
                outer.push(product.alpha(-1.0).in_parts(parts));
            }
        }
        gemm(arena, &inner);
        gemm(arena, &outer);
        size *= 2;
    }
}

fn factor_on_host(memory: Memory, item: &SpdFactor) {
    let n = item.a.rows;
    // SAFETY: A, D and the status belong to this item alone.
    let (mut a, d, status) = unsafe {
        (
            matrix_mut(memory, item.a),
            memory.row_mut(View::vector(item.d, n), 0),
            memory.row_mut(View::vector(item.status, 1), 0),
        )
    };
    status[0] = 0.0;
    for i in 0..n {
        let square = a[(i, i)];
        d[i] = 1.0 / square.sqrt();
        if !(square > 0.0 && d[i].is_finite() && square.is_finite()) {
            (d[i], status[0]) = (0.0, (i + 1) as f32);
        }
    }
    if status[0] != 0.0 {
        return;
    }
    for i in 0..n {
        for j in 0..i {
            a[(i, j)] *= d[i] * d[j];
        }
        a[(i, i)] = 1.0 + RIDGE;
        (i + 1..n).for_each(|j| a[(i, j)] = 0.0);
    }
    let (par, params) = (Par::rayon(0), Spec::<LltParams, f32>::default());
    let mut buffer = MemBuffer::new(cholesky_in_place_scratch::<f32>(n, par, params));
    if let Err(error) = cholesky_in_place(a, Default::default(), par, MemStack::new(&mut buffer), params) {
        let faer::linalg::cholesky::llt::factor::LltError::NonPositivePivot { index } = error;
        status[0] = (index + 1) as f32;
    }
}

fn solve_on_host(memory: Memory, item: &SpdSolve) {
    let SpdSolve { factor, b, x, work } = *item;
    let n = factor.a.rows;
    // SAFETY: the factor and b are read; x, the scratch and the status belong to this item alone.
    unsafe {
        let status = memory.pointer(View::vector(factor.status, 1));
        if *status != 0.0 {
            return;
        }
        let vector = |at: usize| memory.row_mut(View::vector(at, n), 0);
        let (l, d) = (matrix(memory, factor.a), vector(factor.d));
        let y = vector(work);
        y.iter_mut().zip(vector(b).iter().zip(&*d)).for_each(|(y, (b, d))| *y = b * d);
        solve_lower_triangular_in_place(l, MatMut::from_column_major_slice_mut(y, n, 1), Par::Seq);
        solve_upper_triangular_in_place(
            l.transpose(),
            MatMut::from_column_major_slice_mut(y, n, 1),
            Par::Seq,
        );
        y.iter_mut().zip(&*d).for_each(|(y, d)| *y *= d);
        if y.iter().all(|y| y.is_finite()) {
            vector(x).copy_from_slice(y);
        } else {
            *status = 1.0;
        }
    }
}

fn invert_on_host(memory: Memory, item: &TriangularInverse) {
    // SAFETY: the factor is read; the inverse is written by this item alone.
    let (l, mut out) = unsafe { (matrix(memory, item.factor.a), matrix_mut(memory, item.out)) };
    out.fill(0.0);
    invert_lower_triangular(out, l, Par::rayon(0));
}
