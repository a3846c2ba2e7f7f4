use super::core::{Columns, Core, Diagonal};
use super::coupling::Products;
use super::layout::COLUMNS;
use super::rows::{Rows, on_border};
use super::{DeviceSlabs, Layout, Queue, Tuning};
use crate::arrow::Ridge;
use crate::arrow::frame::Method;
use crate::device::DeviceError;
use crate::device::cuda::{Args, Buffer, Event, Grid, Kernel, Op};
use crate::ops::arrow_solve;
use crate::ops::spd_inverse::TILE;

/// Border from which a row block is worth 512 threads instead of 256.
const WIDE_BORDER: usize = 4096;

/// The rows, eliminated first: `Y = L⁻¹B` (`y`, Σ d_i x pitch), and the border is left with its Schur complement
/// `S = C + ridge − YᵀY`.
pub(super) struct RowsFirst {
    pub y: Buffer<f64>,
    /// L⁻¹J of a factored cross block, which is multiplied out on the device.
    jacobian: Option<Buffer<f64>>,
    parts: Buffer<f64>,
    u: Buffer<f64>,
    /// Rows of one part of the first reduction, and their number.
    per_part: usize,
    count: usize,
    reduce_rows: Kernel,
    sum_parts: Kernel,
    back_substitute: Kernel,
}

/// The frame's parts that a solve reads.
pub(super) type Parts<'a> = (&'a Layout, &'a Rows, &'a Core, Tuning);

impl RowsFirst {
    pub fn new(queue: &Queue, layout: &Layout, tuning: Tuning) -> Result<Self, DeviceError> {
        let cuda = queue.stream.cuda();
        let numbers = |len| Buffer::<f64>::new(cuda, len);
        let (m, pitch) = (layout.unknowns(), layout.pitch());
        let (per_part, count) = layout.parts(tuning.reducers * cuda.multiprocessors() as usize);
        let source = arrow_solve::source(layout.rows().largest_dim());
        let kernel = |name| Kernel::new(cuda, &source, name, 0);
        Ok(Self {
            y: numbers(m * pitch)?,
            jacobian: layout.factors().map(|(_, r)| numbers(m * r)).transpose()?,
            parts: numbers(count * pitch)?,
            u: numbers(m)?,
            per_part,
            count,
            reduce_rows: kernel("reduce_rows")?,
            sum_parts: kernel("sum_parts")?,
            back_substitute: kernel("back_substitute")?,
        })
    }

    /// Queues Y, S and what follows from it. C may still be on its way: `follows` marks its end.
    pub fn queue(
        &self,
        queue: &Queue,
        (layout, rows, products, core): (&Layout, &Rows, &Products, &Core),
        (slabs, ridge): (&DeviceSlabs, Ridge),
        (panels, follows): (usize, Option<&Event>),
    ) -> Result<(), DeviceError> {
        let (m, p, pitch) = (layout.unknowns(), layout.border(), layout.pitch());
        match (layout.factors(), &self.jacobian) {
            (Some((_, r)), Some(jacobian)) => {
                rows.queue_couple(queue, &slabs.cross, (r, r), jacobian)?;
                products.expand(queue, rows, layout, [&slabs.basis, jacobian], &self.y)?;
            }
            _ => rows.queue_couple(queue, &slabs.cross, (p, pitch), &self.y)?,
        }
        let panel = p.div_ceil(panels).next_multiple_of(128);
        for at in (0..p).step_by(panel) {
            let y = (self.y.at(at), pitch);
            let (ops, shape) = ((Op::None, Op::Transposed), (p - at, panel.min(p - at), m));
            let corner = (core.matrix.at(at + at * p), p);
            // SAFETY: the panel lies inside Y and the matrix.
            unsafe { queue.blas.gemm(ops, shape, (-1.0, 0.0), y, y, corner)? };
        }
        if let Some(event) = follows {
            queue.stream.wait_for(event)?;
        }
        let c = Diagonal { address: slabs.border.address(), form: layout.form(), ridge: on_border(ridge) };
        core.queue(queue, c)
    }

    /// Queues the solve of one right-hand side at `rhs` into `step`, rows first: `v = b_β − ΣY_iᵀu_i`, `x = S⁻¹v`,
    /// `t_i = L_i⁻ᵀ(u_i − Y_i x)`.
    pub fn queue_solve(
        &self,
        queue: &Queue,
        parts: Parts<'_>,
        [rhs, step]: [u64; 2],
    ) -> Result<(), DeviceError> {
        let (layout, _, core, _) = parts;
        let border_step = step + (layout.unknowns() * size_of::<f64>()) as u64;
        let kept = self.kept(parts);
        if core.method == Method::TriangularSolves {
            self.queue_reduction(queue, parts, (rhs, kept.0), &core.x)?;
            core.queue_triangular(queue, core.x.address(), 1)?;
            // SAFETY: a border's numbers, at both ends.
            unsafe { core.x.queue_copy_to(&queue.stream, border_step, layout.border())? };
            return self.queue_back_substitution(queue, parts, (step, kept.0), false);
        }
        self.queue_reduction(queue, parts, (rhs, kept.0), &core.v)?;
        core.queue_one(queue, &core.v, kept.1, border_step)?;
        self.queue_back_substitution(queue, parts, (step, kept.0), true)
    }

