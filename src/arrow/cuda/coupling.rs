use super::rows::Rows;
use super::{Layout, Queue};
use crate::device::DeviceError;
use crate::device::cuda::{Args, Buffer, Cuda, Grid, Kernel, Op};
use crate::ops::arrow_border;

/// Products with a coupling X between rows and border, (Σ d_i) x p, dense or as factors
/// `X[s, k·r + l] = h[i,k]·J[s,l]`.
pub(super) struct Products {
    expand: Kernel,
    block_scale: Kernel,
    rows_from_parts: Kernel,
    parts_from_rows: Kernel,
}

/// A coupling on the device.
#[derive(Clone, Copy)]
pub(super) enum Coupling<'a> {
    /// Rows `pitch` apart.
    Dense { slab: &'a Buffer<f64>, pitch: usize },
    /// h (n x M) and J (Σ d_i x r).
    Factored { values: &'a Buffer<f64>, jacobian: &'a Buffer<f64>, basis: usize, part: usize },
}

/// Vectors of rows and of the border, by their addresses, one behind the other.
#[derive(Clone, Copy)]
pub(super) struct Sides {
    pub rows: u64,
    pub border: u64,
    pub count: usize,
}

/// What a product needs beside its operands.
pub(super) struct Place<'a> {
    pub queue: &'a Queue,
    pub rows: &'a Rows,
    /// p.
    pub border: usize,
    /// n x r for each vector, where there are factors.
    pub parts: &'a Buffer<f64>,
}

impl Products {
    pub fn new(cuda: &Cuda) -> Result<Self, DeviceError> {
        let source = arrow_border::source();
        let kernel = |name| Kernel::new(cuda, &source, name, 0);
        Ok(Self {
            expand: kernel("expand_coupling")?,
            block_scale: kernel("block_scale")?,
            rows_from_parts: kernel("rows_from_parts")?,
            parts_from_rows: kernel("parts_from_rows")?,
        })
    }

    /// `t ← t + α·X·β`.
    pub fn multiply(
        &self,
        place: &Place<'_>,
        x: Coupling<'_>,
        alpha: f64,
        sides: Sides,
    ) -> Result<(), DeviceError> {
        let (queue, m, p) = (place.queue, place.rows.blocks().unknowns(), place.border);
        let Sides { rows, border, count } = sides;
        match x {
            Coupling::Dense { slab, pitch } => {
                dense(queue, Op::Transposed, (slab, pitch), (p, m), alpha, [border, rows], count)
            }
            Coupling::Factored { values, jacobian, basis, part } => {
                let n = place.rows.blocks().count();
                let operands = [(border, part), (values.address(), basis), (place.parts.address(), part)];
                let mut args = Args::new()
                    .pointer(jacobian.address())
                    .pointer(place.parts.address())
                    .pointer(place.rows.block_of.address())
                    .int(n)
                    .int(m)
                    .int(part)
                    .double(alpha)
                    .pointer(rows);
                let grid = Grid { blocks: (m.div_ceil(8), count), threads: 256 };
                // SAFETY: shapes as in the formulas; the buffers were made for them.
                unsafe {
                    let (ops, strides) = ((Op::None, Op::None), [p, 0, n * part]);
                    queue.blas.gemm_batch(ops, (part, n, basis), (1.0, 0.0), operands, strides, count)?;
                    self.rows_from_parts.launch(&queue.stream, grid, &mut args)
                }
            }
        }
    }

    /// `β ← β + α·Xᵀ·t`.
    pub fn multiply_transposed(
        &self,
        place: &Place<'_>,
        x: Coupling<'_>,
        alpha: f64,
        sides: Sides,
    ) -> Result<(), DeviceError> {
        let (queue, m, p) = (place.queue, place.rows.blocks().unknowns(), place.border);
        let Sides { rows, border, count } = sides;
        match x {
            Coupling::Dense { slab, pitch } => {
                dense(queue, Op::None, (slab, pitch), (p, m), alpha, [rows, border], count)
            }
            Coupling::Factored { values, jacobian, basis, part } => {
                let n = place.rows.blocks().count();
                let mut args = Args::new()
                    .pointer(jacobian.address())
                    .pointer(rows)
                    .pointer(place.rows.offsets())
                    .int(n)
                    .int(m)
                    .int(part)
                    .pointer(place.parts.address());
                let grid = Grid { blocks: ((n * part).div_ceil(256), count), threads: 256 };
                let operands = [(place.parts.address(), part), (values.address(), basis), (border, part)];
                // SAFETY: as above.
                unsafe {
                    self.parts_from_rows.launch(&queue.stream, grid, &mut args)?;
                    let (ops, strides) = ((Op::None, Op::Transposed), [n * part, 0, p]);
                    queue.blas.gemm_batch(ops, (part, basis, n), (alpha, 1.0), operands, strides, count)
                }
            }
        }
    }

