use crate::atoms::Dictionary;
use crate::model::text::Windows;
use crate::model::{Capture, Decoder, NoCapture, Run};
use crate::ops::log_softmax::log_probability;

use super::ExplainError;

/// Mean negative log-likelihood of a text with the residual stream after one block as it is, rebuilt from a dictionary,
/// and held at its mean.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Recovered {
    pub original: f64,
    pub rebuilt: f64,
    pub mean: f64,
}

impl Recovered {
    /// `(mean − rebuilt)/(mean − original)`: 1 where the reconstruction costs nothing, 0 where it is worth no more than
    /// the mean.
    pub fn share(&self) -> f64 {
        (self.mean - self.rebuilt) / (self.mean - self.original)
    }
}

/// The residual stream of a text after block `layer` (from 0): a row a token, without the first of each window.
///
/// # Errors
/// As the decoder's.
pub fn read_stream(decoder: &Decoder, windows: &Windows, layer: usize) -> Result<Vec<f64>, ExplainError> {
    let mut rows = Vec::new();
    for index in 0..windows.count() {
        let tokens = windows.window(index);
        let mut reader = Reader { layer, rows: &mut rows };
        decoder.hidden(tokens, Run::Windows { len: tokens.len() }, &mut reader)?;
    }
    Ok(rows)
}

struct Reader<'a> {
    layer: usize,
    rows: &'a mut Vec<f64>,
}

impl Capture for Reader<'_> {
    fn block_output(&mut self, layer: usize, x: &mut [f32], width: usize) {
        if layer == self.layer {
            self.rows.extend(x[width..].iter().map(|v| f64::from(*v)));
        }
    }
}

/// What the dictionary's reconstruction costs in the place of the residual stream after block `layer`.
///
/// # Errors
/// As the decoder's and the dictionary's.
pub fn loss_recovered(
    decoder: &Decoder,
    windows: &Windows,
    layer: usize,
    dictionary: &Dictionary,
) -> Result<Recovered, ExplainError> {
    let mut sums = [0.0; 3];
    let mut scored = 0;
    for index in 0..windows.count() {
        let tokens = windows.window(index);
        let mut rebuilt = Splice { layer, by: By::Dictionary(dictionary), failed: None };
        let mut mean = Splice { layer, by: By::Row(&dictionary.space.mean), failed: None };
        sums[0] += nll(decoder, tokens, &mut NoCapture)?;
        sums[1] += nll(decoder, tokens, &mut rebuilt)?;
        sums[2] += nll(decoder, tokens, &mut mean)?;
        if let Some(error) = rebuilt.failed {
            return Err(error.into());
        }
        scored += tokens.len() - 1;
    }
    let [original, rebuilt, mean] = sums.map(|sum| sum / scored as f64);
    Ok(Recovered { original, rebuilt, mean })
}

fn nll(decoder: &Decoder, tokens: &[u32], hooks: &mut dyn Capture) -> Result<f64, ExplainError> {
    let hidden = decoder.hidden(tokens, Run::Windows { len: tokens.len() }, hooks)?;
    let width = decoder.config().hidden;
    let mut sum = 0.0;
    for (at, row) in hidden.chunks_exact(width).enumerate().take(tokens.len() - 1) {
        sum -= log_probability(&decoder.logits(row), tokens[at + 1] as usize);
    }
    Ok(sum)
}

/// Puts something else in the place of the stream after a block; the first token of a window stays, which models use as
/// a sink of attention.
struct Splice<'a> {
    layer: usize,
    by: By<'a>,
    failed: Option<crate::atoms::AtomsError>,
}

enum By<'a> {
    Dictionary(&'a Dictionary),
    Row(&'a [f64]),
}

impl Capture for Splice<'_> {
    fn block_output(&mut self, layer: usize, x: &mut [f32], width: usize) {
        if layer != self.layer {
            return;
        }
        let rest = &mut x[width..];
        match self.by {
            By::Row(mean) => {
                for row in rest.chunks_exact_mut(width) {
                    row.iter_mut().zip(mean).for_each(|(x, m)| *x = *m as f32);
                }
            }
            By::Dictionary(dictionary) => {
                let wide: Vec<f64> = rest.iter().map(|v| f64::from(*v)).collect();
                if wide.is_empty() {
                    return;
                }
                match dictionary.encode(&wide, width) {
                    Ok(codes) => {
                        let rebuilt = dictionary.reconstruct(&codes);
                        rest.iter_mut().zip(rebuilt).for_each(|(x, r)| *x = r as f32);
                    }
                    Err(error) => self.failed = Some(error),
                }
            }
        }
    }
}
