use faer::{Mat, Side};
use rayon::prelude::*;

use super::gather::{Gather, Order, gather};
use super::gemm::{Gemm, gemm, matrix};
use crate::device::DeviceError;
use crate::device::arena::{Arena, Memory, View};

/// Leading eigenvectors of one symmetric positive semidefinite matrix of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Principal {
    /// C, p x p, both triangles
    pub gram: View,
    /// Gets the r leading eigenvectors as rows, r x p, that of the largest eigenvalue first
    pub axes: View,
    /// Scratch on a card, p x p and p x r
    pub scratch: [View; 2],
}

/// The r largest eigenvalues of each, descending, in f64; `None` where they did not converge.
///
/// On the host by faer, on a card by cuSOLVER, both in f64. Eigenvectors are known up to sign, and where eigenvalues are
/// equal up to a rotation.
pub fn principal(arena: &mut Arena, items: &[Principal]) -> Result<Vec<Option<Vec<f64>>>, DeviceError> {
    if let Some(memory) = arena.memory() {
        return Ok(items.par_iter().map(|item| on_host(memory, item)).collect());
    }
    on_card(arena, items)
}

fn on_host(memory: Memory, item: &Principal) -> Option<Vec<f64>> {
    // SAFETY: the matrix is read; the axes are written by this item alone.
    let gram = unsafe { matrix(memory, item.gram) };
    let wide = Mat::from_fn(gram.nrows(), gram.ncols(), |i, j| f64::from(gram[(i, j)]));
    let eigen = wide.self_adjoint_eigen(Side::Lower).ok()?;
    let (p, values) = (gram.nrows(), eigen.S().column_vector());
    for k in 0..item.axes.rows {
        // SAFETY: as above.
        let row = unsafe { memory.row_mut(item.axes, k) };
        row.iter_mut().enumerate().for_each(|(j, x)| *x = eigen.U()[(j, p - 1 - k)] as f32);
    }
    let values: Vec<f64> = (0..item.axes.rows).map(|k| values[p - 1 - k].max(0.0)).collect();
    values.iter().all(|value| value.is_finite()).then_some(values)
}

#[cfg(feature = "cuda")]
fn on_card(arena: &mut Arena, items: &[Principal]) -> Result<Vec<Option<Vec<f64>>>, DeviceError> {
    use super::spectrum::{SpectrumItem, spectra};
    let identity: Vec<Gemm> =
        (items.iter()).map(|i| Gemm::new(i.gram, i.gram, i.scratch[0]).alpha(0.0).diagonal(1.0)).collect();
    gemm(arena, &identity);
    let spectrum: Vec<SpectrumItem> = (items.iter())
        .map(|i| SpectrumItem { weight: i.scratch[0], damped: i.gram, left: i.scratch[1] })
        .collect();
    let Some(card) = arena.card() else { return Err(DeviceError::NoCard) };
    let found = spectra(card?, &spectrum)?;
    let turned: Vec<Gather> = (items.iter())
        .map(|i| Gather { a: i.scratch[1], out: i.axes, rows: None, cols: None, order: Order::Transposed })
        .collect();
    gather(arena, &turned);
    Ok(found.into_iter().map(|sigma| sigma.map(|s| s.iter().map(|s| s * s).collect())).collect())
}

#[cfg(not(feature = "cuda"))]
fn on_card(_: &mut Arena, _: &[Principal]) -> Result<Vec<Option<Vec<f64>>>, DeviceError> {
    Err(DeviceError::NoCard)
}
