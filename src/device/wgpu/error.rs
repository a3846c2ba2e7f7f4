use std::sync::{Arc, Mutex};

use crate::device::DeviceError;

/// What went wrong outside of any call that could return it: a lost device stays lost.
#[derive(Default)]
pub(super) struct Failures(Mutex<Option<DeviceError>>);

impl Failures {
    /// Listens to a device.
    pub fn watch(device: &wgpu::Device) -> Arc<Self> {
        let failures = Arc::<Self>::default();
        let uncaptured = failures.clone();
        device
            .on_uncaptured_error(Arc::new(move |error: wgpu::Error| uncaptured.keep(typed("wgpu", &error))));
        let gone = failures.clone();
        device.set_device_lost_callback(move |reason, text| {
            // Told when the last user lets go of it, too.
            if reason != wgpu::DeviceLostReason::Destroyed {
                gone.keep(lost("wgpu", text));
            }
        });
        failures
    }

    /// The first failure, for as long as the device is open.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).clone().map_or(Ok(()), Err)
    }

    fn keep(&self, error: DeviceError) {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
    }
}

pub(super) fn typed(call: &'static str, error: &wgpu::Error) -> DeviceError {
    match error {
        wgpu::Error::OutOfMemory { .. } => {
            DeviceError::Call { call, code: "out of memory".to_owned(), text: error.to_string() }
        }
        other => self::call(call, other.to_string()),
    }
}

pub(super) fn call(call: &'static str, text: String) -> DeviceError {
    DeviceError::Call { call, code: "refused".to_owned(), text }
}

pub(super) fn lost(call: &'static str, text: String) -> DeviceError {
    DeviceError::Lost { call, code: "device lost".to_owned(), text }
}
