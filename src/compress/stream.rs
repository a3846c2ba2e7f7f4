use super::calibration::Calibration;
use super::device_calibration::{CaptureError, DeviceCalibration};
use super::encoder::Encoder;
use super::error::PackError;
use super::observer::{Event, Observer};
use super::streams::{Blocks, SiteGrams, Streams};
use crate::device::{Device, DeviceError};
use crate::model::{Decoder, Site};

/// The calibration text on its way through the model, block by block, on the encoder's device or on the host.
///
/// A run that is taken up again goes through the blocks that are finished once more: that costs a fraction of encoding
/// them, and no more than the journal of tensors has to be kept.
pub struct Stream<'a> {
    calibration: Calibration,
    /// Where the original runs beside the packed model.
    original: Option<Decoder>,
    ground: Ground,
    /// The block that it enters.
    at: usize,
    observer: &'a dyn Observer,
}

enum Ground {
    Host(Streams),
    Device(Box<DeviceCalibration>),
}

impl<'a> Stream<'a> {
    /// Begins with the embedding of the text; `original` is the model as it was, where it is to run too.
    pub fn open(
        calibration: Calibration,
        decoder: &Decoder,
        original: Option<Decoder>,
        encoder: &Encoder,
        observer: &'a dyn Observer,
    ) -> Result<Self, PackError> {
        let embedded = decoder.embed(calibration.windows.tokens())?;
        let on_host = |embedded| Ground::Host(Streams::new(embedded, original.is_some()));
        let ground = match encoder {
            Encoder::Reference | Encoder::Batch(Device::Host) => on_host(embedded),
            #[cfg(any(feature = "cuda", feature = "wgpu"))]
            Encoder::Batch(device) => {
                let (config, two) = (decoder.config(), original.is_some());
                match DeviceCalibration::new(device, config, &calibration, &embedded, two) {
                    Ok(on_device) => Ground::Device(Box::new(on_device)),
                    Err(error) if error.is_unsupported() => {
                        observer.event(Event::Warning(&format!("calibration runs on the host: {error}")));
                        on_host(embedded)
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        };
        Ok(Self { calibration, original, ground, at: 0, observer })
    }

    /// What the inputs of the block that it enters look like at some sites. `decoder` holds the blocks packed so far.
    pub fn grams(&mut self, decoder: &Decoder, sites: &[Site]) -> Result<SiteGrams, PackError> {
        let here = blocks(decoder, &self.original, self.at);
        let error = match &mut self.ground {
            Ground::Host(streams) => return Ok(streams.capture_grams(here, &self.calibration, sites)?),
            Ground::Device(on_device) => match on_device.capture_grams(here, sites) {
                Ok(grams) => return Ok(grams),
                Err(CaptureError::Activation(error)) => return Err(error.into()),
                Err(CaptureError::Device(error)) => error,
            },
        };
        self.back_to_host(decoder, &error)?;
        self.grams(decoder, sites)
    }

    /// Goes through the block that it enters.
    pub fn advance(&mut self, decoder: &Decoder) -> Result<(), PackError> {
        let here = blocks(decoder, &self.original, self.at);
        let failed = match &mut self.ground {
            Ground::Host(streams) => {
                streams.advance(here, &self.calibration);
                None
            }
            Ground::Device(on_device) => on_device.advance(here).err(),
        };
        self.at += 1;
        match failed {
            Some(error) => self.back_to_host(decoder, &error),
            None => Ok(()),
        }
    }

    /// Starts again on the host, through all blocks before this one.
    fn back_to_host(&mut self, decoder: &Decoder, error: &DeviceError) -> Result<(), PackError> {
        self.observer.event(Event::Warning(&format!("calibration goes on on the host: {error}")));
        let embedded = decoder.embed(self.calibration.windows.tokens())?;
        let mut streams = Streams::new(embedded, self.original.is_some());
        for layer in 0..self.at {
            streams.advance(blocks(decoder, &self.original, layer), &self.calibration);
        }
        self.ground = Ground::Host(streams);
        Ok(())
    }
}

fn blocks<'a>(decoder: &'a Decoder, original: &'a Option<Decoder>, layer: usize) -> Blocks<'a> {
    Blocks { packed: decoder.block(layer), original: original.as_ref().map(|o| o.block(layer)) }
}
