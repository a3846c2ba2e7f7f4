//! The rows of a stored layer times powers of two.

use half::f16;

use super::payload::{HEADER_BYTES, Payload, PayloadError, Shape};

impl Payload {
    /// `diag(2^e)·Ŵ` for m exponents e: exact, unless the scales of a path then span more than f16's normal numbers do; where h
    /// alone would leave them, a power of two goes over to l. What spans more is rounded as f16 rounds.
    ///
    /// # Errors
    /// The scale that becomes infinite.
    ///
    /// # Panics
    /// When there are not m exponents.
    pub fn with_rows_times(
        &self,
        exponents: impl Iterator<Item = i32> + Clone,
    ) -> Result<Self, PayloadError> {
        let Shape { rows, cols, rank, .. } = self.shape();
        assert_eq!(exponents.clone().count(), rows, "an exponent for each output");
        let mut bytes = self.bytes().as_slice().to_vec();
        for path in bytes[HEADER_BYTES..].chunks_exact_mut(self.shape().path_bytes()) {
            let (h, behind) = path.split_at_mut(2 * rows);
            let l = &mut behind[2 * cols..2 * (cols + rank)];
            let shift = shift(binades(times(h, exponents.clone())), binades(times(l, std::iter::repeat(0))));
            store(h, exponents.clone().map(|e| e + shift));
            store(l, std::iter::repeat(-shift));
        }
        Self::parse(bytes.into())
    }
}

/// f16 scales, each times a power of two.
fn times(scales: &[u8], exponents: impl Iterator<Item = i32>) -> impl Iterator<Item = f64> {
    let scales = scales.as_chunks::<2>().0.iter().map(|scale| f64::from(f16::from_le_bytes(*scale)));
    scales.zip(exponents).map(|(scale, exponent)| scale * 2f64.powi(exponent))
}

fn store(scales: &mut [u8], exponents: impl Iterator<Item = i32>) {
    let values: Vec<f64> = times(scales, exponents).collect();
    for (scale, value) in scales.as_chunks_mut::<2>().0.iter_mut().zip(values) {
        *scale = f16::from_f64(value).to_le_bytes();
    }
}

/// The lowest and the highest binary exponent of all that are not 0.
fn binades(values: impl Iterator<Item = f64>) -> Option<[i32; 2]> {
    let exponents = values.filter(|value| *value != 0.0).map(|value| value.abs().log2().floor() as i32);
    exponents.fold(None, |span: Option<[i32; 2]>, e| {
        Some(span.map_or([e, e], |[low, high]| [low.min(e), high.max(e)]))
    })
}

/// The smallest power of two that goes from l over to h so that both are normal numbers of f16; where there is none, the
/// smallest that leaves nothing infinite, if that can be: what is stored below the normal numbers stays as it is.
fn shift(h: Option<[i32; 2]>, l: Option<[i32; 2]>) -> i32 {
    const LOWEST: i32 = -14;
    const HIGHEST: i32 = 15;
    let (Some([h_low, h_high]), Some([l_low, l_high])) = (h, l) else { return 0 };
    let finite_l = l_high - HIGHEST;
    let least = (LOWEST - h_low).max(finite_l);
    let most = (HIGHEST - h_high).min(l_low - LOWEST);
    if least <= most { 0.clamp(least, most) } else { (HIGHEST - h_high).min(0).max(finite_l) }
}

#[cfg(test)]
mod tests {
    use super::super::payload::tests::small;
    use super::*;

    #[test]
    fn rows_times_powers_of_two_are_exact_and_what_overflows_is_named() {
        let exponents = (0..9).map(|i| i % 5 - 2);
        for paths in [1, 2] {
            let (payload, times) = (small(paths), small(paths).with_rows_times(exponents.clone()).unwrap());
            let (before, after) = (payload.dequantise(), times.dequantise());
            for (k, (before, after)) in before.iter().zip(after).enumerate() {
                assert_eq!(after, before * 2f64.powi((k / 16) as i32 % 5 - 2));
            }
            let back = times.with_rows_times(exponents.clone().map(|e| -e)).unwrap();
            assert_eq!(back.bytes().as_slice(), payload.bytes().as_slice());
        }
        // What h alone could not hold.
        for exponent in [-18, 18] {
            let times = small(2).with_rows_times((0..9).map(|_| exponent)).unwrap();
            let expected = small(2).dequantise().into_iter().map(|w| w * 2f64.powi(exponent));
            assert!(times.dequantise().into_iter().eq(expected), "2^{exponent}");
            assert!(times.paths().all(|path| path.h.iter().chain(path.l.iter()).all(f16::is_normal)));
        }
        // What no power of two makes normal is left alone, or as far as it has to go.
        assert_eq!(shift(Some([-14, 3]), Some([-24, 0])), 0);
        assert_eq!(shift(Some([-14, 18]), Some([-24, 0])), -3);
        let error = small(2).with_rows_times((0..9).map(|i| if i == 4 { 40 } else { 0 })).unwrap_err();
        assert!(matches!(error, PayloadError::Scale { path: 0, vector: 'h', index: 4, .. }), "{error}");
    }
}
