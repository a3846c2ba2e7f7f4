use super::linear::Site;

/// Reads, and may change, what flows through the decoder: one call for each linear input and each block output.
///
/// `x` holds whole rows of `width` numbers, one row a position. Inputs come in the order [`Site::ALL`] within a block.
pub trait Capture: Send {
    /// The input shared by the linear layers of `site`.
    fn linear_input(&mut self, layer: usize, site: Site, x: &[f32], width: usize) {
        let _ = (layer, site, x, width);
    }

    /// The residual stream after block `layer`; what is left in `x` goes on to the next block.
    fn block_output(&mut self, layer: usize, x: &mut [f32], width: usize) {
        let _ = (layer, x, width);
    }
}

/// Captures nothing.
pub struct NoCapture;

impl Capture for NoCapture {}

/// Row and column of the first NaN or infinity among rows of `width` numbers.
pub fn first_non_finite(x: &[f32], width: usize) -> Option<(usize, usize)> {
    x.iter().position(|v| !v.is_finite()).map(|at| (at / width, at % width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bad_number_is_named() {
        assert_eq!(first_non_finite(&[0.0, 1.0, f32::NAN, f32::INFINITY], 2), Some((1, 0)));
        assert_eq!(first_non_finite(&[0.0, f32::MAX], 1), None);
    }
}
