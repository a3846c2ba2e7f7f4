#[cfg(feature = "cuda")]
use super::Elimination;
#[cfg(feature = "cuda")]
use super::cuda::{Layout, Tuning};
use super::{Border, Cross, System};

/// Bytes that a frame may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Budget {
    /// What the place of the frame has free when it is built.
    #[default]
    Available,
    Bytes(u64),
    Unlimited,
}

/// A frame or a linearisation would not fit; nothing was allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the solver needs {needed} bytes ({detail}) and {budget} are free; use fewer border unknowns or a structured border"
)]
pub struct MemoryError {
    pub needed: u64,
    pub budget: u64,
    /// What takes the bytes.
    pub detail: String,
}

impl Budget {
    /// Nothing, or the refusal with figure and budget. `available` is asked only for [`Self::Available`].
    pub fn check(
        self,
        needed: u64,
        detail: &str,
        available: impl FnOnce() -> Option<u64>,
    ) -> Result<(), MemoryError> {
        let budget = match self {
            Self::Available => available(),
            Self::Bytes(bytes) => Some(bytes),
            Self::Unlimited => None,
        };
        match budget {
            Some(budget) if needed > budget => Err(MemoryError { needed, budget, detail: detail.into() }),
            _ => Ok(()),
        }
    }
}

/// Bytes that a host frame allocates beside the system: row factors, coupling and factored border (or capacitance),
/// at the moment when it takes most.
pub fn host_frame_bytes(system: &System) -> u64 {
    let (m, p) = (system.unknowns() as u64, system.border() as u64);
    let size = |rows: u64, cols: u64| rows.saturating_mul(cols);
    let coupling = match (system.cross(), system.border_hessian()) {
        (cross @ Cross::Factored { basis, .. }, Border::Kronecker { basis: same, .. })
            if basis == same && uses_capacitance(system) =>
        {
            cross.len() as u64
        }
        // Held as factors, and multiplied out beside them.
        (cross @ Cross::Factored { .. }, _) => size(m, p).saturating_add(cross.len() as u64),
        (Cross::Dense(_), _) => size(m, p),
    };
    let core = if uses_capacitance(system) {
        size(m, m).saturating_add(system.border_hessian().len() as u64)
    } else {
        size(p, p)
    };
    let numbers = (system.row_hessian().len() as u64).saturating_add(coupling).saturating_add(core);
    numbers.saturating_mul(8)
}

/// Whether the rows' capacitance (Σ d_i wide) takes the place of the border's Schur complement (p wide): where the
/// border has a structure that inverts at once, and the rows are fewer.
pub fn uses_capacitance(system: &System) -> bool {
    let structured = !matches!(system.border_hessian(), Border::Dense(_));
    pays_border_first(structured, system.unknowns(), system.border())
}

/// The rule behind [`uses_capacitance`]: Σ d_i = m, p.
pub(super) fn pays_border_first(structured: bool, m: usize, p: usize) -> bool {
    structured && m <= p
}

/// Bytes that a frame on a card allocates there, slabs sent from the host included: see [`CudaFrame`] for what each
/// part holds.
///
/// [`CudaFrame`]: super::cuda::CudaFrame
#[cfg(feature = "cuda")]
pub fn card_frame_bytes(layout: &Layout, tuning: Tuning) -> u64 {
    use crate::ops::spd_inverse::{TILE, half_len};
    let (n, m, p) = (layout.rows().count() as u64, layout.rows().unknowns() as u64, layout.border() as u64);
    let slabs = layout.slab_lengths().iter().map(|len| *len as u64).sum::<u64>();
    let rows = layout.rows().numbers() as u64 + 2 * m;
    // Scaled Jacobians, where the cross block has them.
    let jacobian = layout.factors().map_or(0, |(_, r)| m * r as u64);
    let (order, coupling) = match (layout.elimination(), layout.keeps_factors()) {
        // Y, and as much for the parts of a sum over its rows.
        (Elimination::Rows, _) => (p, 2 * m * layout.pitch() as u64),
        (Elimination::Border, None) => (m, m * layout.pitch() as u64 + layout.root_len() as u64 + p),
        // Basis values, their Gram, one part a block.
        (Elimination::Border, Some((basis, r))) => {
            (m, n * (basis + r) as u64 + n * n + layout.root_len() as u64 + p)
        }
    };
    let q = order as usize;
    let tiles = order.div_ceil(TILE as u64);
    let core = order * order + 2 * half_len(q) as u64 + tuning.scratch_len(q) as u64;
    8 * (slabs + rows + jacobian + coupling + core + tiles * tiles * TILE as u64 + 8 * (m + p)) + WORKSPACES
}

/// Library workspaces, in bytes.
#[cfg(feature = "cuda")]
const WORKSPACES: u64 = 64 << 20;

/// Memory that the system could give now; `None` where it does not say.
pub fn host_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
