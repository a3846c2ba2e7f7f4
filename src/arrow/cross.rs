use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par};

use crate::ops::matmul::{rows, rows_mut};
use crate::ops::matvec;

/// The coupling B between row unknowns and border, (Σ d_i) x p.
///
/// Factored, with a border ordered basis-major (p = M·r, β an M x r matrix by rows): `B_i = h_iᵀ ⊗ J_i`, so that
/// the row of unknown s in block i is `B[s, k·r + l] = h[i,k]·J[s,l]`.
#[derive(Clone, Debug, PartialEq)]
pub enum Cross {
    /// (Σ d_i) x p, row-major.
    Dense(Vec<f64>),
    Factored {
        /// M, the number of basis functions.
        basis: usize,
        /// h, n x M, row-major: the basis at each row block.
        values: Vec<f64>,
        /// J, (Σ d_i) x r, row-major.
        jacobian: Vec<f64>,
    },
}

impl Cross {
    /// `t ← t + α·B·β`.
    pub fn multiply(&self, offsets: &[usize], alpha: f64, beta: &[f64], t: &mut [f64]) {
        match self {
            Self::Dense(b) => matvec::matvec(alpha, b, beta, t),
            Self::Factored { basis, values, jacobian } => {
                let (n, r) = (offsets.len() - 1, beta.len() / basis);
                let mut w = vec![0.0; n * r];
                let (h, b) = (rows(values, n, *basis), rows(beta, *basis, r));
                matmul(rows_mut(&mut w, n, r), Accum::Replace, h, b, alpha, Par::Seq);
                for (w, at) in w.chunks_exact(r).zip(offsets.windows(2)) {
                    matvec::matvec(1.0, &jacobian[at[0] * r..at[1] * r], w, &mut t[at[0]..at[1]]);
                }
            }
        }
    }

    /// `β ← β + α·Bᵀ·t`.
    pub fn multiply_transposed(&self, offsets: &[usize], alpha: f64, t: &[f64], beta: &mut [f64]) {
        match self {
            Self::Dense(b) => matvec::matvec_transposed(alpha, b, t, beta),
            Self::Factored { basis, values, jacobian } => {
                let (n, r) = (offsets.len() - 1, beta.len() / basis);
                let mut v = vec![0.0; n * r];
                for (v, at) in v.chunks_exact_mut(r).zip(offsets.windows(2)) {
                    matvec::matvec_transposed(1.0, &jacobian[at[0] * r..at[1] * r], &t[at[0]..at[1]], v);
                }
                let h = rows(values, n, *basis).transpose();
                let v = rows(&v, n, r);
                matmul(rows_mut(beta, *basis, r), Accum::Add, h, v, alpha, Par::Seq);
            }
        }
    }

    /// `T ← T + α·B·X` for k right-hand sides: X is p x k, T is (Σ d_i) x k.
    pub fn multiply_many(&self, offsets: &[usize], alpha: f64, x: &Mat<f64>, t: &mut Mat<f64>) {
        match self {
            Self::Dense(b) => {
                let b = rows(b, t.nrows(), x.nrows());
                matmul(t.as_mut(), Accum::Add, b, x, alpha, Par::rayon(0));
            }
            Self::Factored { .. } => {
                for k in 0..x.ncols() {
                    let (x, t) = (x.col_as_slice(k), t.col_as_slice_mut(k));
                    self.multiply(offsets, alpha, x, t);
                }
            }
        }
    }

    /// `X ← X + α·Bᵀ·T` for k right-hand sides.
    pub fn multiply_transposed_many(&self, offsets: &[usize], alpha: f64, t: &Mat<f64>, x: &mut Mat<f64>) {
        match self {
            Self::Dense(b) => {
                let b = rows(b, t.nrows(), x.nrows()).transpose();
                matmul(x.as_mut(), Accum::Add, b, t, alpha, Par::rayon(0));
            }
            Self::Factored { .. } => {
                for k in 0..x.ncols() {
                    let (t, x) = (t.col_as_slice(k), x.col_as_slice_mut(k));
                    self.multiply_transposed(offsets, alpha, t, x);
                }
            }
        }
    }

    /// B as one slab, (Σ d_i) x p, row-major.
    pub fn to_dense(&self, offsets: &[usize], p: usize) -> Vec<f64> {
        match self {
            Self::Dense(b) => b.clone(),
            Self::Factored { basis, values, jacobian } => {
                let r = p / basis;
                let mut dense = Vec::with_capacity(offsets[offsets.len() - 1] * p);
                for (h, at) in values.chunks_exact(*basis).zip(offsets.windows(2)) {
                    for jacobian in jacobian[at[0] * r..at[1] * r].chunks_exact(r) {
                        h.iter().for_each(|h| dense.extend(jacobian.iter().map(|j| h * j)));
                    }
                }
                dense
            }
        }
    }

    /// Numbers held.
    pub fn len(&self) -> usize {
        match self {
            Self::Dense(b) => b.len(),
            Self::Factored { values, jacobian, .. } => values.len() + jacobian.len(),
        }
    }

    /// Never, in a valid system.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
