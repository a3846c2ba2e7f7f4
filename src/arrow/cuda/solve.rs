use super::{CudaFrame, First};
use crate::arrow::Vector;
use crate::arrow::frame::{FrameError, Method};
use crate::device::cuda::Buffer;
use crate::device::{DeviceError, Telemetry};

impl CudaFrame {
    /// The step of one right-hand side.
    ///
    /// # Errors
    /// A right-hand side of another shape; whatever the device says.
    pub fn solve(&mut self, rhs: &Vector) -> Result<Vector, FrameError> {
        self.check(rhs)?;
        let m = self.layout.unknowns();
        self.rhs[..m].copy_from_slice(&rhs.row);
        self.rhs[m..].copy_from_slice(&rhs.border);
        let step = self.solve_in_place()?;
        Ok(Vector { row: step[..m].to_vec(), border: step[m..].to_vec() })
    }

    /// The right-hand side that [`Self::solve_in_place`] reads: pinned, rows first, then the border.
    pub fn rhs_mut(&mut self) -> &mut [f64] {
        &mut self.rhs
    }

    /// The step of the right-hand side in [`Self::rhs_mut`], rows first: one replay of a graph, nothing copied twice.
    ///
    /// # Errors
    /// A frame that is not factored; whatever the device says.
    pub fn solve_in_place(&mut self) -> Result<&[f64], FrameError> {
        self.ready()?;
        let queued = self.queue_step([self.rhs.address(), self.step.address()]);
        // The step is pinned and ours: nothing may still write to it when this returns.
        let waited = self.queue.stream.wait();
        queued.and(waited)?;
        // Kernels read and write pinned memory themselves.
        let bytes = (self.rhs.len() * size_of::<f64>()) as u64;
        self.queue.stream.count(Telemetry { bytes_up: bytes, bytes_down: bytes, ..Telemetry::default() });
        Ok(&self.step)
    }

    /// Queues the step of a right-hand side on the device, both rows first: nothing travels.
    pub(super) fn queue_between(&mut self, rhs: &Buffer<f64>, step: &Buffer<f64>) -> Result<(), FrameError> {
        self.ready()?;
        Ok(self.queue_step([rhs.address(), step.address()])?)
    }

    /// Triangular solves are queued as they are; everything else is recorded once and replayed.
    fn queue_step(&mut self, ends: [u64; 2]) -> Result<(), DeviceError> {
        if self.about.method == Method::TriangularSolves {
            return self.queue_solve(ends);
        }
        if self.graph.as_ref().is_none_or(|(known, _)| *known != ends) {
            let graph = self.queue.stream.capture(|| self.queue_solve(ends))?;
            self.graph = Some((ends, graph));
        }
        match &self.graph {
            Some((_, graph)) => graph.replay(&self.queue.stream),
            None => Ok(()),
        }
    }

    fn queue_solve(&self, [rhs, step]: [u64; 2]) -> Result<(), DeviceError> {
        match &self.first {
            First::Rows(rows) => {
                let parts = (&self.layout, &self.rows, &self.core, self.tuning);
                rows.queue_solve(&self.queue, parts, [rhs, step])
            }
            First::Border(border) => {
                let parts = (&self.layout, &self.rows, &self.products, &self.core);
                border.queue_solve(&self.queue, parts, [self.sides(rhs), self.sides(step)], None)
            }
        }
    }
}
