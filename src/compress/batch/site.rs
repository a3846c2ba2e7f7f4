use faer::Mat;
use rayon::prelude::*;

use super::SiteInput;
use super::job::column;
use super::layout::Layout;
use crate::compress::context::ContextError;
use crate::device::DeviceError;
use crate::device::arena::{Arena, View};
use crate::ops::gather::{Gather, Order, gather};
use crate::ops::scale::{Scale, scale};
use crate::ops::spd_factor::{SpdFactor, TriangularInverse, spd_factor, spd_gather, triangular_inverse};

/// Tries at most, each with ten times the damping of the one before: as the reference does.
const MAX_TRIES: usize = 10;

/// One input in an arena: its Grams, and what the encoder needs to know of it; see
/// [`Context`](crate::compress::context::Context) for the symbols.
#[derive(Clone, Debug)]
pub struct Site {
    pub n: usize,
    /// H and the held-out Gram, n x n
    pub fit: View,
    pub heldout: View,
    /// H̃
    pub damped: View,
    /// Rᵀ, rows and columns in the order π
    pub r_transposed: View,
    /// diag H̃, n
    pub diagonal: usize,
    /// π and its inverse, n each
    pub order: usize,
    pub position: usize,
    /// The damping that served, and the tries it took
    pub damping: f64,
    pub tries: usize,
}

impl Site {
    pub fn place(layout: &mut Layout, n: usize) -> Self {
        Self {
            n,
            fit: layout.matrix(n, n),
            heldout: layout.matrix(n, n),
            damped: layout.matrix(n, n),
            r_transposed: layout.matrix(n, n),
            diagonal: layout.vector(n),
            order: layout.vector(n),
            position: layout.vector(n),
            damping: 0.0,
            tries: 0,
        }
    }
}

/// What building the context of one input writes and nobody keeps.
#[derive(Clone, Copy, Debug)]
pub struct SiteScratch {
    pub factor: SpdFactor,
    inverse: View,
    work: View,
    /// n each
    vectors: [usize; 3],
}

impl SiteScratch {
    pub fn place(layout: &mut Layout, n: usize) -> Self {
        let blocks = SpdFactor::blocks_len(n);
        Self {
            factor: SpdFactor {
                a: layout.matrix(n, n),
                d: layout.vector(n),
                blocks: layout.vector(blocks),
                inverses: layout.vector(blocks),
                status: layout.vector(1),
                parts: View::EMPTY,
            },
            inverse: layout.matrix(n, n),
            work: layout.matrix(n, n),
            vectors: [(); 3].map(|()| layout.vector(n)),
        }
    }
}

/// Fills in all sites: with a damped Gram, or with the identity of a recipe that looks at no text.
pub fn open_sites(
    arena: &mut Arena,
    sites: &mut [Site],
    scratch: &[SiteScratch],
    inputs: &[SiteInput<'_>],
) -> Result<Vec<Option<ContextError>>, DeviceError> {
    let rounded = |input: &SiteInput<'_>| {
        let grams = input.grams?;
        Some(rayon::join(|| row_major(&grams.fit), || row_major(&grams.heldout)))
    };
    let rounded: Vec<_> = inputs.par_iter().map(rounded).collect();
    for (site, rounded) in sites.iter().zip(&rounded) {
        if let Some((fit, heldout)) = rounded {
            arena.write(site.fit.at, fit);
            arena.write(site.heldout.at, heldout);
        }
    }
    let mut errors: Vec<Option<ContextError>> = (inputs.iter().zip(&rounded))
        .map(|(input, rounded)| {
            not_finite(&rounded.as_ref().filter(|_| input.damping.is_some())?.0, input.width)
        })
        .collect();
    let (mut damped, mut kept): (Vec<Site>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut damping = Vec::new();
    for (s, (site, input)) in sites.iter_mut().zip(inputs).enumerate() {
        match input.damping {
            Some(_) if errors[s].is_some() => {}
            Some(rho) => {
                damped.push(site.clone());
                damping.push(rho);
                kept.push(s);
            }
            None => identity(arena, site),
        }
    }
    let scratch: Vec<SiteScratch> = kept.iter().map(|s| scratch[*s]).collect();
    let found = build_sites(arena, &mut damped, &scratch, &damping)?;
    for ((s, site), error) in kept.into_iter().zip(damped).zip(found) {
        sites[s] = site;
        errors[s] = error;
    }
    Ok(errors)
}

/// What is wrong with the numbers of a Gram that the fit works in, n x n.
fn not_finite(fit: &[f32], n: usize) -> Option<ContextError> {
    let at = fit.iter().position(|v| !v.is_finite())?;
    Some(ContextError::NotFinite { row: at % n, col: at / n })
}

/// H̃ = R = I, in the order of the columns.
fn identity(arena: &mut Arena, site: &mut Site) {
    let n = site.n;
    let mut one = vec![0.0; n * n];
    (0..n).for_each(|i| one[i * (n + 1)] = 1.0);
    arena.write(site.damped.at, &one);
    arena.write(site.r_transposed.at, &one);
    arena.write(site.diagonal, &vec![1.0; n]);
    let order: Vec<f32> = (0..n).map(|i| i as f32).collect();
    arena.write(site.order, &order);
    arena.write(site.position, &order);
    (site.damping, site.tries) = (0.0, 1);
}

/// The numbers of a Gram that the fit works in: those of a device are rounded to f32.
fn row_major(symmetric: &Mat<f64>) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(symmetric.nrows() * symmetric.ncols());
    for column in symmetric.col_iter() {
        numbers.extend(column.iter().map(|v| *v as f32));
    }
    numbers
}

