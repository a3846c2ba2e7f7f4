use super::best::Best;
use super::block::TunedBlock;
use super::linear::Form;
use super::room::placed;
use super::{TuneError, TuneParams};
use crate::device::DeviceError;
use crate::device::arena::View;
use crate::model::Config;

/// The most numbers that one arena holds.
const LARGEST_ARENA: usize = u32::MAX as usize;

/// Where a block, its windows and their errors lie.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub block: TunedBlock,
    pub best: Best,
    /// Windows that go through the block together; a step may take several rounds.
    pub at_once: usize,
    /// Inputs and targets of all windows, where there is room for them; else they travel for every step.
    pub resident: Option<[View; 2]>,
    /// The squared error of each position, a row a window.
    pub errors: View,
    /// What the error of each position counts, the same way.
    pub weights: View,
    /// Numbers in all.
    pub len: usize,
}

/// A model, one of its blocks, and what that is made of.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub config: &'a Config,
    pub layer: usize,
    pub forms: &'a [Form; 7],
}

/// How many windows of how many positions.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub positions: usize,
    pub windows: usize,
}

/// Bytes on a device that tuning a block of these forms takes, where it has all the room that an arena can use (16 GiB);
/// cuBLAS takes 32 MiB beside it.
pub fn working_set(
    config: &Config,
    forms: &[Form; 7],
    params: &TuneParams,
    extent: Extent,
) -> Result<u64, TuneError> {
    let plan = Plan::new(Subject { config, layer: 0, forms }, params, extent, LARGEST_ARENA)?;
    Ok(plan.len as u64 * size_of::<f32>() as u64)
}

impl Plan {
    /// The plan that does most at once in `room` numbers: windows stay on the device if they can, and as many as fit go
    /// through the block together.
    ///
    /// # Errors
    /// The figure, where not even one window fits.
    pub fn new(
        subject: Subject<'_>,
        params: &TuneParams,
        extent: Extent,
        room: usize,
    ) -> Result<Self, TuneError> {
        let batch = (params.batch / extent.positions).clamp(1, extent.windows.max(1));
        let halves = || std::iter::successors(Some(batch), |n| (*n > 1).then(|| n.div_ceil(2)));
        let mut needed = 0;
        for resident in [true, false] {
            for at_once in halves() {
                let plan = Self::place(subject, params, extent, (at_once, resident))?;
                if plan.len <= room {
                    return Ok(plan);
                }
                needed = plan.len;
            }
        }
        let (layer, positions) = (subject.layer, extent.positions);
        let what = format!("tuning block {layer} with one window of {positions} positions");
        Err(DeviceError::memory(what, needed as u64 * 4, room as u64 * 4).into())
    }

    fn place(
        subject: Subject<'_>,
        params: &TuneParams,
        extent: Extent,
        (at_once, resident): (usize, bool),
    ) -> Result<Self, TuneError> {
        let Subject { config, layer, forms } = subject;
        let rows = extent.positions * extent.windows;
        let ((block, best, errors, weights, resident), len) = placed(|room| {
            let window = (extent.positions, at_once);
            let block = TunedBlock::place(room, (config, layer), forms, &params.rates, window)?;
            let best = Best::place(room, block.trained());
            let [errors, weights] = [(); 2].map(|()| room.kept.matrix(extent.windows, extent.positions));
            let resident = resident.then(|| [(); 2].map(|()| room.kept.matrix(rows, config.hidden)));
            Ok((block, best, errors, weights, resident))
        })?;
        Ok(Self { block, best, at_once, resident, errors, weights, len })
    }
}