    /// Factors multiplied out: `to`, Σ d_i x p, rows `pitch` apart.
    pub fn expand(
        &self,
        queue: &Queue,
        rows: &Rows,
        layout: &Layout,
        [values, jacobian]: [&Buffer<f64>; 2],
        to: &Buffer<f64>,
    ) -> Result<(), DeviceError> {
        let (Some((basis, part)), m, pitch) = (layout.factors(), layout.unknowns(), layout.pitch()) else {
            return Ok(());
        };
        let mut args = Args::new()
            .pointer(values.address())
            .pointer(jacobian.address())
            .pointer(rows.block_of.address())
            .int(basis)
            .int(part)
            .int(pitch)
            .int(m)
            .pointer(to.address());
        let grid = Grid { blocks: (pitch.div_ceil(128), m.min(65_535)), threads: 128 };
        // SAFETY: arguments in the kernel's order; buffers made for this layout.
        unsafe { self.expand.launch(&queue.stream, grid, &mut args) }
    }

    /// `K ← −X·Xᵀ`, m x m. From factors: `(X Xᵀ)_st = (h_i·h_j)·(J_s·J_t)`, which never makes a row as wide as the
    /// border; `gram` (n x n) holds the first factor.
    pub fn gram(
        &self,
        queue: &Queue,
        rows: &Rows,
        x: Coupling<'_>,
        (p, gram): (usize, &Buffer<f64>),
        k: &Buffer<f64>,
    ) -> Result<(), DeviceError> {
        let (n, m) = (rows.blocks().count(), rows.blocks().unknowns());
        let ops = (Op::Transposed, Op::None);
        let square = |order: usize, inner: usize, x: (u64, usize), alpha: f64, to: u64| {
            // SAFETY: shapes as in the formulas; the buffers were made for them.
            unsafe { queue.blas.gemm(ops, (order, order, inner), (alpha, 0.0), x, x, (to, order)) }
        };
        match x {
            Coupling::Dense { slab, pitch } => square(m, p, (slab.address(), pitch), -1.0, k.address()),
            Coupling::Factored { values, jacobian, basis, part } => {
                square(m, part, (jacobian.address(), part), -1.0, k.address())?;
                square(n, basis, (values.address(), basis), 1.0, gram.address())?;
                let mut args = Args::new()
                    .pointer(gram.address())
                    .pointer(rows.block_of.address())
                    .int(n)
                    .int(m)
                    .pointer(k.address());
                let grid = Grid { blocks: (m.div_ceil(128), m.min(65_535)), threads: 128 };
                // SAFETY: as above.
                unsafe { self.block_scale.launch(&queue.stream, grid, &mut args) }
            }
        }
    }
}

/// `y ← y + α·op(A)·x` for `count` vectors, A being `shape` and column-major.
fn dense(
    queue: &Queue,
    op: Op,
    (slab, pitch): (&Buffer<f64>, usize),
    shape: (usize, usize),
    alpha: f64,
    [x, y]: [u64; 2],
    count: usize,
) -> Result<(), DeviceError> {
    let a = (slab.address(), pitch);
    let (inner, outer) = if op == Op::None { (shape.1, shape.0) } else { shape };
    // SAFETY: the slab covers the shape, and so do so many vectors.
    unsafe {
        if count == 1 {
            return queue.blas.gemv(op, shape, (alpha, 1.0), a, x, y);
        }
        queue.blas.gemm((op, Op::None), (outer, count, inner), (alpha, 1.0), a, (x, inner), (y, outer))
    }
}
