use super::vector::first_non_finite;
use super::{Blocks, Border, Cross, Ridge, Vector};
use crate::ops::matvec::matvec;

/// Largest row block: plain loops over one block stay faster than calls into a matrix library up to here.
pub const LARGEST_BLOCK: usize = 16;

/// Difference of two mirrored entries, relative to `max(|a|, |b|, √(h_ii·h_jj))`, that still counts as symmetric:
/// thousands of roundings of sums that were made in another order.
pub const SYMMETRY_TOLERANCE: f64 = 1e-12;

/// A bordered block-diagonal ("arrow") system, f64, row-major, slowest index first:
///
/// ```text
///     H = [ D   B ]      D = blockdiag(D_1 … D_n), D_i symmetric d_i x d_i
///         [ Bᵀ  C ]      B (Σ d_i) x p, C symmetric p x p
/// ```
///
/// A worked example, n = 2 row blocks of d = 1 and a border of p = 1, `t = (t₁, t₂)`:
///
/// ```text
///     2 t₁      + β = 5         S = 4 − 1·½·1 − 2·¼·2 = 2½
///          4 t₂ + 2β = 16       S β = 17 − 1·5/2 − 2·16/4 = 6½,  β = 2.6
///     t₁ + 2 t₂ + 4β = 17       t₁ = (5 − 2.6)/2 = 1.2,  t₂ = (16 − 5.2)/4 = 2.7
/// ```
///
/// ```
/// use lapidary::arrow::{Border, Cross, Frame, Params, Rows, System, Vector};
/// let rows = Rows::Uniform { count: 2, dim: 1 };
/// let system = System::new(rows, 1, vec![2., 4.], Cross::Dense(vec![1., 2.]), Border::Dense(vec![4.]))?;
/// let mut frame = Frame::build(&system.into(), &Params::default())?;
/// let solution = frame.solve(&Vector { row: vec![5., 16.], border: vec![17.] })?;
/// assert!((solution.step.border[0] - 2.6).abs() < 1e-15);
/// assert!((solution.step.row[1] - 2.7).abs() < 1e-15);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct System {
    blocks: Blocks,
    border: usize,
    row_hessian: Vec<f64>,
    cross: Cross,
    border_hessian: Border,
}

/// How the row unknowns are cut into blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// n blocks of d each.
    Uniform { count: usize, dim: usize },
    /// First unknown of each block, and the number of unknowns at the end: n + 1 numbers from 0 upwards.
    Ragged(Vec<usize>),
}

/// A part of H, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    Row(usize),
    Border,
}

impl std::fmt::Display for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Row(i) => write!(f, "row block {i}"),
            Self::Border => f.write_str("the border"),
        }
    }
}

/// Why slabs do not make a system.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SystemError {
    #[error(
        "`{what}` is zero; a system needs at least one row block, one unknown a block and one border unknown"
    )]
    ZeroSize { what: &'static str },
    #[error(
        "row block {index} has {dim} unknowns; blocks of 1 to {LARGEST_BLOCK} are supported, put wider ones into the border"
    )]
    BlockSize { index: usize, dim: usize },
    #[error("`row_offsets` must rise from 0: entry {index} is {got} after {before}")]
    Offsets { index: usize, got: usize, before: usize },
    #[error("`{slab}` has {got} numbers where {expected} are expected ({shape})")]
    Length { slab: &'static str, got: usize, expected: usize, shape: String },
    #[error("a border of {border} cannot be cut into {basis} equal parts, one a basis function")]
    Basis { basis: usize, border: usize },
    #[error("`{slab}` holds {value} at index {index}; every number must be finite")]
    NonFinite { slab: &'static str, index: usize, value: f64 },
    #[error(
        "{block} is not symmetric: entry ({row}, {col}) is {value} and its mirror {mirror}, {difference:e} apart; average the two if that is meant"
    )]
    Asymmetric { block: Block, row: usize, col: usize, value: f64, mirror: f64, difference: f64 },
    #[error("a system of this shape has more numbers than this machine can address")]
    TooLarge,
}

impl System {
    /// A system from its slabs.
    ///
    /// | symbol | argument | shape |
    /// |---|---|---|
    /// | D_i | `row_hessian` | n x d x d; ragged: the blocks d_i x d_i one after another |
    /// | B | `cross` | (Σ d_i) x p, or its factors |
    /// | C | `border_hessian` | p x p, or its structure |
    ///
    /// # Errors
    /// Wrong lengths, zero sizes, NaN or infinity, blocks that are not symmetric: which, where, by how much.
    pub fn new(
        rows: Rows,
        border: usize,
        row_hessian: Vec<f64>,
        cross: Cross,
        border_hessian: Border,
    ) -> Result<Self, SystemError> {
        let offsets = offsets(rows)?;
        if border == 0 {
            return Err(SystemError::ZeroSize { what: "border" });
        }
        let system = Self { blocks: Blocks::new(offsets), border, row_hessian, cross, border_hessian };
        system.check_lengths()?;
        system.check_finite()?;
        system.check_symmetric()?;
        Ok(system)
    }

