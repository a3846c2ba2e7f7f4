use super::Layout;
use crate::arrow::frame::FrameError;
use crate::arrow::{Border, Cross, System};
use crate::device::DeviceError;
use crate::device::cuda::{Buffer, Cuda, Stream};

/// Slabs of a system on the host. Copies run at full speed from pinned memory (see
/// [`Registered`](crate::device::cuda::Registered)).
///
/// | symbol | field | numbers |
/// |---|---|---|
/// | D_i | `row_hessian` | Σ d_i², one block after another |
/// | B, or J of a factored one | `cross` | Σ d_i x p, or Σ d_i x r |
/// | h | `basis` | n x M; none of a dense B |
/// | C, its diagonal, or G | `border` | p x p, p, or M x M |
#[derive(Clone, Copy)]
pub struct HostSlabs<'a> {
    pub row_hessian: &'a [f64],
    pub cross: &'a [f64],
    pub basis: &'a [f64],
    pub border: &'a [f64],
}

/// The same on the device.
pub struct DeviceSlabs {
    pub(super) row_hessian: Buffer<f64>,
    pub(super) cross: Buffer<f64>,
    pub(super) basis: Buffer<f64>,
    pub(super) border: Buffer<f64>,
    /// What a structured border is made of: its root is made on the host.
    pub(super) structure: Vec<f64>,
}

/// Where the slabs of a system are.
#[derive(Clone, Copy)]
pub enum Slabs<'a> {
    Host(HostSlabs<'a>),
    Device(&'a DeviceSlabs),
}

/// Names of the slabs as in a file.
const NAMES: [&str; 4] = ["row_hessian", "row_cross", "row_basis", "border_hessian"];

impl<'a> HostSlabs<'a> {
    /// Slabs that are all dense.
    pub fn dense(row_hessian: &'a [f64], cross: &'a [f64], border: &'a [f64]) -> Self {
        Self { row_hessian, cross, basis: &[], border }
    }

    pub fn of(system: &'a System) -> Self {
        let (cross, basis) = match system.cross() {
            Cross::Dense(b) => (&b[..], &[][..]),
            Cross::Factored { values, jacobian, .. } => (&jacobian[..], &values[..]),
        };
        let border = match system.border_hessian() {
            Border::Dense(c) | Border::Diagonal(c) => c,
            Border::Kronecker { gram, .. } => gram,
        };
        Self { row_hessian: system.row_hessian(), cross, basis, border }
    }

    fn all(self) -> [&'a [f64]; 4] {
        [self.row_hessian, self.cross, self.basis, self.border]
    }
}

impl DeviceSlabs {
    pub(super) fn new(cuda: &Cuda, layout: &Layout) -> Result<Self, DeviceError> {
        let [row_hessian, cross, basis, border] = layout.slab_lengths();
        Ok(Self {
            row_hessian: Buffer::new(cuda, row_hessian)?,
            cross: Buffer::new(cuda, cross)?,
            basis: Buffer::new(cuda, basis)?,
            border: Buffer::new(cuda, border)?,
            structure: Vec::new(),
        })
    }

    /// Sends slabs of this layout up and waits.
    ///
    /// # Errors
    /// Slabs of another layout; whatever the device says.
    pub fn from_host(stream: &Stream, layout: &Layout, slabs: HostSlabs<'_>) -> Result<Self, FrameError> {
        Slabs::Host(slabs).check(layout)?;
        let mut there = Self::new(stream.cuda(), layout)?;
        there.keep_structure(layout, slabs);
        for (buffer, values) in there.all().into_iter().zip(slabs.all()) {
            buffer.upload(stream, values)?;
        }
        Ok(there)
    }

    pub(super) fn keep_structure(&mut self, layout: &Layout, slabs: HostSlabs<'_>) {
        self.structure.clear();
        if layout.elimination() == crate::arrow::Elimination::Border {
            self.structure.extend_from_slice(slabs.border);
        }
    }

    fn all(&self) -> [&Buffer<f64>; 4] {
        [&self.row_hessian, &self.cross, &self.basis, &self.border]
    }
}

impl Slabs<'_> {
    pub(super) fn check(&self, layout: &Layout) -> Result<(), FrameError> {
        let lengths = match self {
            Slabs::Host(slabs) => slabs.all().map(<[f64]>::len),
            Slabs::Device(slabs) => slabs.all().map(Buffer::len),
        };
        for ((slab, got), expected) in NAMES.into_iter().zip(lengths).zip(layout.slab_lengths()) {
            if got != expected {
                return Err(FrameError::Length { slab, got, expected });
            }
        }
        Ok(())
    }
}
