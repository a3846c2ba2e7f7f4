//! Leading left singular vectors of `W·F`, `H̃ = F·Fᵀ`, on a card: in f64, since what f32 would mix are the directions
//! that the rank cuts between. The host's definition is `compress::latents::Spectrum`.

use crate::device::DeviceError;
use crate::device::arena::{Card, Layout, View};
use crate::device::cuda::{Args, Blas, Buffer, Eigenproblem, Grid, Kernel, Op, Solver, Source, Stream};

/// Eigenvalues below this share of the largest are rounding, and their directions take no part. For m > n they are
/// singular values squared, good to some hundred ε of the largest.
const RANK_TOLERANCE: f64 = 1e-13;

/// One weight in an arena.
#[derive(Clone, Copy, Debug)]
pub struct SpectrumItem {
    /// W, m x n
    pub weight: View,
    /// H̃, n x n
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
/// For m ≤ n from `W H̃ Wᵀ` (m x m), else from `(W F)ᵀ(W F)` (n x n); several eigenproblems at once. Beside the arena it
/// needs 8 bytes for each number of all Grams, of the W F of all tall weights, and of what one item works in.
pub fn spectra(card: Card<'_>, items: &[SpectrumItem]) -> Result<Vec<Option<Vec<f64>>>, DeviceError> {
    let mut layout = Layout::default();
    let places: Vec<Places> = items.iter().map(|item| Places::place(&mut layout, item)).collect();
    let shared = layout.mark();
    let Card { stream, numbers, blas, solver, eigen, spare } = card;
    let mut scratch = Vec::new();
    for item in items {
        layout.back_to(shared);
        scratch.push(Scratch::place(&mut layout, item, solver)?);
    }
    if spare.as_ref().is_none_or(|spare| spare.len() < layout.most()) {
        // The old one first: both may not fit.
        *spare = None;
        *spare = Some(Buffer::new(stream.cuda(), layout.most())?);
    }
    let spare = spare.as_ref().expect("made above");
    let kernel = |name| Kernel::new(stream.cuda(), &source(), name, 0);
    let kernels = [kernel("widen")?, kernel("keep_lower")?, kernel("narrow")?];
    let work = Work { stream, numbers, blas, solver, spare, kernels };
    for ((item, places), scratch) in items.iter().zip(&places).zip(&scratch) {
        work.gram(item, places, scratch)?;
    }
    stream.wait()?;
    let problems: Vec<_> = (places.iter())
        .map(|p| Eigenproblem { order: p.order, matrix: spare.at(p.gram), values: spare.at(p.values) })
        .collect();
    // SAFETY: the layout gives each its own numbers, and the stream is idle.
    let converged = unsafe { eigen.solve(&problems)? };
    let mut results = Vec::new();
    for (k, item) in items.iter().enumerate() {
        let good = converged[k] && work.factored(item, &places[k])?;
        results.push(good.then(|| work.vectors(item, &places[k], &scratch[k])).transpose()?);
    }
    Ok(results)
}

/// What stays of an item until its vectors are found: offsets into the spare memory.
struct Places {
    order: usize,
    gram: usize,
    values: usize,
    /// (W F)ᵀ, n x m column-major, for m > n
    product: usize,
    /// The inverse singular values, r
    factors: usize,
    /// Whether H̃ has a factor, an `int`
    info: usize,
}

impl Places {
    fn place(layout: &mut Layout, item: &SpectrumItem) -> Self {
        let (m, n) = (item.weight.rows, item.weight.cols);
        let order = m.min(n);
        Self {
            order,
            gram: layout.vector(order * order),
            values: layout.vector(order),
            product: layout.vector(if m > n { m * n } else { 0 }),
            factors: layout.vector(item.left.cols),
            info: layout.vector(1),
        }
    }
}

/// What one item works in, one after another.
struct Scratch {
    /// W in f64; later the m x n vectors of a tall one
    weight: usize,
    /// H̃, or its Cholesky factor
    damped: usize,
    /// H̃Wᵀ for m ≤ n
    product: usize,
    /// What the factorisation works in, for m > n
    room: usize,
    room_len: usize,
}

impl Scratch {
    fn place(layout: &mut Layout, item: &SpectrumItem, solver: &Solver) -> Result<Self, DeviceError> {
        let (m, n) = (item.weight.rows, item.weight.cols);
        let room_len = if m > n { solver.potrf_scratch(n)? } else { 0 };
        Ok(Self {
            weight: layout.vector(m * n),
            damped: layout.vector(n * n),
            product: layout.vector(if m > n { 0 } else { m * n }),
            room: layout.vector(room_len),
            room_len,
        })
    }
}

struct Work<'a> {
    stream: &'a Stream,
    numbers: &'a Buffer<f32>,
    blas: &'a Blas,
    solver: &'a Solver,
    spare: &'a Buffer<f64>,
    kernels: [Kernel; 3],
}

