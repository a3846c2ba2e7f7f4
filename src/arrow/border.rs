use faer::linalg::matmul::matmul;
use faer::{Accum, Par};

use crate::ops::matmul::{rows, rows_mut};
use crate::ops::matvec::matvec;

/// The symmetric border C, p x p.
#[derive(Clone, Debug, PartialEq)]
pub enum Border {
    /// p x p, row-major, both triangles.
    Dense(Vec<f64>),
    /// Only the diagonal, p numbers.
    Diagonal(Vec<f64>),
    /// `C = G ⊗ I_r` with p = M·r, β an M x r matrix by rows: `C·β = G·β`.
    Kronecker {
        /// M.
        basis: usize,
        /// G, M x M, row-major, both triangles.
        gram: Vec<f64>,
    },
}

impl Border {
    /// `y ← y + C·β`.
    pub fn multiply(&self, beta: &[f64], y: &mut [f64]) {
        match self {
            Self::Dense(c) => matvec(1.0, c, beta, y),
            Self::Diagonal(c) => {
                y.iter_mut().zip(c).zip(beta).for_each(|((y, c), b)| *y = c.mul_add(*b, *y));
            }
            Self::Kronecker { basis, gram } => {
                let r = beta.len() / basis;
                let (g, b) = (rows(gram, *basis, *basis), rows(beta, *basis, r));
                matmul(rows_mut(y, *basis, r), Accum::Add, g, b, 1.0, Par::Seq);
            }
        }
    }

    /// The diagonal of C, p numbers.
    pub fn diagonal(&self, p: usize) -> Vec<f64> {
        match self {
            Self::Dense(c) => (0..p).map(|i| c[i * p + i]).collect(),
            Self::Diagonal(c) => c.clone(),
            Self::Kronecker { basis, gram } => {
                let r = p / basis;
                (0..p).map(|i| gram[i / r * basis + i / r]).collect()
            }
        }
    }

    /// C as one slab, p x p.
    pub fn to_dense(&self, p: usize) -> Vec<f64> {
        let mut dense = vec![0.0; p * p];
        match self {
            Self::Dense(c) => dense.copy_from_slice(c),
            Self::Diagonal(c) => c.iter().enumerate().for_each(|(i, c)| dense[i * p + i] = *c),
            Self::Kronecker { basis, gram } => {
                let r = p / basis;
                for (k, g) in gram.iter().enumerate() {
                    let (row, col) = (k / basis * r, k % basis * r);
                    (0..r).for_each(|l| dense[(row + l) * p + col + l] = *g);
                }
            }
        }
        dense
    }

    /// Numbers held.
    pub fn len(&self) -> usize {
        match self {
            Self::Dense(c) | Self::Diagonal(c) => c.len(),
            Self::Kronecker { gram, .. } => gram.len(),
        }
    }

    /// Never, in a valid system.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