/// Damps and factors the fit Grams of all sites, each with growing damping where it is not positive definite.
///
/// The formulas are those of [`Context::build`](crate::compress::context::Context::build). A site's own failure does not
/// stop the others. Cost: about n³ each.
fn build_sites(
    arena: &mut Arena,
    sites: &mut [Site],
    scratch: &[SiteScratch],
    damping: &[f64],
) -> Result<Vec<Option<ContextError>>, DeviceError> {
    let diagonals = read_diagonals(arena, sites, scratch)?;
    let mut errors: Vec<Option<ContextError>> = diagonals.iter().map(|d| bad_diagonal(d)).collect();
    let mut open: Vec<usize> = (0..sites.len()).filter(|s| errors[*s].is_none()).collect();
    let mut rho = damping.to_vec();
    for tries in 1..=MAX_TRIES {
        for &s in &open {
            damp(arena, &sites[s], &scratch[s], &diagonals[s], rho[s]);
        }
        let factors: Vec<_> = open.iter().map(|s| scratch[*s].factor).collect();
        spd_factor(arena, &factors);
        let mut failed = Vec::new();
        for &s in &open {
            if arena.read(scratch[s].factor.status, 1)?[0] == 0.0 {
                (sites[s].damping, sites[s].tries) = (rho[s], tries);
            } else {
                failed.push(s);
            }
        }
        open = failed;
        for &s in &open {
            errors[s] = Some(ContextError::NotPositiveDefinite { tries, damping: rho[s] });
            rho[s] = (rho[s] * 10.0).max(1e-6);
        }
        if open.is_empty() {
            break;
        }
    }
    for s in 0..sites.len() {
        if sites[s].tries > 0 {
            errors[s] = None;
        }
    }
    let built: Vec<_> = (0..sites.len()).filter(|s| errors[*s].is_none()).collect();
    invert(arena, &built.iter().map(|s| (&sites[*s], &scratch[*s])).collect::<Vec<_>>());
    Ok(errors)
}

fn read_diagonals(
    arena: &mut Arena,
    sites: &[Site],
    scratch: &[SiteScratch],
) -> Result<Vec<Vec<f64>>, DeviceError> {
    let copies: Vec<_> = (sites.iter().zip(scratch))
        .map(|(site, scratch)| Scale::new(diagonal(site.fit), column(scratch.vectors[0], site.n)))
        .collect();
    scale(arena, &copies);
    let read = |(site, scratch): (&Site, &SiteScratch)| {
        Ok(arena.read(scratch.vectors[0], site.n)?.into_iter().map(f64::from).collect())
    };
    sites.iter().zip(scratch).map(read).collect()
}

fn bad_diagonal(diagonal: &[f64]) -> Option<ContextError> {
    (diagonal.iter().sum::<f64>() <= 0.0).then_some(ContextError::Zero)
}

/// H̃, its diagonal, the order, and `J H̃_ππ J` to be factored.
fn damp(arena: &mut Arena, site: &Site, scratch: &SiteScratch, diagonal_of_gram: &[f64], rho: f64) {
    let n = site.n;
    let shift = rho * diagonal_of_gram.iter().sum::<f64>() / n as f64;
    let damped: Vec<f32> = diagonal_of_gram.iter().map(|h| (h + shift) as f32).collect();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| damped[j].total_cmp(&damped[i]));
    let mut position = vec![0.0; n];
    order.iter().enumerate().for_each(|(at, &column)| position[column] = at as f32);
    let indices = |order: &mut dyn Iterator<Item = usize>| order.map(|i| i as f32).collect::<Vec<f32>>();
    arena.write(site.diagonal, &damped);
    arena.write(site.order, &indices(&mut order.iter().copied()));
    arena.write(site.position, &position);
    let [_, reversed, flip] = scratch.vectors;
    arena.write(reversed, &indices(&mut order.iter().rev().copied()));
    arena.write(flip, &indices(&mut (0..n).rev()));
    scale(arena, &[Scale::new(site.fit, site.damped)]);
    scale(arena, &[Scale::new(column(site.diagonal, n), diagonal(site.damped))]);
    let (rows, cols) = (Some(reversed), Some(reversed));
    gather(arena, &[Gather { a: site.damped, out: scratch.factor.a, rows, cols, order: Order::Straight }]);
}

/// `Rᵀ = J C⁻ᵀ J` with `C = D⁻¹L`, L the factor of the equilibrated matrix.
fn invert(arena: &mut Arena, sites: &[(&Site, &SiteScratch)]) {
    let factors: Vec<_> = sites.iter().map(|(_, scratch)| scratch.factor).collect();
    spd_gather(arena, &factors);
    let inverses: Vec<_> = (sites.iter())
        .map(|(_, s)| TriangularInverse { factor: s.factor, out: s.inverse, work: s.work })
        .collect();
    triangular_inverse(arena, &inverses);
    let scaled: Vec<_> =
        sites.iter().map(|(_, s)| Scale::new(s.inverse, s.inverse).cols(s.factor.d)).collect();
    scale(arena, &scaled);
    let turned: Vec<_> = (sites.iter())
        .map(|(site, s)| {
            let flip = Some(s.vectors[2]);
            Gather { a: s.inverse, out: site.r_transposed, rows: flip, cols: flip, order: Order::Transposed }
        })
        .collect();
    gather(arena, &turned);
}

fn diagonal(a: View) -> View {
    View { at: a.at, rows: a.rows, cols: 1, stride: a.stride + 1 }
}
