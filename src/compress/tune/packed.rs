use faer::Mat;
use rayon::prelude::*;

use super::optimiser::{Kind, LATENT, Parameter, Rates, root_mean_square};
use super::room::Room;
use crate::blr::Payload;
use crate::blr::payload::Shape;
use crate::compress::factors::Path;
use crate::device::DeviceError;
use crate::device::arena::{Arena, Precision, View};
use crate::ops::adam::Adam;
use crate::ops::dots::{Dots, col_dots};
use crate::ops::factor_gradient::{FactorGradient, factor_gradient};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::scale::{Scale, scale};

/// A packed layer in an arena, as parameters: `Ŵ = Σ_p diag(h)·sign(U)·diag(l)·sign(V)ᵀ·diag(g)` over real latents U, V.
///
/// From G = ∂L/∂Ŵ (m x n), with A = diag(h)·sign(U) and B = diag(g)·sign(V):
///
/// | gradient | of |
/// |---|---|
/// | `diag(h)·G·B·diag(l)` | U, straight through the sign (Bengio et al. 2013) |
/// | `diag(g)·Gᵀ·A·diag(l)` | V |
/// | `Σ_k sign(U)_ik·l_k·(G·B)_ik` | h_i |
/// | `Σ_k sign(V)_jk·l_k·(Gᵀ·A)_jk` | g_j |
/// | `Σ_i A_ik·(G·B)_ik` | l_k |
#[derive(Clone, Debug)]
pub(super) struct Packed {
    shape: Shape,
    /// n; the payload may be up to 7 columns wider.
    in_features: usize,
    paths: Vec<Place>,
}

/// Where one path lies.
#[derive(Clone, Debug)]
struct Place {
    /// Latents, m x r and n x r.
    u: View,
    v: View,
    h: usize,
    l: usize,
    g: usize,
    /// A, A·diag(l) and B, made by [`compose`].
    a: View,
    al: View,
    b: View,
    gradient: Option<Gradient>,
}

#[derive(Clone, Debug)]
struct Gradient {
    u: View,
    v: View,
    h: usize,
    l: usize,
    g: usize,
    /// Those that are trained of h, l, g, U, V.
    trained: [Option<Parameter>; 5],
}

impl Packed {
    pub fn place(room: &mut Room, shape: Shape, in_features: usize, rates: &Rates) -> Self {
        let paths = (0..shape.paths).map(|_| Place::new(room, shape, in_features, rates)).collect();
        Self { shape, in_features, paths }
    }

    /// Whether anything of it is trained.
    pub fn is_trained(&self) -> bool {
        self.paths.iter().any(|path| path.gradient.is_some())
    }

    /// Lengths of the vectors that are trained, in the order of what [`write`](Self::write) returns.
    pub fn trained(&self) -> impl Iterator<Item = usize> {
        let gradients = self.paths.iter().filter_map(|path| path.gradient.as_ref());
        gradients.flat_map(|gradient| gradient.trained.iter().flatten().map(|p| p.len))
    }

    /// Writes scales and latents, and returns what is to be trained.
    pub fn write(&self, arena: &mut Arena, payload: &Payload, rates: &Rates) -> Vec<Adam> {
        let mut items = Vec::new();
        for (place, path) in self.paths.iter().zip(payload.paths()) {
            let g = &path.g.to_f32()[..self.in_features];
            let vectors = [(place.h, &path.h.to_f32()[..]), (place.l, &path.l.to_f32()), (place.g, g)];
            for (at, values) in vectors {
                arena.write(at, values);
            }
            let u = latents(place.u, |i, k| path.u_row(i)[k / 8] >> (k % 8) & 1);
            let v = latents(place.v, |j, k| path.v_row(k)[j / 8] >> (j % 8) & 1);
            arena.write(place.u.at, &u);
            arena.write(place.v.at, &v);
            let sizes = vectors.map(|(_, values)| root_mean_square(values));
            let sizes = sizes.into_iter().chain([1.0, 1.0]);
            let trained = place.gradient.iter().flat_map(|gradient| gradient.trained);
            items.extend(trained.zip(sizes).filter_map(|(one, size)| Some(one?.item(rates, size))));
        }
        items
    }

