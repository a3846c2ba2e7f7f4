//! One linear layer of ±1 factors with scales: `Ŵ = Σ_p diag(h_p) U_p diag(l_p) V_pᵀ diag(g_p)`.

pub mod apply;
pub mod payload;

pub use payload::{Payload, PayloadError};
