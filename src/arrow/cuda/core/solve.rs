use super::{Core, Queue};
use crate::arrow::frame::Method;
use crate::device::DeviceError;
use crate::device::cuda::{Args, Buffer, Grid, Op, Triangle};
use crate::ops::spd_inverse::TILE;

/// Several right-hand sides (q each), their results and room for corrections.
#[derive(Clone, Copy)]
pub(in crate::arrow::cuda) struct Columns<'a> {
    pub count: usize,
    pub v: &'a Buffer<f64>,
    pub x: &'a Buffer<f64>,
    pub rest: &'a Buffer<f64>,
}

impl Core {
    /// `x = S⁻¹v` with corrections, by the explicit inverse: tiles up to `kept` stay in the cache. The result also goes
    /// to `step`, unless that is 0.
    pub fn queue_one(
        &self,
        queue: &Queue,
        v: &Buffer<f64>,
        kept: usize,
        step: u64,
    ) -> Result<(), DeviceError> {
        let last = |done: bool| if done { step } else { 0 };
        self.multiply(queue, &self.half_inverse, v, kept)?;
        self.sum_tiles(queue, None, 1.0, &self.x, last(self.corrections == 0))?;
        for k in 0..self.corrections {
            self.multiply(queue, &self.half, &self.x, kept)?;
            self.sum_tiles(queue, Some(v), -1.0, &self.rest, 0)?;
            self.multiply(queue, &self.half_inverse, &self.rest, kept)?;
            self.sum_tiles(queue, Some(&self.x), 1.0, &self.x, last(k + 1 == self.corrections))?;
        }
        Ok(())
    }

    /// `x ← S⁻¹x` for `count` right-hand sides by triangular solves.
    pub fn queue_triangular(&self, queue: &Queue, x: u64, count: usize) -> Result<(), DeviceError> {
        let (factor, x) = ((self.matrix.address(), self.order), (x, self.order));
        // SAFETY: a factor of this order and so many right-hand sides.
        unsafe {
            queue.blas.trsm(Triangle::Lower, Op::None, (self.order, count), factor, x)?;
            queue.blas.trsm(Triangle::Lower, Op::Transposed, (self.order, count), factor, x)
        }
    }

    /// `X = S⁻¹V` with corrections for all right-hand sides at once: `X ← X + S⁻¹(V − S·X)`. Hands out what holds X.
    pub fn queue_many<'a>(
        &self,
        queue: &Queue,
        columns: Columns<'a>,
    ) -> Result<&'a Buffer<f64>, DeviceError> {
        let Columns { count, v, x, rest } = columns;
        if self.method == Method::TriangularSolves {
            self.queue_triangular(queue, v.address(), count)?;
            return Ok(v);
        }
        let q = self.order;
        let of = |buffer: &Buffer<f64>| (buffer.address(), q);
        let apply = |from: &Buffer<f64>, beta: f64| {
            let (ops, shape) = ((Op::None, Op::None), (q, count, q));
            // SAFETY: a matrix of this order and so many columns.
            unsafe { queue.blas.gemm(ops, shape, (1.0, beta), of(&self.matrix), of(from), of(x)) }
        };
        apply(v, 0.0)?;
        for _ in 0..self.corrections {
            rest.copy_from(&queue.stream, v)?;
            self.subtract_product(queue, x, rest, count)?;
            apply(rest, 1.0)?;
        }
        Ok(x)
    }

    /// `R ← R − S·X`, S a panel of columns at a time out of half storage: the scratch of the inversion holds each.
    fn subtract_product(
        &self,
        queue: &Queue,
        x: &Buffer<f64>,
        rest: &Buffer<f64>,
        count: usize,
    ) -> Result<(), DeviceError> {
        let (q, tiles) = (self.order, self.order.div_ceil(TILE));
        let wide = (self.scratch.len() / (q * TILE)).min(tiles);
        for first in (0..tiles).step_by(wide) {
            let (wide, at) = (wide.min(tiles - first), first * TILE);
            let mut args =
                Args::new().pointer(self.half.address()).pointer(self.scratch.address()).int(q).int(first);
            let grid = Grid { blocks: (tiles, wide), threads: 256 };
            let shape = (q, count, (wide * TILE).min(q - at));
            let (panel, from, to) = ((self.scratch.address(), q), (x.at(at), q), (rest.address(), q));
            // SAFETY: the panel fits into the scratch, which has room for a column of tiles at least.
            unsafe {
                self.kernels.panel_from_half.launch(&queue.stream, grid, &mut args)?;
                queue.blas.gemm((Op::None, Op::None), shape, (-1.0, 1.0), panel, from, to)?;
            }
        }
        Ok(())
    }

    fn multiply(
        &self,
        queue: &Queue,
        half: &Buffer<f64>,
        x: &Buffer<f64>,
        kept: usize,
    ) -> Result<(), DeviceError> {
        let mut args = Args::new()
            .pointer(half.address())
            .pointer(x.address())
            .int(self.order)
            .int(kept)
            .pointer(self.sums.address());
        let grid = Grid { blocks: (self.tiles(), 1), threads: 256 };
        // SAFETY: as above.
        unsafe { self.kernels.multiply_half.launch_chained(&queue.stream, grid, &mut args) }
    }

    /// `y = base + beta·(the product)`, which also goes to `step` unless that is 0.
    fn sum_tiles(
        &self,
        queue: &Queue,
        base: Option<&Buffer<f64>>,
        beta: f64,
        y: &Buffer<f64>,
        step: u64,
    ) -> Result<(), DeviceError> {
        let mut args = Args::new()
            .pointer(self.sums.address())
            .pointer(base.map_or(0, Buffer::address))
            .double(1.0)
            .double(beta)
            .int(self.order)
            .pointer(y.address())
            .pointer(step);
        let grid = Grid { blocks: (self.order.div_ceil(TILE), 1), threads: 256 };
        // SAFETY: as above.
        unsafe { self.kernels.sum_tiles.launch_chained(&queue.stream, grid, &mut args) }
    }
}
