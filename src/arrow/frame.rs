use std::sync::Arc;

use serde::Serialize;

use super::host::HostFrame;
use super::memory::{Budget, MemoryError};
use super::vector::first_non_finite;
use super::{Block, Path, Ridge, System, Telemetry, Vector};
use crate::device;

/// Where frames are built and kept.
#[derive(Clone, Debug, Default)]
pub enum Backend {
    #[default]
    Host,
    #[cfg(feature = "cuda")]
    Cuda(super::cuda::CudaPool),
}

/// How a frame is built.
#[derive(Clone, Debug, Default)]
pub struct Params {
    pub ridge: Ridge,
    pub backend: Backend,
    pub budget: Budget,
}

/// Everything of `(H + ridge)⁻¹` that does not depend on the right-hand side, built once.
///
/// ```text
///     L_i = chol(D_i + ρ_t I)    Y_i = L_i⁻¹B_i    S = C + ρ_β I − Σ Y_iᵀY_i
/// ```
///
/// A frame remembers its ridge; another ridge means another frame.
///
/// One variant a backend. What a backend's frame must provide:
/// `build` from a [`System`], a [`Ridge`] and a [`Budget`] (refusing before it allocates); `solve_many` (of which one
/// right-hand side is the special case, with its corrections done inside); `log_det`; `about`, the choices it made;
/// and a [`Telemetry`] for the build and for each solve.
pub struct Frame {
    kind: Kind,
    ridge: Ridge,
    /// Σ d_i and p.
    shape: (usize, usize),
    built: Telemetry,
}

enum Kind {
    Host(Box<HostFrame>),
    #[cfg(feature = "cuda")]
    Cuda(Box<super::cuda::Leased>),
}

/// What takes the place of an inverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Two triangular solves with the Cholesky factor.
    TriangularSolves,
    /// A product with the explicit inverse.
    ExplicitInverse,
}

/// Which unknowns are eliminated first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Elimination {
    /// The rows: the border's Schur complement, p x p, is factored.
    Rows,
    /// A structured border: the rows' capacitance, Σ d_i x Σ d_i, is factored, and nothing is p x p.
    Border,
}

/// How a frame holds the coupling between rows and border.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Coupling {
    /// Σ d_i x p.
    Dense,
    /// As the factors that the cross block was given in.
    Factored,
}

/// The choices that a frame made when it was built.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct About {
    pub path: Path,
    pub elimination: Elimination,
    pub coupling: Coupling,
    pub method: Method,
    /// Correction steps after each solve: `δ ← δ + frame(b − Hδ)`.
    pub corrections: u32,
    /// On the host an estimate of the 2-norm condition of H + ridge. On a card the 1-norm condition of what is factored
    /// last (the Schur complement of the border, or the capacitance of the rows), or what the pivots of a structured
    /// border tell of it where that is more. All scaled to a diagonal of ones.
    pub condition: f64,
    pub ridge: Ridge,
}

/// `δ = (H + ridge)⁻¹b` and how it came about.
#[derive(Clone, Debug)]
pub struct Solution {
    pub step: Vector,
    pub about: About,
    pub telemetry: Telemetry,
}

/// The steps of several right-hand sides, in their order.
#[derive(Clone, Debug)]
pub struct Solutions {
    pub steps: Vec<Vector>,
    pub about: About,
    pub telemetry: Telemetry,
}

