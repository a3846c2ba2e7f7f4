use std::sync::Arc;
use std::thread::JoinHandle;

use super::calibration::{Calibration, advance, capture_grams};
use super::device_calibration::{CaptureError, DeviceCalibration};
use super::encoder::Encoder;
use super::error::PackError;
use super::journal::{Journal, JournalError};
use super::observer::{Event, Observer};
use super::tensor::Grams;
use crate::device::{Device, DeviceError};
use crate::model::{Block, Decoder};

/// The calibration text on its way through the model, block by block.
pub struct Stream<'a> {
    calibration: Calibration,
    /// What enters block `at`: all positions x width.
    hidden: Arc<Vec<f32>>,
    at: usize,
    /// The device's memory for it, where the encoder has a device.
    on_device: Option<DeviceCalibration>,
    journal: Arc<Journal>,
    /// The stream on its way into the journal.
    writing: Option<JoinHandle<Result<(), JournalError>>>,
    observer: &'a dyn Observer,
}

impl<'a> Stream<'a> {
    /// Takes up the stream that the journal holds, where it enters no block behind `open`, the first with a tensor to
    /// encode; begins with the embedding elsewhere.
    pub fn open(
        calibration: Calibration,
        decoder: &Decoder,
        open: usize,
        encoder: &Encoder,
        journal: Arc<Journal>,
        observer: &'a dyn Observer,
    ) -> Result<Self, PackError> {
        let config = decoder.config();
        // A stream that enters a block behind an open one was left by a run whose tensors were since removed.
        let (at, hidden) = match journal.read_hidden(config.layers)?.filter(|(layer, _)| *layer <= open) {
            Some((layer, hidden)) => {
                let expected = calibration.windows.tokens().len() * config.hidden;
                if hidden.len() != expected {
                    let file = journal.folder().join(format!("hidden-{layer}.f32"));
                    let problem = format!("it holds {} numbers instead of {expected}", hidden.len());
                    return Err(JournalError::Damaged { file, problem }.into());
                }
                (layer, hidden)
            }
            None => (0, decoder.embed(calibration.windows.tokens())?),
        };
        let on_device = match encoder {
            Encoder::Reference | Encoder::Batch(Device::Host) => None,
            #[cfg(any(feature = "cuda", feature = "wgpu"))]
            Encoder::Batch(device) => match DeviceCalibration::new(device, config, &calibration) {
                Ok(on_device) => Some(on_device),
                Err(error) if error.is_unsupported() => {
                    observer.event(Event::Warning(&format!("calibration runs on the host: {error}")));
                    None
                }
                Err(error) => return Err(error.into()),
            },
        };
        let hidden = Arc::new(hidden);
        Ok(Self { calibration, hidden, at, on_device, journal, writing: None, observer })
    }

    /// The block that it enters.
    pub fn at(&self) -> usize {
        self.at
    }

    /// What the inputs of the block look like, in the order of [`Site::ALL`](crate::model::Site::ALL).
    pub fn grams(&mut self, block: &Block) -> Result<[Grams; 4], PackError> {
        if let Some(on_device) = &mut self.on_device {
            match on_device.capture_grams(block, &self.calibration, &self.hidden) {
                Ok(grams) => return Ok(grams),
                Err(CaptureError::Activation(error)) => return Err(error.into()),
                Err(CaptureError::Device(error)) => self.back_to_host(&error),
            }
        }
        Ok(capture_grams(block, &self.calibration, &self.hidden)?)
    }

    /// Goes through the block. What comes out is written into the journal while the run goes on.
    pub fn advance(&mut self, block: &Block) -> Result<(), PackError> {
        let next = match self.on_device.as_mut().map(|on_device| {
            let mut next = self.hidden.to_vec();
            on_device.advance(block, &mut next).map(|()| next)
        }) {
            Some(Ok(next)) => next,
            failed => {
                if let Some(Err(error)) = failed {
                    self.back_to_host(&error);
                }
                let mut next = self.hidden.to_vec();
                advance(block, &self.calibration, &mut next);
                next
            }
        };
        self.finish()?;
        (self.hidden, self.at) = (Arc::new(next), self.at + 1);
        let (journal, hidden, layer) = (self.journal.clone(), self.hidden.clone(), self.at);
        self.writing = Some(std::thread::spawn(move || journal.write_hidden(layer, &hidden)));
        Ok(())
    }

    /// Waits until what is being written is written.
    pub fn finish(&mut self) -> Result<(), PackError> {
        match self.writing.take() {
            Some(thread) => Ok(thread.join().expect("writing does not panic")?),
            None => Ok(()),
        }
    }

    fn back_to_host(&mut self, error: &DeviceError) {
        self.on_device = None;
        self.observer.event(Event::Warning(&format!("calibration goes on on the host: {error}")));
    }
}
