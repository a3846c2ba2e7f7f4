//! Systems that every test and bench shares: deterministic, seeded by SplitMix64.

use crate::ops::splitmix::SplitMix64;

use super::{Border, Cross, Rows, System, SystemError, Vector};

/// Shape and seed of a fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub rows: usize,
    pub dim: usize,
    pub border: usize,
    pub seed: u64,
}

/// n = 180, d = 2, p = 5120.
pub const COLOR_ARM: Shape = Shape { rows: 180, dim: 2, border: 5120, seed: 0xC0102 };
/// n = 2000, d = 2, p = 2048.
pub const QWEN: Shape = Shape { rows: 2000, dim: 2, border: 2048, seed: 0x0_93E7 };
/// n = 8, d = 2, p = 4.
pub const SMALL: Shape = Shape { rows: 8, dim: 2, border: 4, seed: 0x5 };

/// The well-conditioned system of a shape: row diagonals near 3, cross entries of 1e-4 to 1e-2, a tridiagonal border
/// of 4 and 0.01, held dense.
pub fn well_conditioned(shape: Shape) -> Result<System, SystemError> {
    let Shape { rows: n, dim: d, border: p, seed } = shape;
    let mut random = SplitMix64::new(seed);
    let mut row_hessian = Vec::with_capacity(n * d * d);
    for _ in 0..n {
        row_hessian.extend(row_block(d, &mut random));
    }
    let cross = (0..n * d * p).map(|_| cross_entry(&mut random)).collect();
    let rows = Rows::Uniform { count: n, dim: d };
    System::new(rows, p, row_hessian, Cross::Dense(cross), Border::Dense(tridiagonal(p)))
}

/// The same rows and cross entries with a diagonal border of 4.
pub fn diagonal_border(shape: Shape) -> Result<System, SystemError> {
    let dense = well_conditioned(Shape { border: 1, ..shape })?;
    let Shape { rows: n, dim: d, border: p, seed } = shape;
    let mut random = SplitMix64::new(seed + 1);
    let cross = Cross::Dense((0..n * d * p).map(|_| cross_entry(&mut random)).collect());
    let (rows, border) = (Rows::Uniform { count: n, dim: d }, Border::Diagonal(vec![4.0; p]));
    System::new(rows, p, dense.row_hessian().to_vec(), cross, border)
}

/// The same rows with a border of `basis` functions, G tridiagonal as above, and a cross block of factors: values in
/// [−1, 1), Jacobians of cross entries.
pub fn kronecker_border(shape: Shape, basis: usize) -> Result<System, SystemError> {
    let dense = well_conditioned(Shape { border: 1, ..shape })?;
    let Shape { rows: n, dim: d, border: p, seed } = shape;
    let mut random = SplitMix64::new(seed + 1);
    let cross = Cross::Factored {
        basis,
        values: (0..n * basis).map(|_| random.signed()).collect(),
        jacobian: (0..n * d * (p / basis.max(1))).map(|_| cross_entry(&mut random)).collect(),
    };
    let border = Border::Kronecker { basis, gram: tridiagonal(basis) };
    System::new(Rows::Uniform { count: n, dim: d }, p, dense.row_hessian().to_vec(), cross, border)
}

/// A block with a diagonal near 3 and 0.1-0.2 beside it, d x d.
pub fn row_block(d: usize, random: &mut SplitMix64) -> Vec<f64> {
    let mut block = vec![0.0; d * d];
    for i in 0..d {
        block[i * d + i] = 3.0 + 0.2 * random.signed();
        for j in 0..i {
            let value = 0.15 * random.signed();
            block[i * d + j] = value;
            block[j * d + i] = value;
        }
    }
    block
}

/// Of either sign, magnitude spread evenly over the decades from 1e-4 to 1e-2.
pub fn cross_entry(random: &mut SplitMix64) -> f64 {
    let magnitude = 1e-4 * (1.0 + 99.0 * random.uniform().powi(2));
    if random.next_u64() & 1 == 0 { magnitude } else { -magnitude }
}

/// 4 on the diagonal and 0.01 beside it, p x p.
pub fn tridiagonal(p: usize) -> Vec<f64> {
    let mut border = vec![0.0; p * p];
    for i in 0..p {
        border[i * p + i] = 4.0;
        if i + 1 < p {
            border[i * p + i + 1] = 0.01;
            border[(i + 1) * p + i] = 0.01;
        }
    }
    border
}