/// Why a frame cannot be built or asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FrameError {
    #[error(
        "{block} is not positive definite: pivot {index} is {pivot:e}; add an absolute ridge of at least {suggested:e}, on top of the present one"
    )]
    NotPositiveDefinite {
        block: Block,
        /// Row of the pivot inside its block.
        index: usize,
        pivot: f64,
        /// An absolute ridge that, beside the present one, makes this pivot positive: a ridge ρ raises every pivot by
        /// at least ρ.
        suggested: f64,
    },
    #[error("the ridge ({ridge}) must be finite and not below zero")]
    Ridge { ridge: Ridge },
    #[error("`{slab}` has {got} numbers where the system has {expected} unknowns")]
    Length { slab: &'static str, got: usize, expected: usize },
    #[error("`{slab}` holds {value} at index {index}; every number must be finite")]
    NonFinite { slab: &'static str, index: usize, value: f64 },
    #[error(
        "the step of right-hand side {index} leaves the range of f64 (`{slab}` would be {value}); scale the system or the right-hand side"
    )]
    Overflow { index: usize, slab: &'static str, value: f64 },
    #[error("the frame holds no factors: factor a system first, and again after a factorisation that failed")]
    NotFactored,
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Device(#[from] crate::device::DeviceError),
}

impl Frame {
    /// Factors `H + ridge`.
    ///
    /// # Errors
    /// A block that is not positive definite (which, pivot, a ridge that would help); too little memory, before
    /// anything is allocated.
    pub fn build(system: &Arc<System>, params: &Params) -> Result<Self, FrameError> {
        let ridge = params.ridge;
        if !ridge.is_valid() {
            return Err(FrameError::Ridge { ridge });
        }
        let (kind, built) = match &params.backend {
            Backend::Host => {
                let frame = HostFrame::build(system, ridge, params.budget)?;
                let counts =
                    device::Telemetry { factorisations: frame.factorisations(), ..Default::default() };
                let built = Telemetry { frames: 1, solves: 0, counts };
                (Kind::Host(Box::new(frame)), built)
            }
            #[cfg(feature = "cuda")]
            Backend::Cuda(pool) => {
                let frame = pool.build(system, ridge, params.budget)?;
                let built = Telemetry { frames: 1, solves: 0, counts: frame.built() };
                (Kind::Cuda(Box::new(frame)), built)
            }
        };
        Ok(Self { kind, ridge, shape: (system.unknowns(), system.border()), built })
    }

    /// The step of one right-hand side.
    ///
    /// # Errors
    /// A right-hand side of another shape, or with NaN or infinity in it; a step that overflows.
    pub fn solve(&mut self, rhs: &Vector) -> Result<Solution, FrameError> {
        let mut all = self.solve_many(std::slice::from_ref(rhs))?;
        Ok(Solution { step: all.steps.remove(0), about: all.about, telemetry: all.telemetry })
    }

    /// The steps of several right-hand sides in one wide solve.
    ///
    /// # Errors
    /// As [`Self::solve`].
    pub fn solve_many(&mut self, rhs: &[Vector]) -> Result<Solutions, FrameError> {
        rhs.iter().try_for_each(|rhs| self.check(rhs))?;
        if rhs.is_empty() {
            return Ok(Solutions { steps: Vec::new(), about: self.about(), telemetry: Telemetry::default() });
        }
        let (steps, counts) = match &mut self.kind {
            Kind::Host(frame) => (frame.solve_many(rhs), device::Telemetry::default()),
            #[cfg(feature = "cuda")]
            Kind::Cuda(frame) => {
                let before = frame.telemetry();
                let steps = frame.solve_many(rhs)?;
                (steps, frame.telemetry() - before)
            }
        };
        check_steps(&steps)?;
        let telemetry = Telemetry { frames: 0, solves: rhs.len() as u64, counts };
        Ok(Solutions { steps, about: self.about(), telemetry })
    }

    /// `log det(H + ridge) = 2 Σ log diag L_i + 2 Σ log diag chol(S)`.
    pub fn log_det(&self) -> f64 {
        match &self.kind {
            Kind::Host(frame) => frame.log_det(),
            #[cfg(feature = "cuda")]
            Kind::Cuda(frame) => frame.log_det(),
        }
    }

    pub fn ridge(&self) -> Ridge {
        self.ridge
    }

    pub fn about(&self) -> About {
        match &self.kind {
            Kind::Host(frame) => frame.about(),
            #[cfg(feature = "cuda")]
            Kind::Cuda(frame) => frame.about(),
        }
    }

    /// What building cost.
    pub fn built(&self) -> Telemetry {
        self.built
    }

    fn check(&self, rhs: &Vector) -> Result<(), FrameError> {
        let (rows, border) = self.shape;
        for (slab, values, expected) in [("row_rhs", &rhs.row, rows), ("border_rhs", &rhs.border, border)] {
            let got = values.len();
            if got != expected {
                return Err(FrameError::Length { slab, got, expected });
            }
            if let Some(index) = first_non_finite(values) {
                return Err(FrameError::NonFinite { slab, index, value: values[index] });
            }
        }
        Ok(())
    }
}

/// No step with NaN or infinity in it goes out as a success.
fn check_steps(steps: &[Vector]) -> Result<(), FrameError> {
    for (index, step) in steps.iter().enumerate() {
        for (slab, values) in [("delta_row", &step.row), ("delta_border", &step.border)] {
            if let Some(at) = first_non_finite(values) {
                return Err(FrameError::Overflow { index, slab, value: values[at] });
            }
        }
    }
    Ok(())
}

/// Build and solve in one call, nothing kept: the re-upload path on a device, the host path on the host.
///
/// # Errors
/// As [`Frame::build`] and [`Frame::solve`].
pub fn build_and_solve(system: &Arc<System>, rhs: &Vector, params: &Params) -> Result<Solution, FrameError> {
    let mut frame = Frame::build(system, params)?;
    let mut solution = frame.solve(rhs)?;
    solution.telemetry += frame.built();
    if solution.about.path == Path::Resident {
        solution.about.path = Path::ReUpload;
    }
    Ok(solution)
}
