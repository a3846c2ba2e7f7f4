use serde::{Deserialize, Serialize};

use super::gram::GramSum;
use super::tensor::Grams;
use crate::model::text::{Text, TextError, TextFile, Windows};
use crate::model::{Block, Capture, Context, Site, Tokenizer, first_non_finite};

/// Rows of the residual stream that go through a block at once: enough for full speed, few enough that the widest
/// activation of a 7B model stays below 200 MB.
const BATCH_ROWS: usize = 4096;

/// Fit and held-out tokens when the command line gives none. Origin: the published encoder's own measurement.
pub const FIT_TOKENS: usize = 14_848;
pub const HELDOUT_TOKENS: usize = 3_072;

/// Which windows of the text calibrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalibrationParams {
    /// Tokens of a window.
    pub window: usize,
    /// Tokens to fit on and to judge by, rounded down to whole windows. `None`: the defaults, or what a shorter text
    /// holds, a sixth of it held out.
    pub fit_tokens: Option<usize>,
    pub heldout_tokens: Option<usize>,
}

/// The calibration windows: fit windows first, the last ones held out.
pub struct Calibration {
    pub windows: Windows,
    pub fit: usize,
    pub heldout: usize,
    pub texts: Vec<TextFile>,
}

/// What calibration did, for packing.json.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationRecord {
    pub texts: Vec<TextFile>,
    pub window: usize,
    pub fit_tokens: usize,
    pub heldout_tokens: usize,
}

impl Calibration {
    pub fn prepare(
        text: Text,
        tokenizer: &Tokenizer,
        bos: Option<u32>,
        params: CalibrationParams,
    ) -> Result<Self, TextError> {
        let mut windows = Windows::cut(&text, tokenizer, params.window, bos)?;
        let (fit, heldout) = split(&windows, params)?;
        windows.truncate(fit + heldout);
        Ok(Self { windows, fit, heldout, texts: text.files })
    }

    pub fn record(&self) -> CalibrationRecord {
        CalibrationRecord {
            texts: self.texts.clone(),
            window: self.windows.len,
            fit_tokens: self.fit * self.windows.len,
            heldout_tokens: self.heldout * self.windows.len,
        }
    }
}

fn split(windows: &Windows, params: CalibrationParams) -> Result<(usize, usize), TextError> {
    let (window, available) = (params.window, windows.count());
    let whole = |part: &'static str, tokens: usize| match tokens / window {
        0 => Err(TextError::Part { part, tokens, window }),
        count => Ok(count),
    };
    let (fit, heldout) = match (params.fit_tokens, params.heldout_tokens) {
        (None, None) => {
            let total = available.min(((FIT_TOKENS + HELDOUT_TOKENS) / window).max(2));
            let heldout = (total * HELDOUT_TOKENS).div_ceil(FIT_TOKENS + HELDOUT_TOKENS);
            (total - heldout, heldout)
        }
        (Some(fit), None) => (whole("fit", fit)?, (HELDOUT_TOKENS / window).max(1)),
        (None, Some(heldout)) => {
            let heldout = whole("held-out", heldout)?;
            (available.saturating_sub(heldout).min((FIT_TOKENS / window).max(1)), heldout)
        }
        (Some(fit), Some(heldout)) => (whole("fit", fit)?, whole("held-out", heldout)?),
    };
    let needed = fit.max(1).saturating_add(heldout.max(1));
    if needed > available || fit == 0 {
        return Err(TextError::TooShort {
            tokens: windows.text_tokens,
            needed: needed.max(2).saturating_mul(window),
            what: format!("a fit and a held-out part in windows of {window} tokens"),
        });
    }
    Ok((fit, heldout))
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

/// Grams of the four inputs of a block, in the order of [`Site::ALL`]; `hidden` is the residual stream entering the
/// block (all positions x width) and stays as it is.
pub fn capture_grams(
    block: &Block,
    calibration: &Calibration,
    hidden: &[f32],
) -> Result<[Grams; 4], ActivationError> {
    let width = hidden.len() / calibration.windows.tokens().len();
    let window = calibration.windows.positions * width;
    let (fit, heldout) = hidden.split_at(calibration.fit * window);
    let collect = |part: &[f32], first: usize| {
        let mut sums = SiteSums { sums: Site::ALL.map(|_| None), rows: first, bad: None };
        for batch in part.chunks(batch_len(window, width)) {
            let mut x = batch.to_vec();
            block.forward(&mut x, Context::Windows { len: calibration.windows.positions }, &mut sums);
            sums.rows += batch.len() / width;
        }
        sums.finish()
    };
    let (fit, heldout) = (collect(fit, 0)?, collect(heldout, fit.len() / width)?);
    let mut pairs = fit.into_iter().zip(heldout).map(|(fit, heldout)| Grams { fit, heldout });
    Ok(Site::ALL.map(|_| pairs.next().expect("one pair a site")))
}

/// Runs the block over all calibration positions, in place.
pub fn advance(block: &Block, calibration: &Calibration, hidden: &mut [f32]) {
    let width = hidden.len() / calibration.windows.tokens().len();
    let positions = calibration.windows.positions;
    for batch in hidden.chunks_mut(batch_len(positions * width, width)) {
        block.forward(batch, Context::Windows { len: positions }, &mut crate::model::NoCapture);
    }
}

/// Numbers in a batch: whole windows, at least one.
pub(super) fn batch_len(window: usize, width: usize) -> usize {
    (BATCH_ROWS * width / window).max(1) * window
}

struct SiteSums {
    sums: [Option<GramSum>; 4],
    rows: usize,
    bad: Option<ActivationError>,
}

impl Capture for SiteSums {
    fn linear_input(&mut self, layer: usize, site: Site, x: &[f32], width: usize) {
        if let (None, Some((row, column))) = (&self.bad, first_non_finite(x, width)) {
            self.bad = Some(ActivationError::at(layer, site, self.rows + row, column));
        }
        if self.bad.is_none() {
            self.sums[site as usize].get_or_insert_with(|| GramSum::new(width)).add(x);
        }
    }
}

impl SiteSums {
    fn finish(self) -> Result<Vec<faer::Mat<f64>>, ActivationError> {
        match self.bad {
            Some(error) => Err(error),
            None => Ok(self.sums.into_iter().flatten().map(GramSum::finish).collect()),
        }
    }
}
