//! The inverse of a symmetric positive definite matrix on a device, by halves, and half storage of symmetric matrices.
//!
//! With `S = [[A, Bᵀ], [B, C]]`, `T = B·A⁻¹` and `Z = C − T·Bᵀ`:
//! `S⁻¹ = [[A⁻¹ + TᵀZ⁻¹T, ·], [−Z⁻¹T, Z⁻¹]]`. Splitting down to leaves costs 4/3·p³ multiply-add pairs, almost all of
//! them in large products, and the leaves' pivots are those of Cholesky: they give the determinant.

use crate::device::DeviceError;
use crate::device::cuda::{Args, Blas, Buffer, Grid, Kernel, Matrix, Op, Source, Stream};

/// Rows and columns of a tile of half storage: 32 KiB a tile, so that thousands of tiles spread evenly over a card.
pub const TILE: usize = 64;

/// Order of the leaves that one block of threads inverts in registers.
pub const LEAF: usize = 64;

/// Order from which a symmetric update is cut into panels and only computed from their diagonal downwards; below, one
/// product of the whole square is faster than several launches.
const PANELLED: usize = 1024;

/// How the kernels that assemble a matrix are given its border C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// p x p.
    Dense,
    /// No numbers.
    Identity,
    /// p numbers.
    Diagonal,
    /// G, `basis` x `basis`, of `C = G ⊗ I`.
    Kronecker { basis: usize },
}

impl Form {
    /// (form, M, r) as the kernels take them.
    pub fn arguments(self, p: usize) -> (usize, usize, usize) {
        match self {
            Self::Dense => (0, 1, 1),
            Self::Identity => (1, 1, 1),
            Self::Diagonal => (2, 1, 1),
            Self::Kronecker { basis } => (3, basis, p / basis),
        }
    }
}

/// The kernels `invert_leaf`, `mirror`, `border_scale`, `half_tiles`, `whole_from_half`, `panel_from_half`,
/// `squared_diagonal`, `norm_one`.
pub fn source(leaf: usize) -> Source {
    let sizes = [("LEAF", leaf as i64), ("TILE", TILE as i64)];
    let forms = [("DENSE", 0), ("IDENTITY", 1), ("DIAGONAL", 2), ("KRONECKER", 3)];
    let constants = sizes.into_iter().chain(forms).collect();
    Source { name: "spd_inverse", prelude: "", text: include_str!("spd_inverse.cu"), constants }
}

/// Tiles of a matrix of order `p` in half storage.
pub fn half_tiles(p: usize) -> usize {
    let tiles = p.div_ceil(TILE);
    tiles * (tiles + 1) / 2
}

/// Numbers of a matrix of order `p` in half storage.
pub fn half_len(p: usize) -> usize {
    half_tiles(p) * TILE * TILE
}

/// Numbers of scratch that [`SpdInverse::invert`] needs for order `n`.
pub fn scratch_len(n: usize, leaf: usize) -> usize {
    if n <= leaf {
        return 0;
    }
    let first = split(n, leaf);
    first * (n - first) + scratch_len(first, leaf).max(scratch_len(n - first, leaf))
}

/// The inverse by halves, with the products of one cuBLAS handle.
pub struct SpdInverse {
    leaf_order: usize,
    leaf: Kernel,
    mirror: Kernel,
}

/// What an inversion works on: the matrix (both triangles, column-major, order p), its scratch, and where pivots go.
pub struct Work<'a> {
    pub matrix: &'a Buffer<f64>,
    pub order: usize,
    pub scratch: &'a Buffer<f64>,
    pub pivots: &'a Buffer<f64>,
    pub first_pivot: usize,
    pub status: u64,
}

impl SpdInverse {
    pub fn new(stream: &Stream, leaf_order: usize) -> Result<Self, DeviceError> {
        let source = source(leaf_order);
        let kernel = |name| Kernel::new(stream.cuda(), &source, name, 0);
        Ok(Self { leaf_order, leaf: kernel("invert_leaf")?, mirror: kernel("mirror")? })
    }

    /// Queues the inversion, in place. The lower triangle of the result is valid.
    ///
    /// # Safety
    /// Buffers have the lengths that [`Work`] and [`scratch_len`] say.
    pub unsafe fn invert(&self, stream: &Stream, blas: &Blas, work: &Work<'_>) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise, handed on.
        unsafe { self.part(stream, blas, work, (0, work.order), 0) }
    }

