use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, Par};
use rayon::prelude::*;

use super::frame::FrameError;
use super::host::Factor;
use super::rows::{RowFactors, not_positive};
use super::vector::largest;
use super::{Block, Border, Cross, Ridge, System};
use crate::ops::cholesky::NonPositivePivot;
use crate::ops::matmul::rows;
use crate::ops::matvec::dot;
use crate::ops::syrk::symmetric_product;

/// A structured border, eliminated first: with `C + ridge = E·Eᵀ` (diagonal or Kronecker, never p x p) and
/// `Z = L⁻¹·B·E⁻ᵀ`, the rows are left with their capacitance
///
/// ```text
///     K = I − Z·Zᵀ            (Σ d_i x Σ d_i)
///     K w = L⁻¹b_t − Z·E⁻¹b_β,   δt = L⁻ᵀw,   δβ = E⁻ᵀ(E⁻¹b_β − Zᵀw)
///     log det H = log det D + log det C + log det K
/// ```
pub(super) struct Capacitance {
    root: Root,
    z: Cross,
    k: Factor,
    /// r, the width of one basis function's part of the border; 1 for a diagonal.
    part: usize,
}

/// E.
pub(super) enum Root {
    Diagonal(Vec<f64>),
    /// `chol(G + ridge) ⊗ I_r`.
    Kronecker(Factor, usize),
}

impl Capacitance {
    pub(super) fn build(system: &System, factors: &RowFactors, ridge: Ridge) -> Result<Self, FrameError> {
        let (m, p) = (system.unknowns(), system.border());
        let root = Root::build(system.border_hessian(), p, ridge)?;
        let part = root.part(p);
        let mut z = factors.couple(system.cross(), p);
        if !matches!((&z, &root), (Cross::Factored { basis, .. }, Root::Kronecker(_, m)) if basis == m) {
            z = Cross::Dense(z.to_dense(factors.offsets(), p));
        }
        root.scale(&mut z, m, p);
        let k = capacitance(&z, factors.offsets(), p);
        let k = Factor::build(k, m).map_err(|e| too_strong(system, factors, e))?;
        Ok(Self { root, z, k, part })
    }

    pub(super) fn solve_one(&self, offsets: &[usize], t: &mut [f64], beta: &mut [f64]) {
        self.root.forward(beta, self.part);
        self.z.multiply(offsets, -1.0, beta, t);
        self.k.solve_one(t);
        self.z.multiply_transposed(offsets, -1.0, t, beta);
        self.root.backward(beta, self.part);
    }

    pub(super) fn solve_many(&self, offsets: &[usize], t: &mut Mat<f64>, beta: &mut Mat<f64>) {
        (0..beta.ncols()).for_each(|k| self.root.forward(beta.col_as_slice_mut(k), self.part));
        self.z.multiply_many(offsets, -1.0, beta, t);
        self.k.solve(t.as_mut());
        self.z.multiply_transposed_many(offsets, -1.0, t, beta);
        (0..beta.ncols()).for_each(|k| self.root.backward(beta.col_as_slice_mut(k), self.part));
    }

    /// `log det C + log det K`.
    pub(super) fn log_det(&self) -> f64 {
        self.root.log_det(self.part) + self.k.log_det()
    }

    /// Z.
    pub(super) fn coupling(&self) -> &Cross {
        &self.z
    }

    /// Cholesky factorisations behind it, K's among them.
    pub(super) fn factorisations(&self) -> u64 {
        self.root.factorisations() + 1
    }

    /// The pivots of chol(K).
    pub(super) fn pivots(&self) -> impl Iterator<Item = f64> + '_ {
        self.k.pivots()
    }

    /// The smallest squared pivot of E over its entry of the border's ridged diagonal.
    pub(super) fn border_share(&self) -> f64 {
        self.root.smallest_share()
    }
}

/// A pivot k of the capacitance that failed: in `L·K·Lᵀ`, what the border leaves of the rows, it is `l²·k`.
fn too_strong(system: &System, factors: &RowFactors, failed: NonPositivePivot) -> FrameError {
    let (row, offsets) = (failed.index, factors.offsets());
    let block = offsets.partition_point(|first| *first <= row) - 1;
    let l = factors.pivots().nth(row).unwrap_or(1.0);
    let width = offsets[block + 1] - offsets[block];
    let height = largest(system.block(block).iter().step_by(width + 1).copied());
    let pivot = NonPositivePivot { index: row - offsets[block], pivot: l * l * failed.pivot };
    not_positive(Block::Row(block), pivot, height)
}

