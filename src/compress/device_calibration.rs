//! Calibration on a device: the block's forward and the sums of its Grams stay there, chunk by chunk.

use faer::{Mat, MatRef};
use rayon::prelude::*;

use super::calibration::{ActivationError, Calibration, batch_len};
use super::tensor::Grams;
use crate::device::arena::{Arena, Layout, View};
use crate::device::{Device, DeviceError};
use crate::model::on_device::{DeviceBlock, ForwardError};
use crate::model::{Block, Config, Site};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::non_finite::{NonFinite, non_finite};

/// Largest difference of an entry of a Gram from the host's, relative to its largest entry.
///
/// A sum of T products in f32 is off by about sqrt(T)·2⁻²⁴ of its size, 4e-6 at a chunk of 4,096; the activations by
/// what their own sums of up to 11,008 products leave, 1e-5 after a block. Ten times that.
pub const GRAM_TOLERANCE: f64 = 1e-4;

/// ‖difference‖/‖stream‖ of the residual stream after a block against the host's: chained f32 sums as above.
pub const STREAM_TOLERANCE: f64 = 1e-4;

/// The arena of a calibration run: one for all blocks.
///
/// Rows go through in chunks of whole windows, as many as on the host where memory allows and fewer where it does not;
/// the sums of Grams are rounded by chunk, everything else does not depend on their size.
pub struct DeviceCalibration {
    arena: Arena,
    places: Places,
}