    /// # Safety
    /// As for `invert`; `at + n` is at most the order, `scratch` leaves what `scratch_len(n)` needs.
    unsafe fn part(
        &self,
        stream: &Stream,
        blas: &Blas,
        work: &Work<'_>,
        (at, n): (usize, usize),
        scratch: usize,
    ) -> Result<(), DeviceError> {
        let p = work.order;
        let entry = |row: usize, col: usize| (work.matrix.at(row + col * p), p);
        if n <= self.leaf_order {
            let mut args = Args::new()
                .pointer(entry(at, at).0)
                .int(p)
                .int(n)
                .int(work.first_pivot + at)
                .pointer(work.pivots.address())
                .pointer(work.status);
            // SAFETY: as promised by the caller.
            return unsafe { self.leaf.launch(stream, Grid { blocks: (1, 1), threads: 256 }, &mut args) };
        }
        let first = split(n, self.leaf_order);
        let (rest, middle) = (n - first, at + first);
        let (a, b, c) = (entry(at, at), entry(middle, at), entry(middle, middle));
        let t = (work.scratch.at(scratch), rest);
        let deeper = scratch + first * rest;
        // SAFETY: as promised by the caller; the four blocks lie inside the matrix.
        unsafe {
            self.part(stream, blas, work, (at, first), deeper)?;
            blas.gemm((Op::None, Op::None), (rest, first, first), (1.0, 0.0), b, a, t)?;
            update(blas, (Op::None, Op::Transposed), (rest, first), t, b, c)?;
            self.part(stream, blas, work, (middle, rest), deeper)?;
            blas.gemm((Op::None, Op::None), (rest, first, rest), (-1.0, 0.0), c, t, b)?;
            update(blas, (Op::Transposed, Op::None), (first, rest), t, b, a)?;
            if n == p {
                return Ok(());
            }
            self.mirror(stream, b, entry(at, middle), (rest, first))?;
            if first >= PANELLED {
                self.mirror(stream, a, a, (first, first))?;
            }
            Ok(())
        }
    }

    /// The mirror image of a part below the diagonal, or of a whole lower triangle onto its upper one.
    ///
    /// # Safety
    /// Both parts lie inside the matrix.
    unsafe fn mirror(
        &self,
        stream: &Stream,
        low: Matrix,
        high: Matrix,
        (rows, cols): (usize, usize),
    ) -> Result<(), DeviceError> {
        let mut args = Args::new().pointer(low.0).pointer(high.0).int(low.1).int(rows).int(cols);
        let grid = Grid { blocks: (rows.div_ceil(32), cols.div_ceil(32)), threads: 256 };
        // SAFETY: as promised by the caller.
        unsafe { self.mirror.launch(stream, grid, &mut args) }
    }
}

/// `C ← C − op(A)·op(B)` of order n, inner length k, for a product that is symmetric: all of C, or from
/// [`PANELLED`] on the lower triangle and what lies beside it in the panels.
///
/// # Safety
/// The operands cover what the shape says.
unsafe fn update(
    blas: &Blas,
    ops: (Op, Op),
    (n, k): (usize, usize),
    a: Matrix,
    b: Matrix,
    c: Matrix,
) -> Result<(), DeviceError> {
    let panel = if n >= PANELLED { n.div_ceil(4).next_multiple_of(TILE) } else { n };
    // Address of row (or column, where transposed) `at` of an operand.
    let from = |op, (address, pitch): Matrix, at: usize, rows: Op| {
        let step = if op == rows { at } else { at * pitch };
        (address + (step * size_of::<f64>()) as u64, pitch)
    };
    for at in (0..n).step_by(panel) {
        let left = from(ops.0, a, at, Op::None);
        let right = from(ops.1, b, at, Op::Transposed);
        let corner = (c.0 + ((at + at * c.1) * size_of::<f64>()) as u64, c.1);
        let shape = (n - at, panel.min(n - at), k);
        // SAFETY: the panel lies inside the operands.
        unsafe { blas.gemm(ops, shape, (-1.0, 1.0), left, right, corner)? };
    }
    Ok(())
}

/// Order of the first half: whole leaves.
fn split(n: usize, leaf: usize) -> usize {
    n.div_ceil(leaf).div_ceil(2) * leaf
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_whole_leaves_and_scratch_covers_every_depth() {
        assert_eq!(split(5120, 128), 2560);
        assert_eq!(split(129, 128), 128);
        assert_eq!(split(441, 128), 256);
        assert_eq!(scratch_len(128, 128), 0);
        assert_eq!(scratch_len(256, 128), 128 * 128);
        assert_eq!(scratch_len(512, 128), 256 * 256 + 128 * 128);
        assert_eq!(half_len(65), 3 * 64 * 64);
    }
}
