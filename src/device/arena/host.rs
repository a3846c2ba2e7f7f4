use super::View;
use crate::device::DeviceError;

/// The arena of the host.
pub(super) struct HostArena {
    numbers: Vec<f32>,
}

impl HostArena {
    pub fn new(len: usize) -> Result<Self, DeviceError> {
        let mut numbers = Vec::new();
        let bytes = (len * size_of::<f32>()) as u64;
        if numbers.try_reserve_exact(len).is_err() {
            return Err(DeviceError::memory("the arena", bytes, 0));
        }
        numbers.resize(len, 0.0);
        Ok(Self { numbers })
    }

    pub fn write(&mut self, at: usize, values: &[f32]) {
        self.numbers[at..at + values.len()].copy_from_slice(values);
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<f32> {
        self.numbers[at..at + len].to_vec()
    }

    pub fn memory(&mut self) -> Memory {
        Memory { numbers: self.numbers.as_mut_ptr(), len: self.numbers.len() }
    }
}

/// The numbers of a host arena, for ops that read some views and write others, many items at the same time.
#[derive(Clone, Copy)]
pub struct Memory {
    numbers: *mut f32,
    len: usize,
}

// SAFETY: plain memory; who may touch what is promised at `slice` and `slice_mut`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Address of the first entry of a view.
    ///
    /// # Panics
    /// When the view reaches past the end.
    pub fn pointer(self, view: View) -> *mut f32 {
        assert!(view.at + view.span() <= self.len, "{view:?} of {} numbers", self.len);
        // SAFETY: inside the allocation.
        unsafe { self.numbers.add(view.at) }
    }

    /// Row `i` of a view.
    ///
    /// # Safety
    /// The arena is alive, and nobody writes to this row while the slice is used.
    pub unsafe fn row<'a>(self, view: View, i: usize) -> &'a [f32] {
        // SAFETY: a part of the view lies inside the allocation; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.pointer(view.part((i, 0), (1, view.cols))), view.cols) }
    }

    /// Row `i` of a view, for writing.
    ///
    /// # Safety
    /// The arena is alive, and nobody else touches this row while the slice is used.
    pub unsafe fn row_mut<'a>(self, view: View, i: usize) -> &'a mut [f32] {
        // SAFETY: as for `row`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(view.part((i, 0), (1, view.cols))), view.cols) }
    }
}

/// The numbers that memory allows now: what Linux calls available, or without a limit elsewhere.
pub(super) fn room() -> usize {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = available.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<usize>().ok());
    kib.map_or(usize::MAX, |kib| kib * 1024 / size_of::<f32>())
}
