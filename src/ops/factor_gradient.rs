use rayon::prelude::*;

use super::rms_norm::ROWS;
use super::scale::sign;
use crate::device::arena::{Arena, Memory, Program, Table, View};

pub(super) static FACTOR_GRADIENT: Program =
    cuda_program!("factor_gradient", "factor_gradient", 256, [("ROWS", ROWS as u32)]);

/// One side of a packed layer, `Ŵ = diag(h)·sign(A)·diag(l)·Bᵀ` with m x r latents A.
#[derive(Clone, Copy, Debug)]
pub struct FactorGradient {
    pub latents: View,
    /// `(∂L/∂Ŵ)·B` when it comes; becomes the gradient of sign(A), which passes straight through to A (Bengio et al.
    /// 2013).
    pub product: View,
    /// h, m numbers.
    pub scales: usize,
    /// l, r numbers.
    pub latent_scales: usize,
    /// Where the m gradients of h go.
    pub out: usize,
}

/// `out_i = Σ_k sign(A_ik)·l_k·P_ik`, then `P ← diag(h)·P·diag(l)`.
///
/// # Panics
/// When shapes contradict each other.
pub fn factor_gradient(arena: &mut Arena, items: &[FactorGradient]) {
    for FactorGradient { latents, product, .. } in items {
        assert_eq!((latents.rows, latents.cols), (product.rows, product.cols), "a gradient has its shape");
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let mut table = Table::new(9);
    for FactorGradient { latents, product, scales, latent_scales, out } in items {
        let (a, p) = (latents, product);
        let words = [a.at, a.stride, p.at, p.stride, a.rows, a.cols, *scales, *latent_scales, *out];
        table.push(a.rows.div_ceil(ROWS), &words);
    }
    arena.queue(&FACTOR_GRADIENT, table);
}

fn on_host(memory: Memory, item: &FactorGradient) {
    (0..item.latents.rows).into_par_iter().for_each(|i| {
        // SAFETY: latents and scales are read only; row i of the product and number i of the result are written here
        // alone.
        unsafe {
            let (latents, product) = (memory.row(item.latents, i), memory.row_mut(item.product, i));
            let l = memory.row(View::vector(item.latent_scales, latents.len()), 0);
            let h = *memory.pointer(View::vector(item.scales + i, 1));
            let mut sum = 0.0;
            for ((a, p), l) in latents.iter().zip(product).zip(l) {
                let scaled = l * *p;
                sum += sign(*a) * scaled;
                *p = h * scaled;
            }
            *memory.pointer(View::vector(item.out + i, 1)) = sum;
        }
    });
}