    /// u, and `v = b_β − ΣY_iᵀu_i`.
    fn queue_reduction(
        &self,
        queue: &Queue,
        (layout, rows, ..): Parts<'_>,
        (rhs, kept): (u64, usize),
        v: &Buffer<f64>,
    ) -> Result<(), DeviceError> {
        let (n, p, pitch) = (layout.rows().count(), layout.border(), layout.pitch());
        let mut reduce = rows
            .arguments(Args::new().pointer(self.y.address()).pointer(rows.l.address()))
            .pointer(rhs)
            .int(n)
            .int(pitch)
            .int(self.per_part)
            .int(kept)
            .pointer(self.u.address())
            .pointer(self.parts.address());
        let mut sum = Args::new()
            .pointer(self.parts.address())
            .pointer(rhs + (layout.unknowns() * size_of::<f64>()) as u64)
            .int(self.count)
            .int(p)
            .int(pitch)
            .pointer(v.address());
        // SAFETY: arguments in the kernels' order; buffers made for this layout.
        unsafe {
            let grid = Grid { blocks: (pitch.div_ceil(COLUMNS), self.count), threads: 256 };
            self.reduce_rows.launch(&queue.stream, grid, &mut reduce)?;
            let grid = Grid { blocks: (p.div_ceil(32), 1), threads: 256 };
            self.sum_parts.launch_chained(&queue.stream, grid, &mut sum)
        }
    }

    fn queue_back_substitution(
        &self,
        queue: &Queue,
        (layout, rows, core, _): Parts<'_>,
        (step, kept): (u64, usize),
        chained: bool,
    ) -> Result<(), DeviceError> {
        let (n, p) = (layout.rows().count(), layout.border());
        let mut args = rows
            .arguments(Args::new().pointer(self.y.address()).pointer(rows.l.address()))
            .pointer(self.u.address())
            .pointer(core.x.address())
            .int(n)
            .int(p)
            .int(layout.pitch())
            .int(kept)
            .pointer(step);
        let threads = if p >= WIDE_BORDER { 512 } else { 256 };
        let (kernel, grid) = (&self.back_substitute, Grid { blocks: (n, 1), threads });
        // SAFETY: as above.
        unsafe {
            if chained {
                kernel.launch_chained(&queue.stream, grid, &mut args)
            } else {
                kernel.launch(&queue.stream, grid, &mut args)
            }
        }
    }

    /// Rows of Y and tiles of S⁻¹ to keep in the cache: the smaller of the two first.
    fn kept(&self, (layout, _, core, tuning): Parts<'_>) -> (usize, usize) {
        let budget = tuning.kept_bytes;
        let (row, rows) = (layout.pitch() * size_of::<f64>(), layout.unknowns());
        let (tile, tiles) = (TILE * TILE * size_of::<f64>(), core.tiles());
        if row * rows <= tile * tiles {
            let kept = rows.min(budget / row);
            (kept, tiles.min((budget - kept * row) / tile))
        } else {
            let kept = tiles.min(budget / tile);
            (rows.min((budget - kept * tile) / row), kept)
        }
    }

    /// Queues `V ← V − YᵀL⁻¹B` and X = S⁻¹V for several right-hand sides: rows in `rows_at`, in place. Hands out X.
    pub fn queue_border<'a>(
        &self,
        queue: &Queue,
        (layout, rows, core, _): Parts<'_>,
        (rows_at, arrived): (&Buffer<f64>, &Event),
        columns: Columns<'a>,
    ) -> Result<&'a Buffer<f64>, DeviceError> {
        let (m, p, count) = (layout.unknowns(), layout.border(), columns.count);
        rows.queue_forward(queue, rows_at.address(), rows_at.address(), count)?;
        queue.stream.wait_for(arrived)?;
        let (y, t, v) =
            ((self.y.address(), layout.pitch()), (rows_at.address(), m), (columns.v.address(), p));
        // SAFETY: shapes as in the formulas; the buffers were made for them.
        unsafe { queue.blas.gemm((Op::None, Op::None), (p, count, m), (-1.0, 1.0), y, t, v)? };
        core.queue_many(queue, columns)
    }

    /// Queues `T = L⁻ᵀ(U − Y·X)`, in place of U.
    pub fn queue_rows(
        &self,
        queue: &Queue,
        (layout, rows, ..): Parts<'_>,
        rows_at: &Buffer<f64>,
        (x, count): (&Buffer<f64>, usize),
    ) -> Result<(), DeviceError> {
        let (m, p) = (layout.unknowns(), layout.border());
        let (y, t, x) = ((self.y.address(), layout.pitch()), (rows_at.address(), m), (x.address(), p));
        // SAFETY: as above.
        unsafe { queue.blas.gemm((Op::Transposed, Op::None), (m, count, p), (-1.0, 1.0), y, x, t)? };
        rows.queue_backward(queue, rows_at.address(), rows_at.address(), count)
    }
}
