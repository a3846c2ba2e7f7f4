use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use rayon::prelude::*;

use super::gemm_library::split_off;
use crate::device::arena::{Arena, Memory, Precision, Program, Table, View, float_word};

/// Rows and columns of C that one workgroup computes.
pub const TILE: usize = 64;

/// Columns of a symmetric product that the host computes at once; see [`syrk`](super::syrk).
const HOST_BLOCK: usize = 256;

pub(super) static GEMM: Program = program!("gemm", "gemm", 256, [("TILE", TILE as u32)]);
pub(super) static GEMM_TF32: Program = cuda_program!("gemm_tf32", "gemm_tf32", 256, [("TILE", TILE as u32)]);

pub(super) const A_TRANSPOSED: usize = 1;
pub(super) const B_TRANSPOSED: usize = 2;
pub(super) const LOWER: usize = 4;
pub(super) const SIGN: usize = 8;
pub(super) const HADAMARD: usize = 16;
/// Kernels do not look at these.
pub(super) const A_SIGNS: usize = 32;
pub(super) const B_SIGNS: usize = 64;

/// The word of an operand that is not there.
pub(super) const NONE: usize = u32::MAX as usize;

/// One product of a batch: `C ← f(α·op(A)·op(B) ∘ H + β·C + δ·I)`.
///
/// | symbol | set by | shape |
/// |---|---|---|
/// | op(A) | [`new`](Self::new); stored k x m with [`a_transposed`](Self::a_transposed) | m x k |
/// | op(B) | `new`; stored n x k with [`b_transposed`](Self::b_transposed) | k x n |
/// | C | `new`; overlaps neither A, B nor H | m x n |
/// | α, β, δ | [`alpha`](Self::alpha) (1), [`beta`](Self::beta) (0: C is not read), [`diagonal`](Self::diagonal) (0) | |
/// | H | [`hadamard`](Self::hadamard), elementwise; without β | m x n |
/// | f | identity, or the sign with [`sign`](Self::sign), sign(0) = +1 | |
#[derive(Clone, Copy, Debug)]
pub struct Gemm {
    pub(super) a: View,
    pub(super) b: View,
    pub(super) c: View,
    flags: usize,
    pub(super) alpha: f32,
    pub(super) beta: f32,
    pub(super) diagonal: f32,
    pub(super) hadamard: Option<View>,
    pub(super) skip: Option<usize>,
    pub(super) precision: Precision,
    pub(super) parts: View,
}

impl Gemm {
    pub fn new(a: View, b: View, c: View) -> Self {
        let (hadamard, skip, precision, parts) = (None, None, Precision::F32, View::EMPTY);
        Self { a, b, c, flags: 0, alpha: 1.0, beta: 0.0, diagonal: 0.0, hadamard, skip, precision, parts }
    }

    pub fn a_transposed(self) -> Self {
        Self { flags: self.flags | A_TRANSPOSED, ..self }
    }

    pub fn b_transposed(self) -> Self {
        Self { flags: self.flags | B_TRANSPOSED, ..self }
    }

