use faer::Mat;

use super::calibration::Calibration;
use super::gram::{CrossSum, GramSum};
use super::tensor::Grams;
use crate::model::{Block, Capture, Context, NoCapture, Site, first_non_finite};

/// Rows of the residual stream that go through a block at once: enough for full speed, few enough that the widest
/// activation of a 7B model stays below 200 MB.
const BATCH_ROWS: usize = 4096;

/// The same block in the packed model and, beside it, in the original one.
#[derive(Clone, Copy)]
pub struct Blocks<'a> {
    pub packed: &'a Block,
    /// Where the original runs too.
    pub original: Option<&'a Block>,
}

impl<'a> Blocks<'a> {
    /// One model alone.
    pub fn one(block: &'a Block) -> Self {
        Self { packed: block, original: None }
    }
}

/// One of the two models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Packed,
    Original,
}

/// What enters a block in the packed and in the original model: all calibration positions x width.
#[derive(Clone, Debug, PartialEq)]
pub struct Streams {
    pub packed: Vec<f32>,
    pub original: Option<Vec<f32>>,
}

/// A NaN or infinity on its way into a linear layer.
#[derive(Debug, thiserror::Error)]
#[error(
    "the input of {names} in block {layer} is not finite at calibration position {row}, column {column}: \
     look for NaN, infinite or overflowing weights in this block or the one before"
)]
pub struct ActivationError {
    pub layer: usize,
    pub names: String,
    pub row: usize,
    pub column: usize,
}

impl ActivationError {
    pub(super) fn at(layer: usize, site: Site, row: usize, column: usize) -> Self {
        let names: Vec<_> = site.linears().iter().map(|name| name.suffix()).collect();
        Self { layer, names: names.join(", "), row, column }
    }
}

/// Grams by site, in the order of [`Site::ALL`]; `None` where they were not asked for.
pub type SiteGrams = [Option<Grams>; 4];

impl Streams {
    /// Before the first block.
    pub fn new(embedded: Vec<f32>, two: bool) -> Self {
        Self { original: two.then(|| embedded.clone()), packed: embedded }
    }

    /// Grams of the inputs at `sites`, with cross moments where the original runs too.
    pub fn capture_grams(
        &self,
        blocks: Blocks<'_>,
        calibration: &Calibration,
        sites: &[Site],
    ) -> Result<SiteGrams, ActivationError> {
        let positions = calibration.windows.positions;
        let width = self.packed.len() / calibration.windows.tokens().len();
        let (fit, _) = self.packed.split_at(calibration.fit * positions * width);
        let batch = batch_len(positions * width, width);
        let last = sites.iter().max().copied().unwrap_or(Site::Attention);
        let run = |block: &Block, x: &[f32], hooks: &mut dyn Capture| {
            block.forward_to(last, &mut x.to_vec(), Context::Windows { len: positions }, hooks);
        };
        let (mut sums, mut heldout) = (SiteSums::new(sites), SiteSums::new(sites));
        for (k, x) in fit.chunks(batch).enumerate() {
            let beside = self.original.as_ref().zip(blocks.original);
            if let Some((stream, block)) = beside {
                let mut inputs = Inputs { sites, of: Default::default() };
                run(block, &stream[k * batch..k * batch + x.len()], &mut inputs);
                sums.beside = Some(inputs.of);
            }
            run(blocks.packed, x, &mut sums);
            sums.rows += x.len() / width;
        }
        heldout.rows = sums.rows;
        for x in self.packed[fit.len()..].chunks(batch) {
            run(blocks.packed, x, &mut heldout);
            heldout.rows += x.len() / width;
        }
        let (mut fit, mut heldout) = (sums.finish()?, heldout.finish()?);
        Ok(Site::ALL.map(|site| {
            let (fit, cross) = fit[site as usize].take()?;
            let (heldout, _) = heldout[site as usize].take()?;
            Some(Grams { fit, heldout, cross })
        }))
    }

    /// One stream goes through a block of its model.
    pub fn advance(&mut self, which: Which, block: &Block, calibration: &Calibration) {
        let positions = calibration.windows.positions;
        let width = self.packed.len() / calibration.windows.tokens().len();
        let Some(stream) = self.of(which) else { return };
        for batch in stream.chunks_mut(batch_len(positions * width, width)) {
            block.forward(batch, Context::Windows { len: positions }, &mut NoCapture);
        }
    }

    pub(super) fn of(&mut self, which: Which) -> Option<&mut Vec<f32>> {
        match which {
            Which::Packed => Some(&mut self.packed),
            Which::Original => self.original.as_mut(),
        }
    }
}

/// Numbers in a batch: whole windows, at least one.
pub(super) fn batch_len(window: usize, width: usize) -> usize {
    (BATCH_ROWS * width / window).max(1) * window
}

/// Keeps inputs as they are.
struct Inputs<'a> {
    sites: &'a [Site],
    of: [Vec<f32>; 4],
}

impl Capture for Inputs<'_> {
    fn linear_input(&mut self, _: usize, site: Site, x: &[f32], _: usize) {
        if self.sites.contains(&site) {
            self.of[site as usize] = x.to_vec();
        }
    }
}

/// A Gram, and the cross moment where the original runs too.
type Moments = (Mat<f64>, Option<Mat<f64>>);

struct SiteSums<'a> {
    sites: &'a [Site],
    sums: [Option<(GramSum, Option<CrossSum>)>; 4],
    /// The inputs in the original model at the positions that come next.
    beside: Option<[Vec<f32>; 4]>,
    rows: usize,
    bad: Option<ActivationError>,
}

impl<'a> SiteSums<'a> {
    fn new(sites: &'a [Site]) -> Self {
        Self { sites, sums: Site::ALL.map(|_| None), beside: None, rows: 0, bad: None }
    }

    fn finish(self) -> Result<[Option<Moments>; 4], ActivationError> {
        match self.bad {
            Some(error) => Err(error),
            None => Ok(self.sums.map(|sums| {
                let (gram, cross) = sums?;
                Some((gram.finish(), cross.map(CrossSum::finish)))
            })),
        }
    }
}

impl Capture for SiteSums<'_> {
    fn linear_input(&mut self, layer: usize, site: Site, x: &[f32], width: usize) {
        if let (None, Some((row, column))) = (&self.bad, first_non_finite(x, width)) {
            self.bad = Some(ActivationError::at(layer, site, self.rows + row, column));
        }
        if self.bad.is_some() || !self.sites.contains(&site) {
            return;
        }
        let beside = self.beside.as_ref().map(|beside| beside[site as usize].as_slice());
        let (gram, cross) = self.sums[site as usize]
            .get_or_insert_with(|| (GramSum::new(width), beside.map(|_| CrossSum::new(width))));
        gram.add(x);
        if let Some((cross, beside)) = cross.as_mut().zip(beside) {
            cross.add(beside, x);
        }
    }
}