    /// The factors as they are now, for rounding.
    pub fn read(&self, arena: &mut Arena) -> Result<Vec<Path>, DeviceError> {
        let Shape { rank, rows, .. } = self.shape;
        let mut paths = Vec::new();
        for place in &self.paths {
            let mut vector = |at: usize, len: usize| -> Result<Vec<f64>, DeviceError> {
                Ok(arena.read(at, len)?.into_iter().map(f64::from).collect())
            };
            let (h, l, g) =
                (vector(place.h, rows)?, vector(place.l, rank)?, vector(place.g, self.in_features)?);
            let mut signs = |view: View| -> Result<Mat<f64>, DeviceError> {
                let numbers = arena.read(view.at, view.len())?;
                Ok(Mat::from_fn(view.rows, view.cols, |i, k| {
                    if numbers[i * view.cols + k] < 0.0 { -1.0 } else { 1.0 }
                }))
            };
            paths.push(Path { u: signs(place.u)?, v: signs(place.v)?, h, l, g });
        }
        Ok(paths)
    }
}

impl Place {
    fn new(room: &mut Room, shape: Shape, n: usize, rates: &Rates) -> Self {
        let Shape { rank: r, rows: m, .. } = shape;
        let Room { kept, scratch } = room;
        let (u, v) = (kept.matrix(m, r), kept.matrix(n, r));
        let [h, l, g] = [m, r, n].map(|len| kept.vector(len));
        let (a, al, b) = (scratch.matrix(m, r), scratch.matrix(m, r), scratch.matrix(n, r));
        let trained = rates.scales.is_some() || rates.signs.is_some();
        let gradient = trained.then(|| {
            let (du, dv) = (scratch.matrix(m, r), scratch.matrix(n, r));
            let [dh, dl, dg] = [m, r, n].map(|len| scratch.vector(len));
            let parts = [
                (Kind::Scales, [h, dh, m]),
                (Kind::Scales, [l, dl, r]),
                (Kind::Scales, [g, dg, n]),
                (Kind::Signs, [u.at, du.at, m * r]),
                (Kind::Signs, [v.at, dv.at, n * r]),
            ];
            let trained = parts.map(|(kind, part)| Parameter::place(kept, rates, kind, part));
            Gradient { u: du, v: dv, h: dh, l: dl, g: dg, trained }
        });
        Self { u, v, h, l, g, a, al, b, gradient }
    }
}

/// Multiplies layers out: Ŵ of each goes to its view.
pub(super) fn compose(arena: &mut Arena, layers: &[(&Packed, View)], precision: Precision) {
    let places = || layers.iter().flat_map(|(packed, _)| &packed.paths);
    let factors: Vec<Scale> = places()
        .flat_map(|p| {
            let u = Scale::new(p.u, p.a).sign().rows(p.h);
            let ul = Scale::new(p.u, p.al).sign().rows(p.h).cols(p.l);
            [u, ul, Scale::new(p.v, p.b).sign().rows(p.g)]
        })
        .collect();
    scale(arena, &factors);
    // Paths of one layer add up, one after another.
    for index in 0..layers.iter().map(|(packed, _)| packed.paths.len()).max().unwrap_or(0) {
        let beta = if index == 0 { 0.0 } else { 1.0 };
        let product = |place: &Place, to: View| {
            Gemm::new(place.al, place.b, to).b_transposed().beta(beta).precision(precision)
        };
        let items: Vec<Gemm> = (layers.iter())
            .filter_map(|(packed, to)| packed.paths.get(index).map(|place| product(place, *to)))
            .collect();
        gemm(arena, &items);
    }
}

/// From ∂L/∂Ŵ of each layer, as [`compose`] left it, to the gradients of its parameters.
pub(super) fn differentiate(arena: &mut Arena, layers: &[(&Packed, View)], precision: Precision) {
    let (mut products, mut dots, mut sides) = (Vec::new(), Vec::new(), Vec::new());
    for (packed, slope) in layers {
        for place in &packed.paths {
            let Some(gradient) = &place.gradient else { continue };
            products.push(Gemm::new(*slope, place.b, gradient.u).precision(precision));
            products.push(Gemm::new(*slope, place.a, gradient.v).a_transposed().precision(precision));
            dots.push(Dots { a: place.a, b: gradient.u, out: gradient.l });
            let side = |latents, product, scales, out| FactorGradient {
                latents,
                product,
                scales,
                latent_scales: place.l,
                out,
            };
            sides.push(side(place.u, gradient.u, place.h, gradient.h));
            sides.push(side(place.v, gradient.v, place.g, gradient.g));
        }
    }
    gemm(arena, &products);
    col_dots(arena, &dots);
    factor_gradient(arena, &sides);
}

/// ±[`LATENT`] for the bits of a matrix.
fn latents(shape: View, bit: impl Fn(usize, usize) -> u8 + Sync) -> Vec<f32> {
    let mut numbers = vec![0.0; shape.len()];
    numbers.par_chunks_exact_mut(shape.cols).enumerate().with_min_len(64).for_each(|(i, row)| {
        row.iter_mut().enumerate().for_each(|(k, x)| *x = if bit(i, k) == 1 { LATENT } else { -LATENT });
    });
    numbers
}
