//! [`column_search`](super::column_search) for many problems at once, in f32, in an arena. Columns are rows there, so
//! that a column is contiguous.

use rayon::prelude::*;

use super::column_search::{BLOCK, ColumnState, MAX_ROUNDS};
use super::gemm::{Gemm, gemm};
use super::row_flips::FLIP_TOLERANCE_F32;
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

/// Relative change of a column's scale at which its rounds end: a few roundings of f32.
const SCALE_TOLERANCE: f32 = 1e-6;

/// The largest r that the kernels of a column search and of row flips hold in registers.
pub const MOST_RANK: usize = 4096;

pub(super) static COLUMN_SEARCH: Program = program!(
    "column_search",
    "column_search",
    256,
    [("BLOCK", BLOCK as u32), ("MAX_ROUNDS", MAX_ROUNDS as u32)]
);

/// One problem of a batch. Where two changes are equal to rounding the devices may part: flips are jumps.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSearchItem {
    /// Sᵀ, n x r, ±1, columns in processing order; start and result
    pub signs: View,
    /// Bᵀ, n x r; overwritten
    pub b: View,
    /// K = ΛᵀΛ, r x r
    pub k: View,
    /// Rᵀ, n x n lower triangular
    pub r_transposed: View,
    /// g, n
    pub scale: usize,
    /// n numbers of flips; NaN, as is g, where a device cut the loops short and the column does not count
    pub flips: usize,
    /// Scratch: (K·S)ᵀ, n x r
    pub ks: View,
    /// Scratch: the errors of a block of columns, [`BLOCK`] x r
    pub errors: View,
    /// Where large products take their operands apart ([`Gemm::in_parts`])
    pub parts: View,
}

/// Signs and scales of all problems; see [`column_search`](super::column_search::column_search) for the formulas.
///
/// Blocks of at most [`BLOCK`] columns of all problems go side by side: one launch for the columns, one product for the
/// error that is carried on.
pub fn column_search_batch(arena: &mut Arena, items: &[ColumnSearchItem]) {
    let start =
        |item: &ColumnSearchItem| Gemm::new(item.signs, item.k, item.ks).a_signs().in_parts(item.parts);
    gemm(arena, &items.iter().map(start).collect::<Vec<_>>());
    // What becomes of an item does not depend on the others, so each has its own blocks.
    let blocks: Vec<_> = items.iter().map(|item| (item, block(arena, item.signs.cols))).collect();
    let last = blocks.iter().map(|(item, block)| item.signs.rows.div_ceil(*block)).max().unwrap_or(0);
    for turn in 0..last {
        let parts: Vec<_> = (blocks.iter())
            .map(|(item, block)| Part { item, start: turn * block, block: *block })
            .filter(|part| part.start < part.item.signs.rows)
            .collect();
        search_parts(arena, &parts);
        gemm(arena, &parts.iter().filter_map(carry_on).collect::<Vec<_>>());
    }
}

/// Columns `start` to `start + block` of a problem.
struct Part<'a> {
    item: &'a ColumnSearchItem,
    start: usize,
    block: usize,
}

/// Columns of a launch: [`BLOCK`], or as many as a device that counts the turns of loops lets through, at `r` flips each
/// with a turn for every 128 entries.
fn block(arena: &Arena, r: usize) -> usize {
    (arena.turns() / (2 * r.max(1) * (1 + r.div_ceil(128)))).clamp(1, BLOCK)
}

/// `Bᵀ[later] −= Rᵀ[later, block]·E` for the columns behind a block.
fn carry_on(&Part { item, start, block }: &Part<'_>) -> Option<Gemm> {
    let (n, r) = (item.signs.rows, item.signs.cols);
    let width = block.min(n - start);
    let rest = n - start - width;
    (rest > 0).then(|| {
        let feedback = item.r_transposed.part((start + width, start), (rest, width));
        let errors = item.errors.part((0, 0), (width, r));
        let later = item.b.part((start + width, 0), (rest, r));
        Gemm::new(feedback, errors, later).alpha(-1.0).beta(1.0).in_parts(item.parts)
    })
}

fn search_parts(arena: &mut Arena, parts: &[Part<'_>]) {
    if let Some(memory) = arena.memory() {
        return parts.par_iter().for_each(|part| on_host(memory, part));
    }
    let mut table = Table::new(20);
    for Part { item, start, block } in parts {
        let ColumnSearchItem { signs: s, b, k, r_transposed: rt, scale, flips, ks, errors: e, .. } = item;
        let (n, r) = (s.rows, s.cols);
        let tolerances = [FLIP_TOLERANCE_F32, SCALE_TOLERANCE].map(float_word);
        let words = [
            s.at,
            s.stride,
            ks.at,
            ks.stride,
            b.at,
            b.stride,
            k.at,
            k.stride,
            rt.at,
            rt.stride,
            e.at,
            e.stride,
            n,
            r,
            *start,
            (*block).min(n - start),
            *scale,
            *flips,
            tolerances[0],
            tolerances[1],
        ];
        table.push(1, &words);
    }
    arena.queue(&COLUMN_SEARCH, table);
}

fn on_host(memory: Memory, &Part { item, start, block }: &Part<'_>) {
    let (n, r) = (item.signs.rows, item.signs.cols);
    // SAFETY: K and Rᵀ are read; everything else belongs to this item alone, row by row.
    let k = |k: usize| unsafe { memory.row(item.k, k) };
    let diagonal: Vec<f32> = (0..r).map(|i| k(i)[i]).collect();
    let mut delta = vec![0.0; r];
    let arch = pulp::Arch::new();
    for j in start..n.min(start + block) {
        // SAFETY: as above.
        unsafe {
            let b = memory.row_mut(item.b, j);
            let feedback = memory.row(item.r_transposed, j);
            for (i, weight) in feedback[start..j].iter().enumerate() {
                let error = memory.row(item.errors, i);
                b.iter_mut().zip(error).for_each(|(b, e)| *b -= weight * e);
            }
            let mut state = ColumnState {
                s: memory.row_mut(item.signs, j),
                ks: memory.row_mut(item.ks, j),
                b,
                k,
                diagonal: &diagonal,
                delta: &mut delta,
                tolerance: FLIP_TOLERANCE_F32,
                scale_tolerance: SCALE_TOLERANCE,
            };
            let (g, flips) = arch.dispatch(|| state.search());
            *memory.pointer(View::vector(item.scale + j, 1)) = g;
            *memory.pointer(View::vector(item.flips + j, 1)) = flips as f32;
            let error = memory.row_mut(item.errors, j - start);
            for (e, (b, ks)) in error.iter_mut().zip(memory.row(item.b, j).iter().zip(memory.row(item.ks, j)))
            {
                *e = (b - g * ks) / feedback[j];
            }
        }
    }
}