impl Root {
    pub(super) fn build(border: &Border, p: usize, ridge: Ridge) -> Result<Self, FrameError> {
        let failed = |e, height| not_positive(Block::Border, e, height);
        match border {
            Border::Diagonal(c) => {
                let height = largest(c.iter().copied());
                let root = |(index, c): (usize, &f64)| {
                    let pivot = c + ridge.on_border(*c);
                    let bad = NonPositivePivot { index, pivot };
                    if pivot > 0.0 { Ok(pivot.sqrt()) } else { Err(failed(bad, height)) }
                };
                Ok(Self::Diagonal(c.iter().enumerate().map(root).collect::<Result<_, _>>()?))
            }
            Border::Kronecker { basis, gram } => {
                let mut gram = gram.clone();
                let height = largest(gram.iter().step_by(basis + 1).copied());
                for g in gram.iter_mut().step_by(basis + 1) {
                    *g += ridge.on_border(*g);
                }
                let part = p / basis;
                let factor = Factor::build(gram, *basis).map_err(|mut e| {
                    e.index *= part;
                    failed(e, height)
                })?;
                Ok(Self::Kronecker(factor, *basis))
            }
            Border::Dense(_) => unreachable!("a dense border is never eliminated first"),
        }
    }

    /// `log det(C + ridge)`.
    pub(super) fn log_det(&self, part: usize) -> f64 {
        match self {
            Self::Diagonal(e) => e.iter().map(|e| 2.0 * e.ln()).sum(),
            Self::Kronecker(factor, _) => part as f64 * factor.log_det(),
        }
    }

    /// Cholesky factorisations behind it: a diagonal has none.
    pub(super) fn factorisations(&self) -> u64 {
        u64::from(matches!(self, Self::Kronecker(..)))
    }

    /// The smallest squared pivot over its diagonal entry: 1/κ of C + ridge, scaled to a diagonal of ones, is at most
    /// this. A diagonal's pivots are its entries.
    pub(super) fn smallest_share(&self) -> f64 {
        match self {
            Self::Diagonal(_) => 1.0,
            Self::Kronecker(factor, _) => factor.smallest_share(),
        }
    }

    pub(super) fn part(&self, p: usize) -> usize {
        match self {
            Self::Diagonal(_) => 1,
            Self::Kronecker(_, basis) => p / basis,
        }
    }

    /// `β ← E⁻¹β`; a Kronecker β is M x r by rows, so its transpose lies in memory column by column.
    fn forward(&self, beta: &mut [f64], part: usize) {
        match self {
            Self::Diagonal(e) => beta.iter_mut().zip(e).for_each(|(b, e)| *b /= e),
            Self::Kronecker(factor, basis) => factor.forward(by_rows(beta, *basis, part)),
        }
    }

    /// `β ← E⁻ᵀβ`.
    fn backward(&self, beta: &mut [f64], part: usize) {
        match self {
            Self::Diagonal(e) => beta.iter_mut().zip(e).for_each(|(b, e)| *b /= e),
            Self::Kronecker(factor, basis) => factor.backward(by_rows(beta, *basis, part)),
        }
    }

    /// `Z = Y·E⁻ᵀ`: each row of Y is a β.
    fn scale(&self, y: &mut Cross, m: usize, p: usize) {
        match (self, y) {
            (_, Cross::Dense(y)) => y.par_chunks_mut(p).for_each(|row| self.forward(row, self.part(p))),
            (Self::Kronecker(factor, _), Cross::Factored { basis, values, .. }) => {
                values.chunks_exact_mut(*basis).for_each(|h| {
                    factor.forward(MatMut::from_column_major_slice_mut(h, *basis, 1));
                });
            }
            (Self::Diagonal(_), Cross::Factored { .. }) => {
                unreachable!("{m} rows of factors have no product with a diagonal")
            }
        }
    }
}

fn by_rows(beta: &mut [f64], basis: usize, part: usize) -> MatMut<'_, f64> {
    MatMut::from_row_major_slice_mut(beta, basis, part)
}

/// `K = I − Z·Zᵀ`, lower triangle by columns. From factors: `(Z Zᵀ)_ij = (g_i·g_j)·Ĵ_i·Ĵ_jᵀ`, which never makes a
/// row as wide as the border.
fn capacitance(z: &Cross, offsets: &[usize], p: usize) -> Vec<f64> {
    let m = offsets[offsets.len() - 1];
    let mut k = vec![0.0; m * m];
    match z {
        Cross::Dense(z) => {
            let z = rows(z, m, p);
            let target = MatMut::from_column_major_slice_mut(&mut k, m, m);
            symmetric_product(target, Accum::Replace, z, z.transpose(), -1.0, Par::rayon(0));
        }
        Cross::Factored { basis, values, jacobian } => {
            let r = p / basis;
            let j = rows(jacobian, m, r);
            let target = MatMut::from_column_major_slice_mut(&mut k, m, m);
            matmul(target, Accum::Replace, j, j.transpose(), -1.0, Par::rayon(0));
            let block: Vec<usize> =
                offsets.windows(2).enumerate().flat_map(|(i, at)| vec![i; at[1] - at[0]]).collect();
            let h = |s: usize| &values[block[s] * basis..(block[s] + 1) * basis];
            k.par_chunks_mut(m).enumerate().for_each(|(s, column)| {
                for (t, entry) in column.iter_mut().enumerate().skip(s) {
                    *entry *= dot(h(s), h(t));
                }
            });
        }
    }
    k.iter_mut().step_by(m + 1).for_each(|entry| *entry += 1.0);
    k
}
