//! Leading left singular vectors of `W·F`, `H̃ = F·Fᵀ`, on a card: in f64, since what f32 would mix are the directions
//! that the rank cuts between. The host's definition is `compress::latents::Spectrum`.

use crate::device::DeviceError;
use crate::device::arena::{Card, View};
use crate::device::cuda::{
    Args, Buffer, EigenScratch, Grid, Kernel, Matrix, Op, Precision, Source, Symmetric,
};

/// Eigenvalues below this share of the largest are rounding, and their directions take no part. For m > n they are
/// singular values squared, good to some hundred ε of the largest.
const RANK_TOLERANCE: f64 = 1e-13;

/// One weight in an arena.
#[derive(Clone, Copy, Debug)]
pub struct SpectrumItem {
    /// W, m x n
    pub weight: View,
    /// H̃, n x n; items that share it stand side by side
    pub damped: View,
    /// Gets the leading left singular vectors, m x r
    pub left: View,
}

/// The kernels `widen`, `keep_lower` and `narrow`.
pub fn source() -> Source {
    Source { name: "spectrum", prelude: "", text: include_str!("spectrum.cu"), constants: Vec::new() }
}

/// The largest r singular values of each item, descending; `None` where the eigenvalues did not converge or H̃ has no
/// Cholesky factor.
///
/// For m ≤ n from `W H̃ Wᵀ` (m x m), else from `(W F)ᵀ(W F)` (n x n). Matrices of one order go through one call of a
/// batched solver. Beside the arena it needs 8 bytes for each of 2n² + 2mn of one item, and of the Grams of all.
pub fn spectra(card: &Card<'_>, items: &[SpectrumItem]) -> Result<Vec<Option<Vec<f64>>>, DeviceError> {
    let mut results = vec![None; items.len()];
    let order = |item: &SpectrumItem| item.weight.rows.min(item.weight.cols);
    let mut orders: Vec<usize> = items.iter().map(order).collect();
    orders.sort_unstable();
    orders.dedup();
    for n in orders {
        let members: Vec<usize> = (0..items.len()).filter(|k| order(&items[*k]) == n).collect();
        let found = Group::new(card, n, members.len())?
            .solve(&members.iter().map(|k| items[*k]).collect::<Vec<_>>())?;
        members.into_iter().zip(found).for_each(|(k, found)| results[k] = found);
    }
    Ok(results)
}

/// Weights whose Grams have one order.
struct Group<'a> {
    card: &'a Card<'a>,
    order: usize,
    grams: Buffer<f64>,
    values: Buffer<f64>,
    kernels: [Kernel; 3],
}

/// What an item leaves for the vectors of its weight, beside its Gram.
struct Prepared {
    /// (W F)ᵀ, n x m column-major, for m > n
    tall: Option<Buffer<f64>>,
    factored: bool,
}

impl<'a> Group<'a> {
    fn new(card: &'a Card<'a>, order: usize, count: usize) -> Result<Self, DeviceError> {
        let cuda = card.stream.cuda();
        let kernel = |name| Kernel::new(cuda, &source(), name, 0);
        Ok(Self {
            card,
            order,
            grams: Buffer::new(cuda, count * order * order)?,
            values: Buffer::new(cuda, count * order)?,
            kernels: [kernel("widen")?, kernel("keep_lower")?, kernel("narrow")?],
        })
    }

    fn solve(self, items: &[SpectrumItem]) -> Result<Vec<Option<Vec<f64>>>, DeviceError> {
        let (stream, n) = (self.card.stream, self.order);
        let mut prepared = Vec::new();
        let mut metric: Option<(View, Buffer<f64>)> = None;
        for (k, item) in items.iter().enumerate() {
            if metric.as_ref().is_none_or(|(view, _)| *view != item.damped) {
                metric = Some((item.damped, self.widened(item.damped)?));
            }
            let damped = &metric.as_ref().expect("set above").1;
            prepared.push(self.gram(item, damped, self.grams.at(k * n * n))?);
        }
        let problem = Symmetric {
            precision: Precision::F64,
            order: n,
            count: items.len(),
            matrices: self.grams.address(),
            values: self.values.address(),
        };
        let mut scratch: EigenScratch = self.card.solver.eigen_scratch(problem)?;
        // SAFETY: both buffers hold what the problem says.
        unsafe { self.card.solver.eigen(problem, &mut scratch)? };
        let info = scratch.info.to_vec(stream, items.len())?;
        let values = self.values.to_vec(stream, items.len() * n)?;
        let mut results = Vec::new();
        for (k, (item, prepared)) in items.iter().zip(&prepared).enumerate() {
            let converged = prepared.factored && info[k] == 0;
            let values = &values[k * n..][..n];
            let sigma = converged.then(|| self.vectors(item, prepared, k, values)).transpose()?;
            results.push(sigma);
        }
        Ok(results)
    }

