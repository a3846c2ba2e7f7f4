use faer::Mat;
use rayon::prelude::*;

use super::frame::FrameError;
use super::vector::largest;
use super::{Block, Blocks, Cross, Ridge, System};
use crate::ops::cholesky::{NonPositivePivot, backward_small, cholesky_small, forward_small};

/// Row blocks of one task: about 10 µs of work.
const BLOCKS_PER_TASK: usize = 64;

/// The factored row blocks, `L_i = chol(D_i + ridge)`.
pub(super) struct RowFactors {
    l: Vec<f64>,
    blocks: Blocks,
}

impl RowFactors {
    pub(super) fn build(system: &System, ridge: Ridge) -> Result<Self, FrameError> {
        let mut l = system.row_hessian().to_vec();
        let blocks = system.row_blocks().clone();
        let (starts, offsets) = (blocks.starts(), blocks.offsets());
        for i in 0..blocks.count() {
            let (d, block) = (offsets[i + 1] - offsets[i], &mut l[starts[i]..starts[i + 1]]);
            let height = largest(block.iter().step_by(d + 1).copied());
            (0..d).for_each(|k| block[k * d + k] += ridge.on_row(block[k * d + k]));
            cholesky_small(block, d).map_err(|e| not_positive(Block::Row(i), e, height))?;
        }
        Ok(Self { l, blocks })
    }

    pub(super) fn offsets(&self) -> &[usize] {
        self.blocks.offsets()
    }

    fn block(&self, i: usize) -> &[f64] {
        &self.l[self.blocks.starts()[i]..self.blocks.starts()[i + 1]]
    }

    /// `t ← L⁻¹t`, block by block.
    pub(super) fn forward(&self, t: &mut [f64]) {
        self.offsets()
            .windows(2)
            .enumerate()
            .for_each(|(i, at)| forward_small(self.block(i), &mut t[at[0]..at[1]]));
    }

    /// `t ← L⁻ᵀt`, block by block.
    pub(super) fn backward(&self, t: &mut [f64]) {
        self.offsets()
            .windows(2)
            .enumerate()
            .for_each(|(i, at)| backward_small(self.block(i), &mut t[at[0]..at[1]]));
    }

    pub(super) fn forward_many(&self, t: &mut Mat<f64>) {
        (0..t.ncols()).for_each(|k| self.forward(t.col_as_slice_mut(k)));
    }

    pub(super) fn backward_many(&self, t: &mut Mat<f64>) {
        (0..t.ncols()).for_each(|k| self.backward(t.col_as_slice_mut(k)));
    }

    /// `Y = L⁻¹B`, in the form of B.
    pub(super) fn couple(&self, cross: &Cross, p: usize) -> Cross {
        match cross {
            Cross::Dense(b) => {
                let mut y = b.clone();
                self.forward_slab(&mut y, p);
                Cross::Dense(y)
            }
            Cross::Factored { basis, values, jacobian } => {
                let mut jacobian = jacobian.clone();
                self.forward_slab(&mut jacobian, p / basis);
                Cross::Factored { basis: *basis, values: values.clone(), jacobian }
            }
        }
    }

    /// `L⁻¹` of a slab with `width` numbers for each unknown.
    fn forward_slab(&self, slab: &mut [f64], width: usize) {
        let (blocks, offsets) = (self.blocks.count(), self.offsets());
        let mut rest = slab;
        let mut parts = Vec::new();
        for first in (0..blocks).step_by(BLOCKS_PER_TASK) {
            let last = (first + BLOCKS_PER_TASK).min(blocks);
            let (part, tail) = rest.split_at_mut((offsets[last] - offsets[first]) * width);
            parts.push((first..last, part));
            rest = tail;
        }
        parts.into_par_iter().for_each(|(range, part)| {
            let base = offsets[range.start];
            for i in range {
                let at = (offsets[i] - base) * width..(offsets[i + 1] - base) * width;
                forward_rows(self.block(i), &mut part[at], width);
            }
        });
    }

    /// `2 Σ log diag L_i`.
    pub(super) fn log_det(&self) -> f64 {
        self.pivots().map(|pivot| 2.0 * pivot.ln()).sum()
    }

    /// The diagonals of all L_i.
    pub(super) fn pivots(&self) -> impl Iterator<Item = f64> + '_ {
        self.offsets()
            .windows(2)
            .enumerate()
            .flat_map(|(i, at)| self.block(i).iter().step_by(at[1] - at[0] + 1).copied())
    }
}

/// `L⁻¹` of the d rows of `slab`, each `width` long.
fn forward_rows(l: &[f64], slab: &mut [f64], width: usize) {
    let d = slab.len() / width;
    for i in 0..d {
        let (before, row) = slab.split_at_mut(i * width);
        let row = &mut row[..width];
        for (k, before) in before.chunks_exact(width).enumerate() {
            let factor = l[i * d + k];
            row.iter_mut().zip(before).for_each(|(r, b)| *r -= factor * b);
        }
        let inverse = 1.0 / l[i * d + i];
        row.iter_mut().for_each(|r| *r *= inverse);
    }
}

/// The error for a failed pivot. A ridge ρ raises every pivot by at least ρ, so 2·|pivot| repairs this one; a
/// millionth of the largest diagonal entry, or of 1 where all are zero, keeps it off zero.
pub(super) fn not_positive(block: Block, failed: NonPositivePivot, largest: f64) -> FrameError {
    let NonPositivePivot { index, pivot } = failed;
    let below = if pivot.is_finite() { 2.0 * pivot.abs() } else { largest };
    FrameError::NotPositiveDefinite {
        block,
        index,
        pivot,
        suggested: below + 1e-6 * if largest > 0.0 { largest } else { 1.0 },
    }
}