    /// n.
    pub fn blocks(&self) -> usize {
        self.blocks.count()
    }

    /// Where the row blocks begin.
    pub fn row_blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Σ d_i.
    pub fn unknowns(&self) -> usize {
        self.blocks.unknowns()
    }

    /// p.
    pub fn border(&self) -> usize {
        self.border
    }

    /// First unknown of each row block, and Σ d_i at the end.
    pub fn offsets(&self) -> &[usize] {
        self.blocks.offsets()
    }

    /// d, where all row blocks have the same.
    pub fn uniform_dim(&self) -> Option<usize> {
        let dim = self.offsets()[1];
        self.offsets().windows(2).all(|at| at[1] - at[0] == dim).then_some(dim)
    }

    pub fn row_hessian(&self) -> &[f64] {
        &self.row_hessian
    }

    pub fn cross(&self) -> &Cross {
        &self.cross
    }

    pub fn border_hessian(&self) -> &Border {
        &self.border_hessian
    }

    /// D_i, d_i x d_i.
    pub fn block(&self, i: usize) -> &[f64] {
        &self.row_hessian[self.blocks.starts()[i]..self.blocks.starts()[i + 1]]
    }

    /// The diagonal of H.
    pub fn diagonal(&self) -> Vector {
        let mut row = Vec::with_capacity(self.unknowns());
        for i in 0..self.blocks() {
            let d = self.offsets()[i + 1] - self.offsets()[i];
            row.extend(self.block(i).iter().step_by(d + 1));
        }
        Vector { row, border: self.border_hessian.diagonal(self.border) }
    }

    /// `H·z`.
    pub fn apply(&self, z: &Vector) -> Vector {
        self.apply_ridged(Ridge::None, z)
    }

    /// `(H + ridge)·z`.
    pub fn apply_ridged(&self, ridge: Ridge, z: &Vector) -> Vector {
        let mut y = Vector::zeros(self);
        for (i, at) in self.offsets().windows(2).enumerate() {
            matvec(1.0, self.block(i), &z.row[at[0]..at[1]], &mut y.row[at[0]..at[1]]);
        }
        self.cross.multiply(self.offsets(), 1.0, &z.border, &mut y.row);
        self.cross.multiply_transposed(self.offsets(), 1.0, &z.row, &mut y.border);
        self.border_hessian.multiply(&z.border, &mut y.border);
        if ridge != Ridge::None {
            let diagonal = self.diagonal();
            let add = |y: &mut [f64], h: &[f64], z: &[f64], ridge: &dyn Fn(f64) -> f64| {
                y.iter_mut().zip(h).zip(z).for_each(|((y, h), z)| *y += ridge(*h) * z);
            };
            add(&mut y.row, &diagonal.row, &z.row, &|h| ridge.on_row(h));
            add(&mut y.border, &diagonal.border, &z.border, &|h| ridge.on_border(h));
        }
        y
    }

    fn check_lengths(&self) -> Result<(), SystemError> {
        let (n, m, p) = (self.blocks(), self.unknowns(), self.border);
        let check = |slab, got, sizes: [usize; 2]| {
            let expected = sizes[0].checked_mul(sizes[1]).ok_or(SystemError::TooLarge)?;
            let shape = format!("{} x {}", sizes[0], sizes[1]);
            if got == expected { Ok(()) } else { Err(SystemError::Length { slab, got, expected, shape }) }
        };
        let parts = |basis: usize| {
            let whole = basis > 0 && p.is_multiple_of(basis);
            whole.then_some(()).ok_or(SystemError::Basis { basis, border: p })
        };
        let (got, expected) = (self.row_hessian.len(), self.blocks.numbers());
        if got != expected {
            let shape = match self.uniform_dim() {
                Some(d) => format!("{n} x {d} x {d}"),
                None => format!("the sum of d_i x d_i over {n} blocks"),
            };
            return Err(SystemError::Length { slab: "row_hessian", got, expected, shape });
        }
        match &self.cross {
            Cross::Dense(b) => check("row_cross", b.len(), [m, p])?,
            Cross::Factored { basis, values, jacobian } => {
                parts(*basis)?;
                check("row_basis", values.len(), [n, *basis])?;
                check("row_jacobian", jacobian.len(), [m, p / basis])?;
            }
        }
        match &self.border_hessian {
            Border::Dense(c) => check("border_hessian", c.len(), [p, p]),
            Border::Diagonal(c) => check("border_diagonal", c.len(), [p, 1]),
            Border::Kronecker { basis, gram } => {
                parts(*basis)?;
                check("border_gram", gram.len(), [*basis, *basis])
            }
        }
    }