    /// A view of the arena in f64, without gaps; read column by column it is its transposed.
    fn widened(&self, view: View) -> Result<Buffer<f64>, DeviceError> {
        let out = Buffer::new(self.card.stream.cuda(), view.len())?;
        let mut args = (Args::new().pointer(self.card.numbers.at(view.at)).int(view.stride))
            .pointer(out.address())
            .int(view.rows)
            .int(view.cols);
        // SAFETY: the view lies inside the arena, the buffer has its length.
        unsafe { self.kernels[0].launch(self.card.stream, entries(view.len()), &mut args)? };
        Ok(out)
    }

    /// Writes the Gram of an item, column-major.
    fn gram(&self, item: &SpectrumItem, damped: &Buffer<f64>, gram: u64) -> Result<Prepared, DeviceError> {
        let (m, n) = (item.weight.rows, item.weight.cols);
        let weight = self.widened(item.weight)?;
        let (w, product) = ((weight.address(), n), Buffer::new(self.card.stream.cuda(), n * m)?);
        let p: Matrix = (product.address(), n);
        let blas = &self.card.blas;
        if m <= n {
            // SAFETY: n x m, n x n and m x m matrices without gaps.
            unsafe {
                blas.gemm((Op::None, Op::None), (n, m, n), (1.0, 0.0), (damped.address(), n), w, p)?;
                blas.gemm((Op::Transposed, Op::None), (m, m, n), (1.0, 0.0), w, p, (gram, m))?;
            }
            self.card.stream.wait()?;
            return Ok(Prepared { tall: None, factored: true });
        }
        let (factor, factored) = self.factor(damped, n)?;
        // SAFETY: as above.
        unsafe {
            blas.gemm((Op::Transposed, Op::None), (n, m, n), (1.0, 0.0), (factor.address(), n), w, p)?;
            blas.gemm((Op::None, Op::Transposed), (n, n, m), (1.0, 0.0), p, p, (gram, n))?;
        }
        self.card.stream.wait()?;
        Ok(Prepared { tall: Some(product), factored })
    }

    /// The Cholesky factor of H̃, and whether it has one.
    fn factor(&self, damped: &Buffer<f64>, n: usize) -> Result<(Buffer<f64>, bool), DeviceError> {
        let (stream, solver) = (self.card.stream, &self.card.solver);
        let factor = Buffer::new(stream.cuda(), n * n)?;
        factor.copy_from(stream, damped)?;
        let scratch = Buffer::new(stream.cuda(), solver.potrf_scratch(n)?)?;
        let info = Buffer::new(stream.cuda(), 1)?;
        let mut args = Args::new().pointer(factor.address()).int(n);
        // SAFETY: n x n numbers, scratch of the length that was asked for.
        unsafe {
            solver.potrf(n, (factor.address(), n), &scratch, &info)?;
            self.kernels[1].launch(stream, entries(n * n), &mut args)?;
        }
        Ok((factor, info.to_vec(stream, 1)?[0] == 0))
    }

    /// Writes the leading vectors of an item and returns its singular values.
    fn vectors(
        &self,
        item: &SpectrumItem,
        prepared: &Prepared,
        k: usize,
        values: &[f64],
    ) -> Result<Vec<f64>, DeviceError> {
        let (stream, n) = (self.card.stream, self.order);
        let (m, r) = (item.weight.rows, item.left.cols);
        let largest = values[n - 1].max(0.0);
        let sigma: Vec<f64> = (0..r).map(|k| values[n - 1 - k].max(0.0).sqrt()).collect();
        let own = (self.grams.at(k * n * n), n);
        let (vectors, factors) = match &prepared.tall {
            None => (None, vec![1.0; r]),
            Some(wf) => {
                let left = Buffer::<f64>::new(stream.cuda(), m * n)?;
                let (a, c) = ((wf.address(), n), (left.address(), m));
                // SAFETY: n x m, n x n and m x n matrices without gaps.
                unsafe {
                    self.card.blas.gemm((Op::Transposed, Op::None), (m, n, n), (1.0, 0.0), a, own, c)?;
                }
                let inverse = |s: &f64| if s * s > RANK_TOLERANCE * largest { 1.0 / s } else { 0.0 };
                (Some(left), sigma.iter().map(inverse).collect())
            }
        };
        let factors = Buffer::from_slice(stream, &factors)?;
        let address = vectors.as_ref().map_or(own.0, Buffer::address);
        let mut args = (Args::new().pointer(address).pointer(factors.address()))
            .pointer(self.card.numbers.at(item.left.at))
            .int(item.left.stride)
            .int(m)
            .int(n)
            .int(r);
        // SAFETY: m x n vectors, r factors, and an m x r view inside the arena.
        unsafe { self.kernels[2].launch(stream, entries(m * r), &mut args)? };
        stream.wait()?;
        Ok(sigma)
    }
}

/// One thread an entry.
fn entries(count: usize) -> Grid {
    Grid { blocks: (count.div_ceil(256), 1), threads: 256 }
}
