use std::cell::Cell;
use std::sync::{Arc, PoisonError, RwLock};

use cudarc::driver::sys;

use super::{Cuda, Graph, check};
use crate::device::telemetry::Counters;
use crate::device::{DeviceError, Telemetry};

/// Read by captures, written by calls that spoil those of other threads.
static CAPTURES: RwLock<()> = RwLock::new(());

thread_local! {
    /// Whether this thread captures.
    static CAPTURING: Cell<bool> = const { Cell::new(false) };
}

/// Calls something that may wait for the whole context, such as giving back memory or a library's handle, while no thread
/// captures: the driver would end the captures of all. A capture itself must not call any such thing; where one does, the
/// driver says so as the capture ends.
pub(super) fn outside_captures<T>(call: impl FnOnce() -> T) -> T {
    let _alone = (!CAPTURING.get()).then(|| CAPTURES.write().unwrap_or_else(PoisonError::into_inner));
    call()
}

/// Says that this thread captures, until it is dropped.
struct Capturing;

impl Capturing {
    fn begin() -> Self {
        CAPTURING.set(true);
        Self
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        CAPTURING.set(false);
    }
}

/// A queue of work on a card: what is queued runs in order.
pub struct Stream {
    raw: sys::CUstream,
    cuda: Cuda,
    counters: Arc<Counters>,
}

// SAFETY: a stream may be used from every thread; each use binds the context first.
unsafe impl Send for Stream {}
// SAFETY: the driver locks a stream itself.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream with counters of its own.
    pub fn new(cuda: &Cuda) -> Result<Self, DeviceError> {
        Self::counting(cuda, Arc::new(Counters::of(cuda.0.counters.clone())), None)
    }

    /// One whose work goes before that of every other stream of a higher rank, and of those that have none, where they
    /// compete for the card; the card tells as many ranks apart as it can.
    pub fn ranked(cuda: &Cuda, rank: usize) -> Result<Self, DeviceError> {
        Self::counting(cuda, Arc::new(Counters::of(cuda.0.counters.clone())), Some(rank))
    }

    /// Another stream that counts together with this one.
    pub fn beside(&self) -> Result<Self, DeviceError> {
        Self::counting(&self.cuda, self.counters.clone(), None)
    }

    fn counting(cuda: &Cuda, counters: Arc<Counters>, rank: Option<usize>) -> Result<Self, DeviceError> {
        cuda.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: pointers to live locals.
        unsafe {
            // The greater a priority, the lower its number.
            check(
                "cuCtxGetStreamPriorityRange",
                sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest),
            )?;
            let of_rank = |rank: usize| i32::try_from(rank).map_or(least, |rank| least.min(greatest + rank));
            let priority = rank.map_or(least, of_rank);
            check("cuStreamCreateWithPriority", sys::cuStreamCreateWithPriority(&mut raw, flags, priority))?;
        }
        Ok(Self { raw, cuda: cuda.clone(), counters })
    }

    pub fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    /// What this stream, those beside it and their handles counted.
    pub fn telemetry(&self) -> Telemetry {
        self.counters.read()
    }

    /// Counts what the device cannot tell by itself: a factorisation, bytes that kernels move through pinned memory.
    pub fn count(&self, seen: Telemetry) {
        self.counters.add(seen);
    }

    /// Waits until everything queued so far is done. Errors of earlier kernels appear here.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.cuda.bind()?;
        // SAFETY: the stream is alive.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Lets what is queued here later wait for what `event` marks.
    pub fn wait_for(&self, event: &Event) -> Result<(), DeviceError> {
        self.cuda.bind()?;
        // SAFETY: both are alive.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) })
    }

    /// Records what `queue` puts on this stream, without running it, as a graph that is replayed with one launch.
    pub fn capture(&self, queue: impl FnOnce() -> Result<(), DeviceError>) -> Result<Graph, DeviceError> {
        self.cuda.bind()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let before = self.telemetry();
        let _others = CAPTURES.read().unwrap_or_else(PoisonError::into_inner);
        let _this = Capturing::begin();
        // SAFETY: the stream is alive; the graph that capture ends with is taken over by `Graph`, also after an error.
        unsafe {
            check("cuStreamBeginCapture", sys::cuStreamBeginCapture_v2(self.raw, mode))?;
            let queued = queue();
            let mut graph = std::ptr::null_mut();
            let ended = check("cuStreamEndCapture", sys::cuStreamEndCapture(self.raw, &mut graph));
            let graph = ended.and_then(|()| Graph::new(&self.cuda, graph, self.telemetry() - before));
            queued.and(graph)
        }
    }

    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.raw
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.cuda.bind().is_ok() {
            // SAFETY: created in `new`, destroyed once; work still queued is finished first.
            unsafe {
                sys::cuStreamSynchronize(self.raw);
                outside_captures(|| sys::cuStreamDestroy_v2(self.raw));
            }
        }
    }
}

/// A mark on a stream, with the time at which it was passed.
pub struct Event {
    raw: sys::CUevent,
    cuda: Cuda,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Event {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Event {}

impl Event {
    pub fn new(cuda: &Cuda) -> Result<Self, DeviceError> {
        cuda.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a pointer to a live local.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, 0) })?;
        Ok(Self { raw, cuda: cuda.clone() })
    }

    /// Marks the end of what is queued on `stream` so far.
    pub fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.cuda.bind()?;
        // SAFETY: both are alive.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.raw, stream.raw()) })
    }

    /// Waits until it was passed; not at all where it was never recorded.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.cuda.bind()?;
        // SAFETY: the event is alive.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// Milliseconds of device time from `earlier` to this event; waits for this one.
    pub fn milliseconds_since(&self, earlier: &Event) -> Result<f32, DeviceError> {
        self.cuda.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: both are alive; a pointer to a live local.
        unsafe {
            check("cuEventSynchronize", sys::cuEventSynchronize(self.raw))?;
            check(
                "cuEventElapsedTime",
                sys::cuEventElapsedTime_v2(&mut milliseconds, earlier.raw, self.raw),
            )?;
        }
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.cuda.bind().is_ok() {
            // SAFETY: created in `new`, destroyed once.
            unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
