use cudarc::driver::sys;

use super::{Cuda, Stream, check};
use crate::device::{DeviceError, Telemetry};

/// Recorded work that replays with one launch. It keeps the addresses it was recorded with: their owner must outlive it.
pub struct Graph {
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    cuda: Cuda,
    /// Bytes that one replay copies up and down.
    traffic: Telemetry,
}

// SAFETY: an executable graph may be launched from every thread; each launch binds the context first.
unsafe impl Send for Graph {}

impl Graph {
    /// Takes over a graph that a capture ended with.
    ///
    /// # Safety
    /// `graph` is a live graph that nobody else destroys.
    pub(super) unsafe fn new(
        cuda: &Cuda,
        graph: sys::CUgraph,
        traffic: Telemetry,
    ) -> Result<Self, DeviceError> {
        let mut executable = std::ptr::null_mut();
        // SAFETY: the caller hands over a live graph.
        let made = check("cuGraphInstantiate", unsafe {
            sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0)
        });
        if let Err(error) = made {
            // SAFETY: the graph is ours and was not made executable.
            unsafe { sys::cuGraphDestroy(graph) };
            return Err(error);
        }
        Ok(Self { graph, executable, cuda: cuda.clone(), traffic })
    }

    /// Queues one replay.
    pub fn replay(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.cuda.bind()?;
        let Telemetry { bytes_up, bytes_down, .. } = self.traffic;
        stream.count(Telemetry { launches: 1, bytes_up, bytes_down, ..Telemetry::default() });
        // SAFETY: both are alive.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.executable, stream.raw()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.cuda.bind().is_ok() {
            // SAFETY: both are ours and destroyed once.
            unsafe {
                sys::cuGraphExecDestroy(self.executable);
                sys::cuGraphDestroy(self.graph);
            }
        }
    }
}
