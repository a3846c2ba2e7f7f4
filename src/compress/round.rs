use half::f16;

use super::factors::Path;
use crate::blr::payload::{PathParts, Payload, PayloadError};

/// Why a fitted tensor cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum RoundError {
    #[error("scale {vector}[{index}] of path {path} is {value:e}, which f16 cannot hold")]
    Scale { path: usize, vector: char, index: usize, value: f64 },
    #[error(transparent)]
    Payload(#[from] PayloadError),
}

/// Rounds the scales to f16 and writes the payload.
///
/// A path is stored as `h/a`, `g/c` and `l·a·c` with a = rms h and c = rms g, so that f16's range is used well; an l
/// that would be subnormal becomes 0. Inputs past the true width, up to the next multiple of 8, get g = 0.
pub fn round_to_payload(paths: &[Path]) -> Result<Payload, RoundError> {
    let rounded: Vec<Rounded> =
        paths.iter().enumerate().map(|(p, path)| Rounded::of(path, p)).collect::<Result<_, _>>()?;
    let parts: Vec<PathParts<'_>> = rounded.iter().map(Rounded::parts).collect();
    let first = &rounded[0];
    Ok(Payload::build(first.h.len(), first.g.len(), first.l.len(), &parts)?)
}

struct Rounded {
    h: Vec<f16>,
    g: Vec<f16>,
    l: Vec<f16>,
    u: Vec<i8>,
    v: Vec<i8>,
}

impl Rounded {
    fn of(path: &Path, index: usize) -> Result<Self, RoundError> {
        let (a, c) = (root_mean_square(&path.h), root_mean_square(&path.g));
        let round = |vector: char, values: &[f64], factor: f64| -> Result<Vec<f16>, RoundError> {
            let one = |(k, v): (usize, &f64)| {
                let scaled = f16::from_f64(v * factor);
                let error = RoundError::Scale { path: index, vector, index: k, value: v * factor };
                if scaled.is_finite() { Ok(scaled) } else { Err(error) }
            };
            values.iter().enumerate().map(one).collect()
        };
        let mut l = round('l', &path.l, a * c)?;
        l.iter_mut().filter(|l| !l.is_normal()).for_each(|l| *l = f16::ZERO);
        let (r, width) = (path.rank(), path.g.len().next_multiple_of(8));
        let mut g = round('g', &path.g, 1.0 / c)?;
        g.resize(width, f16::ZERO);
        let sign = |s: f64| if s < 0.0 { -1 } else { 1 };
        let u = (0..path.h.len() * r).map(|k| sign(path.u[(k / r, k % r)])).collect();
        let mut v: Vec<i8> = (0..path.g.len() * r).map(|k| sign(path.v[(k / r, k % r)])).collect();
        v.resize(width * r, 1);
        Ok(Self { h: round('h', &path.h, 1.0 / a)?, g, l, u, v })
    }

    fn parts(&self) -> PathParts<'_> {
        PathParts { h: &self.h, g: &self.g, l: &self.l, u: &self.u, v: &self.v }
    }
}

/// 1 for a vector of zeros, which then stays one.
fn root_mean_square(values: &[f64]) -> f64 {
    let mean = values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64;
    if mean == 0.0 { 1.0 } else { mean.sqrt() }
}