/// A vector of numbers in [−1, 1) of the shape of `system`.
pub fn random_vector(system: &System, seed: u64) -> Vector {
    let mut random = SplitMix64::new(seed);
    let mut take = |count: usize| (0..count).map(|_| random.signed()).collect();
    Vector { row: take(system.unknowns()), border: take(system.border()) }
}

/// A cell of the colour matrix: atoms 1..4, one of four topologies, a periodic (d = 2) or linear (d = 1) basis; all
/// with n = 180 and p = 5120. Atoms and topology only change the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub atoms: usize,
    pub topology: &'static str,
    pub basis: &'static str,
}

/// The 32 cells, slowest first: atoms, topology, basis.
pub fn colour_matrix() -> Vec<(Cell, Shape)> {
    let mut cells = Vec::new();
    for atoms in 1..=4 {
        for (t, topology) in ["line", "circle", "torus", "sphere"].into_iter().enumerate() {
            for (basis, dim) in [("periodic", 2), ("linear", 1)] {
                let seed = 0xCE11_0000 + (atoms as u64) * 64 + (t as u64) * 8 + dim as u64;
                cells.push((Cell { atoms, topology, basis }, Shape { dim, seed, ..COLOR_ARM }));
            }
        }
    }
    cells
}

/// Row blocks and border that are not positive definite (each has a negative pivot), n = 8, d = 2, p = 4.
pub fn indefinite() -> Result<System, SystemError> {
    let system = well_conditioned(SMALL)?;
    let (p, mut row_hessian) = (system.border(), system.row_hessian().to_vec());
    // Block 3 gets the eigenvalues 2 ± 3.5.
    row_hessian[12..16].copy_from_slice(&[2.0, 3.5, 3.5, 2.0]);
    let mut border = tridiagonal(p);
    border[2 * p + 2] = -0.5;
    let rows = Rows::Uniform { count: SMALL.rows, dim: SMALL.dim };
    System::new(rows, p, row_hessian, system.cross().clone(), Border::Dense(border))
}

/// A system of condition near `condition`: a Schur complement with eigenvalues spread evenly in the logarithm from
/// 1/condition to 1, in a random basis (two reflections), and `C = S + BᵀD⁻¹B` with orthonormal-sized cross blocks.
pub fn ill_conditioned(shape: Shape, condition: f64) -> Result<System, SystemError> {
    let Shape { rows: n, dim: d, border: p, seed } = shape;
    let mut random = SplitMix64::new(seed);
    let mut row_hessian = vec![0.0; n * d * d];
    for block in row_hessian.chunks_exact_mut(d * d) {
        (0..d).for_each(|i| block[i * d + i] = 1.0 + random.uniform());
    }
    let cross: Vec<f64> = (0..n * d * p).map(|_| random.signed() / ((n * d) as f64).sqrt()).collect();
    let mut border = vec![0.0; p * p];
    for i in 0..p {
        border[i * p + i] = condition.powf(-(i as f64) / (p.max(2) - 1) as f64);
    }
    for _ in 0..2 {
        let v: Vec<f64> = (0..p).map(|_| random.signed()).collect();
        reflect(&mut border, &v);
    }
    for (row, b) in cross.chunks_exact(p).enumerate() {
        let weight = 1.0 / row_hessian[row / d * d * d + (row % d) * (d + 1)];
        for i in 0..p {
            for j in 0..=i {
                border[i * p + j] += weight * b[i] * b[j];
            }
        }
    }
    for i in 0..p {
        (0..i).for_each(|j| border[j * p + i] = border[i * p + j]);
    }
    System::new(
        Rows::Uniform { count: n, dim: d },
        p,
        row_hessian,
        Cross::Dense(cross),
        Border::Dense(border),
    )
}

/// `A ← Q·A·Q` with `Q = I − 2vvᵀ/(v·v)`.
fn reflect(a: &mut [f64], v: &[f64]) {
    let p = v.len();
    let scale = 2.0 / v.iter().map(|v| v * v).sum::<f64>();
    for row in a.chunks_exact_mut(p) {
        let sum: f64 = scale * row.iter().zip(v).map(|(a, v)| a * v).sum::<f64>();
        row.iter_mut().zip(v).for_each(|(a, v)| *a -= sum * v);
    }
    let mut sums = vec![0.0; p];
    for (row, v) in a.chunks_exact(p).zip(v) {
        sums.iter_mut().zip(row).for_each(|(s, a)| *s += scale * v * a);
    }
    for (row, v) in a.chunks_exact_mut(p).zip(v) {
        row.iter_mut().zip(&sums).for_each(|(a, s)| *a -= v * s);
    }
}
