use super::coupling::{Coupling, Place, Sides};
use super::{CudaFrame, Layout};
use crate::arrow::frame::FrameError;
use crate::device::DeviceError;
use crate::device::cuda::{Args, Buffer, Cuda, Grid, Kernel, Op};
use crate::ops::arrow_border;
use crate::ops::spd_inverse::Form;

/// `H·z` on the device, with the slabs that a frame was sent.
pub(super) struct Operator {
    row_product: Kernel,
    diagonal_product: Kernel,
    /// n x r, for products with factors.
    parts: Buffer<f64>,
}

impl Operator {
    pub fn new(cuda: &Cuda, layout: &Layout) -> Result<Self, DeviceError> {
        let source = arrow_border::source();
        Ok(Self {
            row_product: Kernel::new(cuda, &source, "row_product", 0)?,
            diagonal_product: Kernel::new(cuda, &source, "diagonal_product", 0)?,
            parts: Buffer::new(cuda, layout.factors().map_or(0, |(_, r)| layout.rows().count() * r))?,
        })
    }
}

impl CudaFrame {
    /// Queues `y = H·z`, both rows first.
    pub(super) fn queue_apply(
        &self,
        operator: &Operator,
        z: &Buffer<f64>,
        y: &Buffer<f64>,
    ) -> Result<(), FrameError> {
        let Some(slabs) = &self.sent else { return Err(FrameError::NotFactored) };
        let (layout, queue) = (&self.layout, &self.queue);
        let (m, p) = (layout.unknowns(), layout.border());
        let ((z_rows, z_border), (y_rows, y_border)) = (self.sides(z.address()), self.sides(y.address()));
        let mut rows = self
            .rows
            .arguments(Args::new().pointer(slabs.row_hessian.address()))
            .pointer(self.rows.block_of.address())
            .pointer(z_rows)
            .int(m)
            .pointer(y_rows);
        let grid = Grid { blocks: (m.div_ceil(128), 1), threads: 128 };
        let c = slabs.border.address();
        let mut diagonal = Args::new().pointer(c).pointer(z_border).int(p).pointer(y_border);
        let whole = Grid { blocks: (p.div_ceil(256), 1), threads: 256 };
        // SAFETY: arguments in the kernels' order; slabs and vectors of this layout.
        unsafe {
            operator.row_product.launch(&queue.stream, grid, &mut rows)?;
            match layout.form() {
                Form::Dense => queue.blas.gemv(Op::None, (p, p), (1.0, 0.0), (c, p), z_border, y_border)?,
                Form::Kronecker { basis } => {
                    let (r, ops) = (p / basis, (Op::None, Op::None));
                    let (beta, gram, to) = ((z_border, r), (c, basis), (y_border, r));
                    queue.blas.gemm(ops, (r, basis, basis), (1.0, 0.0), beta, gram, to)?;
                }
                Form::Diagonal | Form::Identity => {
                    operator.diagonal_product.launch(&queue.stream, whole, &mut diagonal)?;
                }
            }
        }
        let b = match layout.factors() {
            Some((basis, part)) => {
                Coupling::Factored { values: &slabs.basis, jacobian: &slabs.cross, basis, part }
            }
            None => Coupling::Dense { slab: &slabs.cross, pitch: p },
        };
        let place = Place { queue, rows: &self.rows, border: p, parts: &operator.parts };
        let to_rows = Sides { rows: y_rows, border: z_border, count: 1 };
        self.products.multiply(&place, b, 1.0, to_rows)?;
        let to_border = Sides { rows: z_rows, border: y_border, count: 1 };
        Ok(self.products.multiply_transposed(&place, b, 1.0, to_border)?)
    }
}
