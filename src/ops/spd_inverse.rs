//! The inverse of a symmetric positive definite matrix on a device, by halves, and half storage of symmetric matrices.
//!
//! With `S = [[A, Bᵀ], [B, C]]`, `T = B·A⁻¹` and `Z = C − T·Bᵀ`:
//! `S⁻¹ = [[A⁻¹ + TᵀZ⁻¹T, ·], [−Z⁻¹T, Z⁻¹]]`. Splitting down to leaves costs 4/3·p³ multiply-add pairs, almost all of
//! them in large products, and the leaves' pivots are those of Cholesky: they give the determinant.

use crate::device::DeviceError;
use crate::device::cuda::{Args, Blas, Buffer, Grid, Kernel, Op, Source, Stream};

/// Rows and columns of a tile of half storage: 32 KiB a tile, so that thousands of tiles spread evenly over a card.
pub const TILE: usize = 64;

/// Order of the leaves that one block of threads inverts in registers.
pub const LEAF: usize = 128;

/// The kernels `invert_leaf`, `mirror`, `border_scale`, `half_tiles`, `whole_from_half`,
/// `squared_diagonal`, `norm_one`.
pub fn source(leaf: usize) -> Source {
    let constants = vec![("LEAF", leaf as i64), ("TILE", TILE as i64)];
    Source { name: "spd_inverse", text: include_str!("spd_inverse.cu"), constants }
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

    /// Queues the inversion, in place. The lower triangle of the result is valid; above the diagonal only within the
    /// first and the second half.
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
            return unsafe { self.leaf.launch(stream, Grid { blocks: (1, 1), threads: 1024 }, &mut args) };
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
            blas.gemm((Op::None, Op::Transposed), (rest, rest, first), (-1.0, 1.0), t, b, c)?;
            self.part(stream, blas, work, (middle, rest), deeper)?;
            blas.gemm((Op::None, Op::None), (rest, first, rest), (-1.0, 0.0), c, t, b)?;
            blas.gemm((Op::Transposed, Op::None), (first, first, rest), (-1.0, 1.0), t, b, a)?;
            if n == p {
                return Ok(());
            }
            let mut args =
                Args::new().pointer(b.0).pointer(entry(at, middle).0).int(p).int(rest).int(first);
            let grid = Grid { blocks: (rest.div_ceil(32), first.div_ceil(32)), threads: 256 };
            self.mirror.launch(stream, grid, &mut args)
        }
    }
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
