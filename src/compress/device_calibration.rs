//! Calibration on a device: the streams, the block's forward and the sums of its Grams stay there.

use faer::Mat;
use rayon::prelude::*;

use super::calibration::Calibration;
use super::streams::{ActivationError, Blocks, SiteGrams, Which, batch_len};
use super::tensor::Grams;
use crate::device::arena::{Arena, Layout, View};
use crate::device::{Device, DeviceError};
use crate::model::on_device::{DeviceBlock, ForwardError};
use crate::model::{Block, Config, Site};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::non_finite::{NonFinite, non_finite};
use crate::ops::scale::{Scale, scale};

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
    packed: Lane,
    original: Option<Lane>,
    places: Places,
    fit_rows: usize,
    rows: usize,
}

/// One model's way through a block.
struct Lane {
    room: DeviceBlock,
    stream: Stream,
}

/// The residual stream of all calibration positions.
enum Stream {
    /// In the arena.
    Here(View),
    /// On the host, where the arena has no room for it: rows travel as they are needed.
    Host(Vec<f32>),
}

/// Why inputs were not captured.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error(transparent)]
    Activation(#[from] ActivationError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Sums in the order of [`Site::ALL`]; `None` where they were not asked for.
type BySite = [Option<Sums>; 4];

/// Where everything lies.
struct Places {
    /// In the order of the models: packed, original.
    blocks: Vec<DeviceBlock>,
    streams: Vec<Option<View>>,
    /// Sums of Grams in the order of [`Site::ALL`], lower triangles.
    grams: [View; 4],
    /// Sums of cross moments.
    cross: Option<[View; 4]>,
    /// For each position of one part, the first column that is not finite.
    bad: [usize; 4],
}

/// How much of it goes at once.
#[derive(Clone, Copy)]
struct Extent {
    models: usize,
    /// Windows in a chunk
    windows: usize,
    /// Whether the streams are in the arena.
    streams: bool,
}

impl Places {
    fn plan(
        layout: &mut Layout,
        config: &Config,
        calibration: &Calibration,
        extent: Extent,
    ) -> Result<Self, ForwardError> {
        let positions = calibration.windows.positions;
        let longest = calibration.fit.max(calibration.heldout) * positions;
        let rows = calibration.windows.tokens().len();
        let stream = |layout: &mut Layout| extent.streams.then(|| layout.matrix(rows, config.hidden));
        let streams = (0..extent.models).map(|_| stream(layout)).collect();
        let mut moments = || {
            Site::ALL.map(|site| {
                let [_, width] = site.linears()[0].shape(config);
                layout.matrix(width, width)
            })
        };
        let grams = moments();
        let cross = (extent.models > 1).then(moments);
        let bad = Site::ALL.map(|_| layout.vector(longest));
        let block = |_| DeviceBlock::place(layout, config, positions, extent.windows);
        let blocks = (0..extent.models).map(block).collect::<Result<_, _>>()?;
        Ok(Self { blocks, streams, grams, cross, bad })
    }
}

impl DeviceCalibration {
    /// Memory on a device for the calibration of any block of a model, and the embedded text in it; with `two`, the
    /// original runs beside the packed model.
    ///
    /// Errors: what one window needs, where there is not that much.
    pub fn new(
        device: &Device,
        config: &Config,
        calibration: &Calibration,
        embedded: &[f32],
        two: bool,
    ) -> Result<Self, ForwardError> {
        let positions = calibration.windows.positions;
        let largest = Arena::largest(device)?.min(Arena::room(device)?);
        let numbers = |extent: Extent| -> Result<usize, ForwardError> {
            let mut layout = Layout::default();
            Places::plan(&mut layout, config, calibration, extent)?;
            Ok(layout.most())
        };
        let windows = batch_len(positions, 1).min(calibration.windows.tokens().len()) / positions;
        let mut extent = Extent { models: 1 + usize::from(two), windows, streams: true };
        while numbers(extent)? > largest && (extent.streams || extent.windows > 1) {
            match extent.streams {
                true => extent.streams = false,
                false => extent.windows -= 1,
            }
        }
        let mut layout = Layout::default();
        let places = Places::plan(&mut layout, config, calibration, extent)?;
        if layout.most() > largest {
            let what = format!("a block with one calibration window of {positions} positions");
            let [needed, free] = [layout.most(), largest].map(|numbers| numbers as u64 * 4);
            return Err(DeviceError::memory(what, needed, free).into());
        }
        let mut arena = Arena::new(device, layout.most())?;
        let mut lanes = places.blocks.iter().zip(&places.streams).map(|(room, stream)| {
            room.prepare(&mut arena);
            let stream = match stream {
                Some(view) => {
                    arena.write(view.at, embedded);
                    Stream::Here(*view)
                }
                None => Stream::Host(embedded.to_vec()),
            };
            Lane { room: *room, stream }
        });
        let packed = lanes.next().expect("one model at least");
        let original = lanes.next();
        drop(lanes);
        let (fit_rows, rows) = (calibration.fit * positions, calibration.windows.tokens().len());
        Ok(Self { arena, packed, original, places, fit_rows, rows })
    }

    /// What [`Streams::capture_grams`](super::streams::Streams::capture_grams) gives, summed in f32 on the device.
    pub fn capture_grams(&mut self, blocks: Blocks<'_>, sites: &[Site]) -> Result<SiteGrams, CaptureError> {
        self.load(blocks);
        let layer = blocks.packed.layer();
        let (fit, cross) = self.collect(layer, sites, (0, self.fit_rows))?;
        let (heldout, _) = self.collect(layer, sites, (self.fit_rows, self.rows))?;
        let mut grams = [const { None }; 4];
        grams.par_iter_mut().enumerate().for_each(|(s, grams)| {
            let (Some(fit), Some(heldout)) = (&fit[s], &heldout[s]) else { return };
            let cross = || cross[s].as_ref().map(Sums::mean);
            let (fit, (heldout, cross)) =
                rayon::join(|| fit.mirrored_mean(), || rayon::join(|| heldout.mirrored_mean(), cross));
            *grams = Some(Grams { fit, heldout, cross });
        });
        Ok(grams)
    }

    /// One stream goes through a block of its model.
    pub fn advance(&mut self, which: Which, block: &Block) -> Result<(), DeviceError> {
        let lane = match which {
            Which::Packed => Some(&mut self.packed),
            Which::Original => self.original.as_mut(),
        };
        let Some(lane) = lane else { return Ok(()) };
        lane.room.load(&mut self.arena, block);
        for start in (0..self.rows).step_by(lane.room.most_rows()) {
            let rows = lane.room.most_rows().min(self.rows - start);
            lane.enter(&mut self.arena, start, rows);
            lane.room.inputs(&mut self.arena, rows);
            lane.room.finish(&mut self.arena, rows);
            lane.leave(&mut self.arena, start, rows)?;
        }
        self.arena.finish()
    }

    /// One of the streams, as far as it has come; empty where that model does not run.
    pub fn stream(&mut self, which: Which) -> Result<Vec<f32>, DeviceError> {
        let lane = match which {
            Which::Packed => Some(&self.packed),
            Which::Original => self.original.as_ref(),
        };
        match lane.map(|lane| &lane.stream) {
            Some(Stream::Here(view)) => self.arena.read(view.at, view.len()),
            Some(Stream::Host(stream)) => Ok(stream.clone()),
            None => Ok(Vec::new()),
        }
    }

    fn load(&mut self, blocks: Blocks<'_>) {
        self.packed.room.load(&mut self.arena, blocks.packed);
        if let Some((lane, block)) = self.original.as_mut().zip(blocks.original) {
            lane.room.load(&mut self.arena, block);
        }
    }

    /// Grams and cross moments of one part of the positions.
    fn collect(
        &mut self,
        layer: usize,
        sites: &[Site],
        (first, end): (usize, usize),
    ) -> Result<(BySite, BySite), CaptureError> {
        let Places { grams, bad, .. } = self.places;
        let (arena, room) = (&mut self.arena, self.packed.room);
        let last = sites.iter().max().copied().unwrap_or(Site::Attention);
        let in_fit = first == 0;
        let beside = self.original.as_ref().zip(self.places.cross).filter(|_| in_fit);
        let count = end - first;
        for start in (first..end).step_by(room.most_rows()) {
            let rows = room.most_rows().min(end - start);
            self.packed.enter(arena, start, rows);
            room.inputs_to(last, arena, rows);
            let searches = sites.iter().map(|site| NonFinite {
                a: room.site(*site, rows),
                out: bad[*site as usize] + start - first,
            });
            non_finite(arena, &searches.collect::<Vec<_>>());
            let beta = if start == first { 0.0 } else { 1.0 };
            let square = |site: &Site| {
                let x = room.site(*site, rows);
                Gemm::new(x, x, grams[*site as usize]).a_transposed().lower().beta(beta)
            };
            gemm(arena, &sites.iter().map(square).collect::<Vec<_>>());
            if let Some((original, cross)) = &beside {
                original.enter(arena, start, rows);
                original.room.inputs_to(last, arena, rows);
                let mixed = |site: &Site| {
                    let (x, beside) = (room.site(*site, rows), original.room.site(*site, rows));
                    Gemm::new(beside, x, cross[*site as usize]).a_transposed().beta(beta)
                };
                gemm(arena, &sites.iter().map(mixed).collect::<Vec<_>>());
            }
        }
        let mut columns = Vec::new();
        for site in sites {
            columns.push(arena.read(bad[*site as usize], count)?);
        }
        let widths: Vec<usize> = sites.iter().map(|site| grams[*site as usize].cols).collect();
        if let Some((k, row)) = first_bad(&columns, &widths, batch_len(room.window(), 1)) {
            let column = columns[k][row] as usize;
            return Err(ActivationError::at(layer, sites[k], first + row, column).into());
        }
        let (mut sums, mut crosses) = ([const { None }; 4], [const { None }; 4]);
        for site in sites {
            let s = *site as usize;
            sums[s] = Some(Sums::read(arena, grams[s], count)?);
            if let Some((_, cross)) = &beside {
                crosses[s] = Some(Sums::read(arena, cross[s], count)?);
            }
        }
        Ok((sums, crosses))
    }
}

impl Lane {
    /// Rows of the stream on their way into the block.
    fn enter(&self, arena: &mut Arena, start: usize, rows: usize) {
        let room = self.room.stream(rows);
        match &self.stream {
            Stream::Here(view) => {
                scale(arena, &[Scale::new(view.part((start, 0), (rows, view.cols)), room)]);
            }
            Stream::Host(stream) => {
                arena.write(room.at, &stream[start * room.cols..(start + rows) * room.cols]);
            }
        }
    }

    /// Rows that left it.
    fn leave(&mut self, arena: &mut Arena, start: usize, rows: usize) -> Result<(), DeviceError> {
        let room = self.room.stream(rows);
        match &mut self.stream {
            Stream::Here(view) => {
                scale(arena, &[Scale::new(room, view.part((start, 0), (rows, view.cols)))]);
            }
            Stream::Host(stream) => {
                stream[start * room.cols..(start + rows) * room.cols]
                    .copy_from_slice(&arena.read(room.at, room.len())?);
            }
        }
        Ok(())
    }
}

/// The first entry that is not finite, as site and row, in the order in which the host comes by: batch, site, row.
fn first_bad(columns: &[Vec<f32>], widths: &[usize], batch: usize) -> Option<(usize, usize)> {
    let count = columns.first().map_or(0, Vec::len);
    (0..count).step_by(batch).find_map(|start| {
        columns.iter().zip(widths).enumerate().find_map(|(k, (columns, width))| {
            let rows = start..(start + batch).min(count);
            let row = rows.into_iter().find(|row| (columns[*row] as usize) < *width)?;
            Some((k, row))
        })
    })
}

/// Sums over `count` positions, n x n, row-major.
struct Sums {
    numbers: Vec<f32>,
    n: usize,
    count: usize,
}

impl Sums {
    fn read(arena: &mut Arena, from: View, count: usize) -> Result<Self, DeviceError> {
        Ok(Self { numbers: arena.read(from.at, from.len())?, n: from.cols, count })
    }

    /// The mean, of which only the lower triangle was summed.
    fn mirrored_mean(&self) -> Mat<f64> {
        self.divided(|i, j| (i.max(j), i.min(j)))
    }

    fn mean(&self) -> Mat<f64> {
        self.divided(|i, j| (i, j))
    }

    fn divided(&self, from: impl Fn(usize, usize) -> (usize, usize) + Sync) -> Mat<f64> {
        let mut mean = Mat::zeros(self.n, self.n);
        mean.par_col_iter_mut().enumerate().for_each(|(j, entries)| {
            for (i, entry) in entries.iter_mut().enumerate() {
                let (row, column) = from(i, j);
                *entry = f64::from(self.numbers[row * self.n + column]) / self.count as f64;
            }
        });
        mean
    }
}