    fn check_finite(&self) -> Result<(), SystemError> {
        let mut slabs: Vec<(&'static str, &[f64])> = vec![("row_hessian", &self.row_hessian)];
        match &self.cross {
            Cross::Dense(b) => slabs.push(("row_cross", b)),
            Cross::Factored { values, jacobian, .. } => {
                slabs.extend([("row_basis", &values[..]), ("row_jacobian", jacobian)]);
            }
        }
        slabs.push(match &self.border_hessian {
            Border::Dense(c) => ("border_hessian", c),
            Border::Diagonal(c) => ("border_diagonal", c),
            Border::Kronecker { gram, .. } => ("border_gram", gram),
        });
        for (slab, values) in slabs {
            if let Some(index) = first_non_finite(values) {
                return Err(SystemError::NonFinite { slab, index, value: values[index] });
            }
        }
        Ok(())
    }

    fn check_symmetric(&self) -> Result<(), SystemError> {
        for (i, at) in self.offsets().windows(2).enumerate() {
            check_symmetric(Block::Row(i), self.block(i), at[1] - at[0])?;
        }
        match &self.border_hessian {
            Border::Dense(c) => check_symmetric(Block::Border, c, self.border),
            Border::Kronecker { basis, gram } => check_symmetric(Block::Border, gram, *basis),
            Border::Diagonal(_) => Ok(()),
        }
    }
}

fn offsets(rows: Rows) -> Result<Vec<usize>, SystemError> {
    let offsets = match rows {
        Rows::Uniform { count, dim } => {
            if count == 0 {
                return Err(SystemError::ZeroSize { what: "rows" });
            }
            if dim == 0 {
                return Err(SystemError::ZeroSize { what: "row dimension" });
            }
            if dim > LARGEST_BLOCK {
                return Err(SystemError::BlockSize { index: 0, dim });
            }
            count.checked_mul(dim).ok_or(SystemError::TooLarge)?;
            return Ok((0..=count).map(|i| i * dim).collect());
        }
        Rows::Ragged(offsets) => offsets,
    };
    if offsets.len() < 2 {
        return Err(SystemError::ZeroSize { what: "rows" });
    }
    if offsets[0] != 0 {
        return Err(SystemError::Offsets { index: 0, got: offsets[0], before: 0 });
    }
    for (i, at) in offsets.windows(2).enumerate() {
        if at[1] < at[0] {
            return Err(SystemError::Offsets { index: i + 1, got: at[1], before: at[0] });
        }
        let dim = at[1] - at[0];
        if dim == 0 || dim > LARGEST_BLOCK {
            return Err(SystemError::BlockSize { index: i, dim });
        }
    }
    Ok(offsets)
}

/// Whether two mirrored entries are the same but for rounding, beside the diagonal entries of their row and column.
/// See [`SYMMETRY_TOLERANCE`]. The roots are taken one by one: the product of two large entries would overflow.
#[inline(always)]
pub(super) fn are_mirrored(value: f64, mirror: f64, h_ii: f64, h_jj: f64) -> bool {
    let difference = (value - mirror).abs();
    if difference == 0.0 {
        return true;
    }
    let diagonal = h_ii.abs().sqrt() * h_jj.abs().sqrt();
    difference <= SYMMETRY_TOLERANCE * value.abs().max(mirror.abs()).max(diagonal)
}

/// Tile by tile, so that the mirrored reads stay in the cache.
fn check_symmetric(block: Block, a: &[f64], n: usize) -> Result<(), SystemError> {
    use rayon::prelude::*;
    const TILE: usize = 32;
    let check_tile = |rows: usize, cols: usize| {
        for i in rows..(rows + TILE).min(n) {
            for j in cols..(cols + TILE).min(i) {
                let (value, mirror) = (a[i * n + j], a[j * n + i]);
                if !are_mirrored(value, mirror, a[i * n + i], a[j * n + j]) {
                    let (row, col, difference) = (i, j, (value - mirror).abs());
                    return Err(SystemError::Asymmetric { block, row, col, value, mirror, difference });
                }
            }
        }
        Ok(())
    };
    let check_rows = |tile: usize| (0..=tile).try_for_each(|col| check_tile(tile * TILE, col * TILE));
    let tiles = n.div_ceil(TILE);
    if tiles == 1 {
        return check_rows(0);
    }
    let first = (0..tiles).into_par_iter().find_map_first(|tile| check_rows(tile).err());
    first.map_or(Ok(()), Err)
}
