use super::calibration::Calibration;
use super::device_calibration::{CaptureError, DeviceCalibration};
use super::encoder::Encoder;
use super::error::PackError;
use super::observer::{Event, Observer};
use super::streams::{Blocks, SiteGrams, Streams, Which};
use crate::device::{Device, DeviceError};
use crate::model::text::Windows;
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
    /// The block that it enters, and the one that the original's enters.
    at: usize,
    original_at: usize,
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
        Ok(Self { calibration, original, ground, at: 0, original_at: 0, observer })
    }

    /// What the inputs of the block that it enters look like at some sites. `decoder` holds the blocks packed so far.
    /// Beside the original's inputs, unless that has gone on already.
    pub fn grams(&mut self, decoder: &Decoder, sites: &[Site]) -> Result<SiteGrams, PackError> {
        let beside = self.original.as_ref().filter(|_| self.original_at == self.at);
        let original = beside.map(|original| original.block(self.at));
        let here = Blocks { packed: decoder.block(self.at), original };
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

    /// What the packed block gets and what it should give: the stream that enters it, and the original's that leaves the
    /// original block, to which it goes on unless it is there.
    pub fn pair(&mut self, decoder: &Decoder) -> Result<[Vec<f32>; 2], PackError> {
        let packed = self.read(Which::Packed, decoder)?;
        if self.original_at == self.at {
            self.advance_one(Which::Original, decoder)?;
        }
        Ok([packed, self.read(Which::Original, decoder)?])
    }

    /// The stream that enters the next block.
    pub fn entering(&mut self, decoder: &Decoder) -> Result<Vec<f32>, PackError> {
        self.read(Which::Packed, decoder)
    }

    /// Goes through the block that it enters, with what has not yet.
    pub fn advance(&mut self, decoder: &Decoder) -> Result<(), PackError> {
        if self.original.is_some() && self.original_at == self.at {
            self.advance_one(Which::Original, decoder)?;
        }
        self.advance_one(Which::Packed, decoder)
    }

    /// The original's stream behind its last block.
    pub fn end(&mut self, decoder: &Decoder) -> Result<Vec<f32>, PackError> {
        while self.original.as_ref().is_some_and(|original| self.original_at < original.config().layers) {
            self.advance_one(Which::Original, decoder)?;
        }
        self.read(Which::Original, decoder)
    }

    /// The windows that calibrate.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// The calibration, and the original's stream behind its last block for the windows beside it. What was held on the
    /// device makes room.
    pub fn more(self, encoder: &Encoder) -> Result<(Calibration, Vec<f32>), PackError> {
        let Self { mut calibration, original, ground, observer, .. } = self;
        drop(ground);
        let Some(original) = original.filter(|_| calibration.more.count() > 0) else {
            return Ok((calibration, Vec::new()));
        };
        let nothing = Windows::from_positions(Vec::new(), calibration.more.len, None);
        let more = std::mem::replace(&mut calibration.more, nothing.clone());
        let beside = Calibration { fit: more.count(), heldout: 0, windows: more, more: nothing };
        let mut stream = Self::open(beside, &original, None, encoder, observer)?;
        for _ in 0..original.config().layers {
            stream.advance_one(Which::Packed, &original)?;
        }
        let last = stream.read(Which::Packed, &original)?;
        calibration.more = stream.calibration.windows;
        Ok((calibration, last))
    }

    fn advance_one(&mut self, which: Which, decoder: &Decoder) -> Result<(), PackError> {
        let (model, at) = match (which, &self.original) {
            (Which::Original, Some(original)) => (original, &mut self.original_at),
            _ => (decoder, &mut self.at),
        };
        let block = model.block(*at);
        *at += 1;
        let failed = match &mut self.ground {
            Ground::Host(streams) => {
                streams.advance(which, block, &self.calibration);
                None
            }
            Ground::Device(on_device) => on_device.advance(which, block).err(),
        };
        match failed {
            Some(error) => self.back_to_host(decoder, &error),
            None => Ok(()),
        }
    }

    fn read(&mut self, which: Which, decoder: &Decoder) -> Result<Vec<f32>, PackError> {
        let error = match &mut self.ground {
            Ground::Host(streams) => return Ok(streams.of(which).cloned().unwrap_or_default()),
            Ground::Device(on_device) => match on_device.stream(which) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            },
        };
        self.back_to_host(decoder, &error)?;
        self.read(which, decoder)
    }

    /// Starts again on the host, through all blocks before this one.
    fn back_to_host(&mut self, decoder: &Decoder, error: &DeviceError) -> Result<(), PackError> {
        self.observer.event(Event::Warning(&format!("calibration goes on on the host: {error}")));
        let embedded = decoder.embed(self.calibration.windows.tokens())?;
        let mut streams = Streams::new(embedded, self.original.is_some());
        let mut go = |which, model: &Decoder, count| {
            (0..count).for_each(|layer| streams.advance(which, model.block(layer), &self.calibration));
        };
        go(Which::Packed, decoder, self.at);
        if let Some(original) = &self.original {
            go(Which::Original, original, self.original_at);
        }
        self.ground = Ground::Host(streams);
        Ok(())
    }
}