/// Why inputs were not captured.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error(transparent)]
    Activation(#[from] ActivationError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Where everything lies.
#[derive(Clone, Copy)]
struct Places {
    block: DeviceBlock,
    /// Sums of Grams in the order of [`Site::ALL`], lower triangles.
    grams: [View; 4],
    /// For each position of one part, the first column that is not finite.
    bad: [usize; 4],
}

impl Places {
    fn plan(
        layout: &mut Layout,
        config: &Config,
        calibration: &Calibration,
        windows: usize,
    ) -> Result<Self, ForwardError> {
        let positions = calibration.windows.positions;
        let longest = calibration.fit.max(calibration.heldout) * positions;
        let grams = Site::ALL.map(|site| {
            let [_, width] = site.linears()[0].shape(config);
            layout.matrix(width, width)
        });
        let bad = Site::ALL.map(|_| layout.vector(longest));
        let block = DeviceBlock::place(layout, config, positions, windows)?;
        Ok(Self { block, grams, bad })
    }
}

impl DeviceCalibration {
    /// Memory on a device for the calibration of any block of a model.
    ///
    /// Errors: what one window needs, where there is not that much.
    pub fn new(device: &Device, config: &Config, calibration: &Calibration) -> Result<Self, ForwardError> {
        let positions = calibration.windows.positions;
        let largest = Arena::largest(device)?;
        let numbers = |windows: usize| -> Result<usize, ForwardError> {
            let mut layout = Layout::default();
            Places::plan(&mut layout, config, calibration, windows)?;
            Ok(layout.most())
        };
        let mut windows = batch_len(positions, 1).min(calibration.windows.tokens().len()) / positions;
        while windows > 1 && numbers(windows)? > largest {
            windows -= 1;
        }
        let mut layout = Layout::default();
        let places = Places::plan(&mut layout, config, calibration, windows)?;
        if layout.most() > largest {
            let what = format!("a block with one calibration window of {positions} positions");
            let [needed, free] = [layout.most(), largest].map(|numbers| numbers as u64 * 4);
            return Err(DeviceError::memory(what, needed, free).into());
        }
        let mut arena = Arena::new(device, layout.most())?;
        places.block.prepare(&mut arena);
        Ok(Self { arena, places })
    }

    /// What [`capture_grams`](super::calibration::capture_grams) gives, summed in f32 on the device.
    pub fn capture_grams(
        &mut self,
        block: &Block,
        calibration: &Calibration,
        hidden: &[f32],
    ) -> Result<[Grams; 4], CaptureError> {
        let window = calibration.windows.positions * self.width();
        let (fit, heldout) = hidden.split_at(calibration.fit * window);
        self.places.block.load(&mut self.arena, block);
        let fit_sums = self.collect(block.layer(), fit, 0)?;
        let heldout_sums = self.collect(block.layer(), heldout, fit.len() / self.width())?;
        let mut pairs = fit_sums.into_iter().zip(heldout_sums).map(|(fit, heldout)| Grams { fit, heldout });
        Ok(Site::ALL.map(|_| pairs.next().expect("one pair a site")))
    }

    /// Runs the block over all calibration positions, in place, as [`advance`](super::calibration::advance).
    pub fn advance(&mut self, block: &Block, hidden: &mut [f32]) -> Result<(), DeviceError> {
        let Places { block: room, .. } = self.places;
        let width = self.width();
        room.load(&mut self.arena, block);
        for chunk in hidden.chunks_mut(room.most_rows() * width) {
            let rows = chunk.len() / width;
            let stream = room.stream(rows);
            self.arena.write(stream.at, chunk);
            room.inputs(&mut self.arena, rows);
            room.finish(&mut self.arena, rows);
            chunk.copy_from_slice(&self.arena.read(stream.at, stream.len())?);
        }
        Ok(())
    }

    /// Width of the residual stream.
    fn width(&self) -> usize {
        self.places.block.stream(0).cols
    }

    /// Grams of one part of the positions; `first` is the first of them.
    fn collect(&mut self, layer: usize, part: &[f32], first: usize) -> Result<[Mat<f64>; 4], CaptureError> {
        let Places { block: room, grams, bad } = self.places;
        let (arena, width) = (&mut self.arena, room.stream(0).cols);
        let count = part.len() / width;
        for (index, chunk) in part.chunks(room.most_rows() * width).enumerate() {
            let (rows, before) = (chunk.len() / width, index * room.most_rows());
            arena.write(room.stream(rows).at, chunk);
            room.inputs(arena, rows);
            let inputs = Site::ALL.map(|site| room.site(site, rows));
            let searches =
                Site::ALL.map(|s| NonFinite { a: inputs[s as usize], out: bad[s as usize] + before });
            non_finite(arena, &searches);
            let beta = if index == 0 { 0.0 } else { 1.0 };
            let product = |x: View, sum: View| Gemm::new(x, x, sum).a_transposed().lower().beta(beta);
            gemm(arena, &Site::ALL.map(|s| product(inputs[s as usize], grams[s as usize])));
        }
        let mut columns = [const { Vec::new() }; 4];
        let mut sums = [const { Mat::new() }; 4];
        for site in Site::ALL {
            columns[site as usize] = arena.read(bad[site as usize], count)?;
        }
        let widths = grams.map(|gram| gram.cols);
        if let Some((site, row, column)) = first_bad(&columns, widths, batch_len(room.window(), 1)) {
            return Err(ActivationError::at(layer, site, first + row, column).into());
        }
        for site in Site::ALL {
            let n = widths[site as usize];
            sums[site as usize] = symmetric(&arena.read(grams[site as usize].at, n * n)?, n, count);
        }
        Ok(sums)
    }
}

/// The first entry that is not finite, in the order in which the host comes by: batch, site, row.
fn first_bad(columns: &[Vec<f32>; 4], widths: [usize; 4], batch: usize) -> Option<(Site, usize, usize)> {
    (0..columns[0].len()).step_by(batch).find_map(|start| {
        Site::ALL.into_iter().find_map(|site| {
            let (columns, width) = (&columns[site as usize], widths[site as usize]);
            let rows = start..(start + batch).min(columns.len());
            let row = rows.into_iter().find(|row| (columns[*row] as usize) < width)?;
            Some((site, row, columns[row] as usize))
        })
    })
}

/// The lower triangle of a row-major n x n sum over `count` positions, divided and mirrored.
fn symmetric(lower: &[f32], n: usize, count: usize) -> Mat<f64> {
    let mut gram = vec![0.0; n * n];
    gram.par_chunks_exact_mut(n).enumerate().for_each(|(j, column)| {
        for (i, entry) in column.iter_mut().enumerate() {
            *entry = f64::from(lower[i.max(j) * n + i.min(j)]) / count as f64;
        }
    });
    MatRef::from_column_major_slice(&gram, n, n).to_owned()
}
