use super::core::{Columns, Core, Diagonal};
use super::coupling::{Coupling, Place, Products, Sides};
use super::rows::Rows;
use super::{DeviceSlabs, Layout, Queue};
use crate::arrow::frame::{FrameError, Method};
use crate::arrow::structured::Root;
use crate::arrow::{Border, Ridge};
use crate::device::DeviceError;
use crate::device::cuda::{Args, Buffer, Grid, Kernel};
use crate::ops::arrow_border::{self, root_tile};
use crate::ops::spd_inverse::Form;

/// A structured border, eliminated first, as the host's capacitance does it: with `C + ridge = E·Eᵀ` and
/// `Z = L⁻¹·B·E⁻ᵀ`, the rows are left with `K = I − Z·Zᵀ`, Σ d_i x Σ d_i, and nothing is p x p.
///
/// | buffer | numbers | holds |
/// |---|---|---|
/// | `z` | Σ d_i x pitch, or Σ d_i x r | Z, or L⁻¹J where B and C are made of the same basis |
/// | `values` | n x M | h·chol(G)⁻ᵀ, with factors |
/// | `root` | p, or M x M | E, mirrored |
pub(super) struct BorderFirst {
    form: Form,
    z: Buffer<f64>,
    /// L⁻¹J of factors that are multiplied out.
    jacobian: Option<Buffer<f64>>,
    values: Buffer<f64>,
    gram: Buffer<f64>,
    parts: Buffer<f64>,
    root: Buffer<f64>,
    /// E⁻¹β of one right-hand side.
    beta: Buffer<f64>,
    solve_root: Kernel,
    divide: Kernel,
    /// The determinant of C + ridge, and what its pivots tell of its condition.
    log_det: f64,
    condition: f64,
    factorisations: u64,
}

/// Buffers of several right-hand sides.
pub(super) struct Wide<'a> {
    /// b_t, then u and `u − Z·E⁻¹b_β`.
    pub columns: Columns<'a>,
    pub border: &'a Buffer<f64>,
    pub parts: &'a Buffer<f64>,
}

impl BorderFirst {
    pub fn new(queue: &Queue, layout: &Layout) -> Result<Self, DeviceError> {
        let cuda = queue.stream.cuda();
        let numbers = |len| Buffer::<f64>::new(cuda, len);
        let (n, m, p) = (layout.rows().count(), layout.unknowns(), layout.border());
        let kept = layout.keeps_factors();
        let lengths = kept.map(|(basis, r)| [m * r, n * basis, n * n, n * r]);
        let [z, values, gram, parts] = lengths.unwrap_or([m * layout.pitch(), 0, 0, 0]);
        let jacobian = layout.factors().filter(|_| kept.is_none()).map(|(_, r)| numbers(m * r));
        let basis = if let Form::Kronecker { basis } = layout.form() { basis } else { 1 };
        let kernel = |name, shared| Kernel::new(cuda, &arrow_border::source(), name, shared);
        Ok(Self {
            form: layout.form(),
            z: numbers(z)?,
            jacobian: jacobian.transpose()?,
            values: numbers(values)?,
            gram: numbers(gram)?,
            parts: numbers(parts)?,
            root: numbers(layout.root_len())?,
            beta: numbers(p)?,
            solve_root: kernel("root_solve", root_tile(basis).1)?,
            divide: kernel("root_divide", 0)?,
            log_det: f64::NAN,
            condition: f64::NAN,
            factorisations: 0,
        })
    }

    /// E on the host, where it is small, and sent up.
    pub fn make_root(
        &mut self,
        queue: &Queue,
        layout: &Layout,
        slabs: &DeviceSlabs,
        ridge: Ridge,
    ) -> Result<(), FrameError> {
        let numbers = slabs.structure.clone();
        let border = match self.form {
            Form::Kronecker { basis } => Border::Kronecker { basis, gram: numbers },
            _ => Border::Diagonal(numbers),
        };
        let root = Root::build(&border, layout.border(), ridge)?;
        self.log_det = root.log_det(root.part(layout.border()));
        self.condition = 1.0 / root.smallest_share();
        self.factorisations = root.factorisations();
        match &root {
            Root::Diagonal(e) => self.root.upload(&queue.stream, e)?,
            Root::Kronecker(factor, _) => self.root.upload(&queue.stream, &factor.mirrored())?,
        }
        Ok(())
    }