impl Work<'_> {
    fn at(&self, place: usize) -> u64 {
        self.spare.at(place)
    }

    /// A view of the arena in f64, without gaps; read column by column it is its transposed.
    fn widen(&self, view: View, place: usize) -> Result<(), DeviceError> {
        let mut args = (Args::new().pointer(self.numbers.at(view.at)).int(view.stride))
            .pointer(self.at(place))
            .int(view.rows)
            .int(view.cols);
        // SAFETY: the view lies inside the arena, the place has its length.
        unsafe { self.kernels[0].launch(self.stream, entries(view.len()), &mut args) }
    }

    /// Writes the Gram of an item, column-major.
    fn gram(&self, item: &SpectrumItem, places: &Places, scratch: &Scratch) -> Result<(), DeviceError> {
        let (m, n) = (item.weight.rows, item.weight.cols);
        self.widen(item.weight, scratch.weight)?;
        self.widen(item.damped, scratch.damped)?;
        let w = (self.at(scratch.weight), n);
        if m <= n {
            let (h, p) = ((self.at(scratch.damped), n), (self.at(scratch.product), n));
            // SAFETY: n x m, n x n and m x m matrices without gaps.
            unsafe {
                self.blas.gemm((Op::None, Op::None), (n, m, n), (1.0, 0.0), h, w, p)?;
                let gram = (self.at(places.gram), m);
                return self.blas.gemm((Op::Transposed, Op::None), (m, m, n), (1.0, 0.0), w, p, gram);
            }
        }
        self.factor(places, scratch, n)?;
        let (f, p) = ((self.at(scratch.damped), n), (self.at(places.product), n));
        // SAFETY: as above.
        unsafe {
            self.blas.gemm((Op::Transposed, Op::None), (n, m, n), (1.0, 0.0), f, w, p)?;
            let gram = (self.at(places.gram), n);
            self.blas.gemm((Op::None, Op::Transposed), (n, n, m), (1.0, 0.0), p, p, gram)
        }
    }

    /// Turns H̃ into its Cholesky factor; `places.info` says whether it has one.
    fn factor(&self, places: &Places, scratch: &Scratch, n: usize) -> Result<(), DeviceError> {
        let matrix = self.at(scratch.damped);
        let mut args = Args::new().pointer(matrix).int(n);
        let room = (self.at(scratch.room), scratch.room_len);
        // SAFETY: n x n numbers, scratch of the length that was asked for, 8 bytes for an `int`.
        unsafe {
            self.solver.potrf(n, (matrix, n), room, self.at(places.info))?;
            self.kernels[1].launch(self.stream, entries(n * n), &mut args)
        }
    }

    /// Whether H̃ had the factor that a tall weight needs.
    fn factored(&self, item: &SpectrumItem, places: &Places) -> Result<bool, DeviceError> {
        if item.weight.rows <= item.weight.cols {
            return Ok(true);
        }
        let mut info = [0.0];
        self.spare.download_at(self.stream, places.info, &mut info)?;
        // The `int` is the first half of the number.
        Ok(info[0].to_bits() as u32 == 0)
    }

    /// Writes the leading vectors of an item and returns its singular values.
    fn vectors(
        &self,
        item: &SpectrumItem,
        places: &Places,
        scratch: &Scratch,
    ) -> Result<Vec<f64>, DeviceError> {
        let (m, r, n) = (item.weight.rows, item.left.cols, places.order);
        let mut values = vec![0.0; n];
        self.spare.download_at(self.stream, places.values, &mut values)?;
        let largest = values[n - 1].max(0.0);
        let sigma: Vec<f64> = (0..r).map(|k| values[n - 1 - k].max(0.0).sqrt()).collect();
        let tall = item.weight.rows > item.weight.cols;
        let inverse = |s: &f64| match tall {
            false => 1.0,
            true if s * s > RANK_TOLERANCE * largest => 1.0 / s,
            true => 0.0,
        };
        let factors: Vec<f64> = sigma.iter().map(inverse).collect();
        // SAFETY: memory that is not pinned was read when the copy returns.
        unsafe { self.spare.queue_upload_at(self.stream, places.factors, &factors)? };
        let own = (self.at(places.gram), n);
        let mut vectors = own.0;
        if tall {
            vectors = self.at(scratch.weight);
            let wf = (self.at(places.product), n);
            // SAFETY: n x m, n x n and m x n matrices without gaps.
            unsafe {
                let scalars = (1.0, 0.0);
                self.blas.gemm((Op::Transposed, Op::None), (m, n, n), scalars, wf, own, (vectors, m))?;
            }
        }
        let mut args = (Args::new().pointer(vectors).pointer(self.at(places.factors)))
            .pointer(self.numbers.at(item.left.at))
            .int(item.left.stride)
            .int(m)
            .int(n)
            .int(r);
        // SAFETY: m x n vectors, r factors, and an m x r view inside the arena.
        unsafe { self.kernels[2].launch(self.stream, entries(m * r), &mut args)? };
        Ok(sigma)
    }
}

/// One thread an entry.
fn entries(count: usize) -> Grid {
    Grid { blocks: (count.div_ceil(256), 1), threads: 256 }
}
