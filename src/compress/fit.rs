//! Whether a device has room for a model's tensors, asked before a run starts.

use super::plan::Assignment;
use super::recipe::Recipe;
use super::schedule::{alone, forms, most};
use super::tune::{TuneError, Tuner, check_sensitivities};
use crate::device::{Device, DeviceError};
use crate::model::{Config, LinearName};

#[derive(Debug, thiserror::Error)]
pub enum FitError {
    #[error(
        "{tensor} ({rows}x{cols}, {paths} x rank {rank}) alone needs {needed_mib} MiB on {device}, which has \
         {free_mib} MiB for it: pack with --device host, or keep the tensor dense (--plan)"
    )]
    NoRoom {
        tensor: String,
        rows: usize,
        cols: usize,
        paths: usize,
        rank: usize,
        device: String,
        needed_mib: usize,
        free_mib: usize,
    },
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Refuses a model with a tensor that the device has no room for even alone. Batches of several are cut to what fits.
///
/// `assignments` is the resolved plan. What no device encodes (a rank above its kernels', a side below 8) asks for no
/// room.
pub fn check_fits(
    device: &Device,
    recipe: &Recipe,
    config: &Config,
    assignments: &[[Assignment; 7]],
) -> Result<(), FitError> {
    // One arena is addressed by 32 bits.
    let free = most(device)?.min(u32::MAX as usize);
    for (layer, block) in assignments.iter().enumerate() {
        for (name, assignment) in LinearName::ALL.into_iter().zip(block) {
            let Assignment::Pack(budget) = assignment else { continue };
            let [rows, cols] = name.shape(config);
            for (paths, rank) in forms(recipe, (rows, cols), *budget).into_iter().flatten() {
                let needed = alone(device, (rows, cols), (paths, rank));
                if needed > free {
                    let (tensor, device, rank) = (name.prefix(layer), device.name(), rank.rank);
                    let (needed_mib, free_mib) = ((4 * needed).div_ceil(1 << 20), (4 * free) >> 20);
                    return Err(FitError::NoRoom {
                        tensor,
                        rows,
                        cols,
                        paths,
                        rank,
                        device,
                        needed_mib,
                        free_mib,
                    });
                }
            }
        }
    }
    Ok(())
}

/// Where gradients are found beside an encoder. The host's will do for what outputs count; tuning on it would take hours, so that
/// is an error of the encoder's device.
pub(super) fn gradient_device<'a>(recipe: &Recipe, device: &'a Device) -> &'a Device {
    if Tuner::takes(device).is_ok() || recipe.tunes() { device } else { &Device::Host }
}

/// Refuses a recipe for which what outputs count cannot be found beside an encoder on this device, in windows of so many
/// tokens of text.
pub fn check_outputs_count(
    device: &Device,
    recipe: &Recipe,
    config: &Config,
    window: usize,
) -> Result<(), TuneError> {
    if recipe.output_weights == 0.0 {
        return Ok(());
    }
    check_sensitivities(gradient_device(recipe, device), config, positions(config, window))
}

/// Those of a window of some tokens, the start token included.
pub(super) fn positions(config: &Config, window: usize) -> usize {
    window + usize::from(config.start_token().is_some())
}