    /// Queues Z, K and what follows from it.
    pub fn queue(
        &self,
        queue: &Queue,
        (layout, rows, products, core): (&Layout, &Rows, &Products, &Core),
        slabs: &DeviceSlabs,
    ) -> Result<(), DeviceError> {
        let (n, m, p, pitch) = (layout.rows().count(), layout.unknowns(), layout.border(), layout.pitch());
        match (layout.keeps_factors(), layout.factors(), &self.jacobian) {
            (Some((basis, r)), ..) => {
                rows.queue_couple(queue, &slabs.cross, (r, r), &self.z)?;
                let (from, to) = (slabs.basis.address(), self.values.address());
                self.substitute(queue, (basis, basis), n, false, [from, to])?;
            }
            (None, Some((_, r)), Some(jacobian)) => {
                rows.queue_couple(queue, &slabs.cross, (r, r), jacobian)?;
                products.expand(queue, rows, layout, [&slabs.basis, jacobian], &self.z)?;
                self.substitute(queue, (p, pitch), m, false, [self.z.address(); 2])?;
            }
            _ => {
                rows.queue_couple(queue, &slabs.cross, (p, pitch), &self.z)?;
                self.substitute(queue, (p, pitch), m, false, [self.z.address(); 2])?;
            }
        }
        products.gram(queue, rows, self.coupling(layout), (p, &self.gram), &core.matrix)?;
        core.queue(queue, Diagonal { address: 0, form: Form::Identity, ridge: (0.0, 0.0) })
    }

    /// Queues a solve: right-hand sides (rows, border) to steps (rows, border). One is kept in the buffers of frame and
    /// core; several come with their own.
    ///
    /// ```text
    ///     u = L⁻¹b_t    g = E⁻¹b_β    K w = u − Z g    δt = L⁻ᵀw    δβ = E⁻ᵀ(g − Zᵀw)
    /// ```
    pub fn queue_solve(
        &self,
        queue: &Queue,
        (layout, rows, products, core): (&Layout, &Rows, &Products, &Core),
        [rhs, step]: [(u64, u64); 2],
        wide: Option<Wide<'_>>,
    ) -> Result<(), DeviceError> {
        let p = layout.border();
        let (v, border, parts, count) = match &wide {
            Some(wide) => (wide.columns.v, wide.border, wide.parts, wide.columns.count),
            None => (&core.v, &self.beta, &self.parts, 1),
        };
        let place = Place { queue, rows, border: p, parts };
        let z = self.coupling(layout);
        rows.queue_forward(queue, rhs.0, v.address(), count)?;
        self.substitute(queue, (p, p), count, false, [rhs.1, border.address()])?;
        products.multiply(&place, z, -1.0, Sides { rows: v.address(), border: border.address(), count })?;
        let w = match wide {
            Some(wide) => core.queue_many(queue, wide.columns)?,
            None if core.method == Method::TriangularSolves => {
                core.queue_triangular(queue, v.address(), 1)?;
                v
            }
            None => {
                core.queue_one(queue, v, core.tiles(), 0)?;
                &core.x
            }
        };
        let sides = Sides { rows: w.address(), border: border.address(), count };
        products.multiply_transposed(&place, z, -1.0, sides)?;
        self.substitute(queue, (p, p), count, true, [border.address(), step.1])?;
        rows.queue_backward(queue, w.address(), step.0, count)
    }

    /// `log det(C + ridge)`.
    pub fn log_det(&self) -> f64 {
        self.log_det
    }

    pub fn condition(&self) -> f64 {
        self.condition
    }

    /// Factorisations of the border.
    pub fn factorisations(&self) -> u64 {
        self.factorisations
    }

    fn coupling(&self, layout: &Layout) -> Coupling<'_> {
        match layout.keeps_factors() {
            Some((basis, part)) => {
                Coupling::Factored { values: &self.values, jacobian: &self.z, basis, part }
            }
            None => Coupling::Dense { slab: &self.z, pitch: layout.pitch() },
        }
    }

    /// `to = E⁻¹·from` (or `E⁻ᵀ·from`) for `count` vectors, `pitch` apart; those of `len = M` numbers are rows of h.
    fn substitute(
        &self,
        queue: &Queue,
        (len, pitch): (usize, usize),
        count: usize,
        backward: bool,
        [from, to]: [u64; 2],
    ) -> Result<(), DeviceError> {
        let args = Args::new().pointer(self.root.address());
        let Form::Kronecker { basis } = self.form else {
            let mut args = args.int(len).int(pitch).pointer(from).pointer(to);
            let grid = Grid { blocks: (count, len.div_ceil(256)), threads: 256 };
            // SAFETY: arguments in the kernel's order; so many vectors of this length.
            return unsafe { self.divide.launch(&queue.stream, grid, &mut args) };
        };
        let (part, width) = (len / basis, root_tile(basis).0);
        let mut args = args
            .int(basis)
            .int(part)
            .int(pitch)
            .int(width)
            .int(usize::from(backward))
            .pointer(from)
            .pointer(to);
        let grid = Grid { blocks: (part.div_ceil(width) * count, 1), threads: 256 };
        // SAFETY: as above.
        unsafe { self.solve_root.launch(&queue.stream, grid, &mut args) }
    }
}
