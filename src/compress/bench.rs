//! Measures the encoder on a block of a 7B model's shapes.

use std::time::Instant;

use faer::Mat;

use super::batch::{Report, SiteInput};
use super::recipe::Recipe;
use super::schedule::{Done, Scheduler, Wanted, encode_stage};
use super::tensor::Grams;
use crate::blr::Budget;
use crate::device::arena::{Arena, View};
use crate::device::{Device, DeviceError};
use crate::model::Site;
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::splitmix::SplitMix64;

/// The linear layers of one block of a 7B Llama: outputs, inputs, and the input that they read.
const BLOCK_7B: [(&str, usize, usize, Site); 7] = [
    ("down", 4096, 11008, Site::Down),
    ("gate", 11008, 4096, Site::Mlp),
    ("up", 11008, 4096, Site::Mlp),
    ("q", 4096, 4096, Site::Attention),
    ("k", 4096, 4096, Site::Attention),
    ("v", 4096, 4096, Site::Attention),
    ("o", 4096, 4096, Site::Output),
];

/// What a synthetic block took.
pub struct BlockRun {
    pub seconds: f64,
    pub report: Report,
    /// Name, rank, and relative error on the held-out Gram.
    pub tensors: Vec<(&'static str, usize, f64)>,
    pub missing: Vec<String>,
}

/// Encodes one block of a 7B model's shapes, each side divided by `divisor`, whose weights and inputs are made up: a
/// power-law spectrum, inputs that depend on each other, every 61st channel ten times as strong.
pub fn block_7b(
    device: &Device,
    divisor: usize,
    bits: f64,
    say: &dyn Fn(&str),
) -> Result<BlockRun, DeviceError> {
    let shapes = BLOCK_7B.map(|(name, m, n, site)| (name, m / divisor, n / divisor, site));
    let width = |site: Site| shapes.iter().find(|s| s.3 == site).map_or(0, |s| s.2);
    let mut grams = Vec::new();
    for site in Site::ALL {
        say(&format!("making up the inputs of {site:?}"));
        grams.push(made_up_grams(device, width(site), site as u64)?);
    }
    let weights: Vec<Vec<f32>> = (shapes.iter().enumerate())
        .map(|(k, (_, m, n, _))| made_up_weight(device, *m, *n, 100 + k as u64))
        .collect::<Result<_, _>>()?;
    let recipe = Recipe::nvg();
    let sites: Vec<SiteInput<'_>> = (grams.iter())
        .map(|g| SiteInput { width: g.fit.nrows(), grams: Some(g), damping: Some(recipe.damping) })
        .collect();
    let budget = Budget { bits, factor: 1.0 };
    let wanted: Vec<Wanted<'_>> = (shapes.iter().zip(&weights))
        .map(|((name, m, _, site), weight)| Wanted {
            name: (*name).into(),
            weight,
            rows: *m,
            site: *site as usize,
            budget,
        })
        .collect();
    let (mut tensors, mut missing) = (Vec::new(), Vec::new());
    say("encoding");
    let began = Instant::now();
    let report =
        encode_stage(&mut Scheduler::new(device.clone()), &recipe, &sites, &wanted, |k, done| match done {
            Done::Packed(packed) => {
                let quality = &packed.quality;
                tensors.push((shapes[k].0, quality.rank, quality.heldout_rel.unwrap_or(f64::NAN)));
            }
            Done::Dense(reason) | Done::Retry(reason) => missing.push(format!("{}: {reason}", shapes[k].0)),
        });
    Ok(BlockRun { seconds: began.elapsed().as_secs_f64(), report, tensors, missing })
}

/// Sources of strength `(1+j)^−½` through one fixed mixture of n/2 of them, with noise that every channel has of its
/// own; the products run on the device.
pub(super) fn made_up_grams(device: &Device, n: usize, seed: u64) -> Result<Grams, DeviceError> {
    let sources = (n / 2).max(8);
    let mut random = SplitMix64::new(seed);
    let mixture: Vec<f32> = (0..n * sources)
        .map(|k| {
            let heavy = if (k / sources) % 61 == 17 { 10.0 } else { 1.0 };
            heavy * (2.0 * random.uniform() as f32 - 1.0) / (1.0 + (k % sources) as f32).sqrt()
        })
        .collect();
    let mut gram = |tokens: usize| -> Result<Mat<f64>, DeviceError> {
        let (mix, data) = (View::new(0, n, sources), View::new(n * sources, tokens, sources));
        let x = View::new(data.at + data.len(), tokens, n);
        let h = View::new(x.at + x.len(), n, n);
        let mut arena = Arena::new(device, h.at + h.len())?;
        arena.write(mix.at, &mixture);
        let noise: Vec<f32> = (0..data.len()).map(|_| 2.0 * random.uniform() as f32 - 1.0).collect();
        arena.write(data.at, &noise);
        let own: Vec<f32> = (0..x.len()).map(|_| 0.2 * random.uniform() as f32 - 0.1).collect();
        arena.write(x.at, &own);
        gemm(&mut arena, &[Gemm::new(data, mix, x).b_transposed().beta(1.0)]);
        gemm(&mut arena, &[Gemm::new(x, x, h).a_transposed().alpha(1.0 / tokens as f32)]);
        let values = arena.read(h.at, h.len())?;
        // A product's two triangles differ by rounding.
        Ok(Mat::from_fn(n, n, |i, j| f64::from(values[i.max(j) * n + i.min(j)])))
    };
    Ok(Grams { fit: gram(2 * n)?, heldout: gram(n)?, cross: None })
}

/// A product of n/4 directions whose strengths fall like `(1+j)^−½`, with noise.
pub(super) fn made_up_weight(
    device: &Device,
    m: usize,
    n: usize,
    seed: u64,
) -> Result<Vec<f32>, DeviceError> {
    let rank = (m.min(n) / 4).max(8);
    let mut random = SplitMix64::new(seed);
    let mut matrix = |count: usize, size: f32| -> Vec<f32> {
        (0..count).map(|_| size * (2.0 * random.uniform() as f32 - 1.0)).collect()
    };
    let (left, right) = (View::new(0, m, rank), View::new(m * rank, rank, n));
    let w = View::new(right.at + right.len(), m, n);
    let mut arena = Arena::new(device, w.at + w.len())?;
    let mut strengths = matrix(left.len(), 0.05);
    strengths.iter_mut().enumerate().for_each(|(k, l)| *l /= (1.0 + (k % rank) as f32).sqrt());
    arena.write(left.at, &strengths);
    arena.write(right.at, &matrix(right.len(), 1.0));
    arena.write(w.at, &matrix(w.len(), 0.02));
    gemm(&mut arena, &[Gemm::new(left, right, w).beta(1.0)]);
    arena.read(w.at, w.len())
}