    pub fn alpha(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    pub fn beta(self, beta: f32) -> Self {
        Self { beta, ..self }
    }

    /// Adds δ to the diagonal of C.
    pub fn diagonal(self, diagonal: f32) -> Self {
        Self { diagonal, ..self }
    }

    pub fn hadamard(self, h: View) -> Self {
        Self { hadamard: Some(h), flags: self.flags | HADAMARD, ..self }
    }

    /// Only the entries on and below the diagonal are wanted; those above are left in no defined state.
    pub fn lower(self) -> Self {
        Self { flags: self.flags | LOWER, ..self }
    }

    pub fn sign(self) -> Self {
        Self { flags: self.flags | SIGN, ..self }
    }

    /// Does nothing where this number of the arena is not 0 when the product's turn comes.
    pub fn skip(self, at: usize) -> Self {
        Self { skip: Some(at), ..self }
    }

    /// A product that fills a card alone is done by its tensor cores, each operand as the sum of two numbers of 11 bits
    /// (`A = A₁ + A₂`, `AB ≈ A₁B₁ + A₁B₂ + A₂B₁`): what is left out is 2⁻²² of a term, and sums are those of
    /// tensor cores ([`parts_tolerance`](super::gemm_library::parts_tolerance)). `parts` is where the four go, scratch that products one after another may share; one that needs more is
    /// not taken apart.
    pub fn in_parts(self, parts: View) -> Self {
        Self { parts, ..self }
    }

    /// A holds ±1 alone, which saves work where operands are taken in parts.
    pub fn a_signs(self) -> Self {
        Self { flags: self.flags | A_SIGNS, ..self }
    }

    /// B holds ±1 alone.
    pub fn b_signs(self) -> Self {
        Self { flags: self.flags | B_SIGNS, ..self }
    }

    /// How a card may round the operands of a product without extras; f32 everywhere else.
    pub fn precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    pub(super) fn has(&self, flag: usize) -> bool {
        self.flags & flag != 0
    }

    /// (m, n, k)
    pub(super) fn shape(&self) -> (usize, usize, usize) {
        (self.c.rows, self.c.cols, if self.has(A_TRANSPOSED) { self.a.rows } else { self.a.cols })
    }

    fn check(&self) {
        let (m, n, k) = self.shape();
        let a = if self.has(A_TRANSPOSED) { (k, m) } else { (m, k) };
        let b = if self.has(B_TRANSPOSED) { (n, k) } else { (k, n) };
        let found = ((self.a.rows, self.a.cols), (self.b.rows, self.b.cols));
        assert_eq!(found, (a, b), "operands of a {m}x{n} product over {k}");
        let h = self.hadamard.map_or((m, n), |h| (h.rows, h.cols));
        assert!(h == (m, n) && (self.hadamard.is_none() || self.beta == 0.0), "H is {h:?}, C is {m}x{n}");
    }

    pub(super) fn has_extras(&self) -> bool {
        self.has(LOWER | SIGN | HADAMARD) || self.diagonal != 0.0 || self.skip.is_some()
    }

    /// The words of the kernel.
    fn words(&self) -> [usize; 17] {
        let (m, n, k) = self.shape();
        let h = self.hadamard.unwrap_or(View::new(NONE, 0, 0));
        let [alpha, beta, diagonal] = [self.alpha, self.beta, self.diagonal].map(float_word);
        let (a, b, c) = (self.a, self.b, self.c);
        let skip = self.skip.unwrap_or(NONE);
        [
            a.at, a.stride, b.at, b.stride, c.at, c.stride, m, n, k, self.flags, alpha, beta, diagonal, h.at,
            h.stride, skip, 0,
        ]
    }
}

/// Computes all products; they must not depend on each other. Cost: 2mnk each, half of it for a lower one.
///
/// # Panics
/// When shapes contradict each other.
pub fn gemm(arena: &mut Arena, items: &[Gemm]) {
    items.iter().for_each(Gemm::check);
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, item));
    }
    let (mut exact, mut rounded) = (Table::new(17), Table::new(17));
    let on_tensor_cores = arena.has_tensor_cores();
    for item in split_off(arena, items) {
        let (m, n, _) = item.shape();
        let may_round = item.precision == Precision::Tf32 && !item.has_extras();
        let table = if may_round && on_tensor_cores { &mut rounded } else { &mut exact };
        table.push(m.div_ceil(TILE) * n.div_ceil(TILE), &item.words());
    }
    arena.queue(&GEMM, exact);
    arena.queue(&GEMM_TF32, rounded);
}

/// A view of the host's arena as a matrix.
///
/// # Safety
/// Nobody writes to it while the matrix is used.
pub(super) unsafe fn matrix<'a>(memory: Memory, view: View) -> MatRef<'a, f32> {
    let pointer = memory.pointer(view);
    // SAFETY: the view lies inside the arena; the caller vouches for the rest.
    unsafe { MatRef::from_raw_parts(pointer, view.rows, view.cols, view.stride as isize, 1) }
}

/// The same, for writing.
///
/// # Safety
/// Nobody else touches it while the matrix is used.
pub(super) unsafe fn matrix_mut<'a>(memory: Memory, view: View) -> MatMut<'a, f32> {
    let pointer = memory.pointer(view);
    // SAFETY: as above.
    unsafe { MatMut::from_raw_parts_mut(pointer, view.rows, view.cols, view.stride as isize, 1) }
}

fn on_host(memory: Memory, item: &Gemm) {
    // SAFETY: operands are read, C is written by this item alone, and C overlaps no operand.
    let (a, b, mut c) =
        unsafe { (matrix(memory, item.a), matrix(memory, item.b), matrix_mut(memory, item.c)) };
    // SAFETY: one number, written by an earlier op.
    if item.skip.is_some_and(|at| unsafe { *memory.pointer(View::vector(at, 1)) } != 0.0) {
        return;
    }
    let a = if item.has(A_TRANSPOSED) { a.transpose() } else { a };
    let b = if item.has(B_TRANSPOSED) { b.transpose() } else { b };
    let n = c.ncols();
    let block = if item.has(LOWER) { HOST_BLOCK } else { n.max(1) };
    for at in (0..n).step_by(block) {
        let width = block.min(n - at);
        let top = if item.has(LOWER) { at } else { 0 };
        let rows = c.nrows() - top;
        let mut part = c.as_mut().submatrix_mut(top, at, rows, width);
        let accum = match item.beta {
            0.0 => Accum::Replace,
            beta => {
                if beta != 1.0 {
                    part.as_mut().row_iter_mut().for_each(|row| row.iter_mut().for_each(|c| *c *= beta));
                }
                Accum::Add
            }
        };
        matmul(part, accum, a.subrows(top, rows), b.subcols(at, width), item.alpha, Par::rayon(0));
    }
    for i in 0..item.c.rows {
        // SAFETY: as above.
        let c = unsafe { memory.row_mut(item.c, i) };
        if let Some(h) = item.hadamard {
            // SAFETY: as above.
            c.iter_mut().zip(unsafe { memory.row(h, i) }).for_each(|(c, h)| *c *= h);
        }
        if let Some(c) = c.get_mut(i) {
            *c += item.diagonal;
        }
        if item.has(SIGN) {
            c.iter_mut().for_each(|c| *c = super::scale::sign(*c));
        }
    }
}
