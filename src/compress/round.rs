use half::f16;

use super::factors::Path;
use crate::blr::payload::{PathParts, Payload, PayloadError};

/// Why a fitted tensor cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum RoundError {
    #[error("scale {vector}[{index}] of path {path} is {value:e}, which f16 cannot hold")]
    Scale { path: usize, vector: char, index: usize, value: f64 },
    #[error(
        "every l of path {path} is below {:e}, the smallest normal f16: the weight is too small",
        f16::MIN_POSITIVE
    )]
    Vanishing { path: usize },
    #[error(transparent)]
    Payload(#[from] PayloadError),
}

/// Largest |l| below which, and above which, a power of two moves between l and the other scales. Between them, l has
/// at least six binary orders below its largest before f16 becomes subnormal, and a factor of two above it.
const USUAL_L: std::ops::Range<f64> = 0.00390625..32768.0;

/// Largest power of two that h and g each take over: they stay far inside f16's range, rms 2^-12 to 2^12.
const MOST_SHIFT: i32 = 12;

/// Rounds the scales to f16 and writes the payload.
///
/// A path is stored as `h/a`, `g/c` and `l·a·c` with a = rms h and c = rms g, so that f16's range is used well; where l
/// would still leave it, h and g take over a power of two, which is exact. An l that would be subnormal becomes 0.
/// Inputs past the true width, up to the next multiple of 8, get g = 0.
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
        let (mut a, mut c) = (root_mean_square(&path.h), root_mean_square(&path.g));
        let largest = path.l.iter().fold(0.0, |most: f64, l| most.max(l.abs())) * a * c;
        if largest > 0.0 && !USUAL_L.contains(&largest) {
            let shift = (-largest.log2().ceil() as i32).clamp(-2 * MOST_SHIFT, 2 * MOST_SHIFT);
            a *= 2f64.powi(shift / 2);
            c *= 2f64.powi(shift - shift / 2);
        }
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
        if largest > 0.0 && l.iter().all(|l| *l == f16::ZERO) {
            return Err(RoundError::Vanishing { path: index });
        }
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

#[cfg(test)]
mod tests {
    use faer::Mat;

    use super::*;

    fn path(size: f64) -> Path {
        let sign = |k: usize| if k.is_multiple_of(3) { -1.0 } else { 1.0 };
        Path {
            h: (0..9).map(|i| 1.0 + 0.1 * i as f64).collect(),
            u: Mat::from_fn(9, 8, |i, k| sign(i + k)),
            l: (0..8).map(|k| size * (1.0 + 0.05 * k as f64)).collect(),
            v: Mat::from_fn(13, 8, |j, k| sign(j * k)),
            g: (0..13).map(|j| 1.0 - 0.05 * j as f64).collect(),
        }
    }

    #[test]
    fn scales_of_any_usual_size_keep_f16s_precision() {
        for size in [1e-9, 1e-6, 1e-4, 1e-2, 1.0, 1e3, 1e6, 1e9] {
            let path = path(size);
            let payload = round_to_payload(std::slice::from_ref(&path)).unwrap();
            let stored = payload.dequantise();
            let exact = path.product();
            for i in 0..9 {
                for j in 0..13 {
                    // Three roundings of 2^-11 each, on sums of at most eight terms.
                    let bound = 3.0 * 2f64.powi(-11) * 8.0 * size * 2.0 * 2.0;
                    assert!((stored[i * 16 + j] - exact[(i, j)]).abs() < bound, "{size:e}");
                }
            }
            assert!((0..9).all(|i| stored[i * 16 + 13..][..3] == [0.0; 3]));
        }
    }

    #[test]
    fn what_f16_cannot_hold_is_refused() {
        for size in [1e-14, 1e14] {
            let error = round_to_payload(&[path(size)]).unwrap_err();
            assert!(
                matches!(error, RoundError::Vanishing { path: 0 } | RoundError::Scale { vector: 'l', .. }),
                "{error}"
            );
        }
        let zero = round_to_payload(&[path(0.0)]).unwrap();
        assert!(zero.dequantise().iter().all(|w| *w == 0.0));
    }
}
