use super::core::Columns;
use super::{CudaFrame, First, border};
use crate::arrow::Vector;
use crate::arrow::frame::FrameError;
use crate::device::DeviceError;
use crate::device::cuda::{Buffer, Cuda, Event, Pinned};

/// Buffers for several right-hand sides at once.
pub(super) struct Wide {
    count: usize,
    rhs: Pinned<f64>,
    step: Pinned<f64>,
    rows: Buffer<f64>,
    border: Buffer<f64>,
    /// Solutions of the core, and what its corrections start from.
    x: Buffer<f64>,
    rest: Buffer<f64>,
    /// Products with factors.
    parts: Buffer<f64>,
    ready: Event,
}

impl Wide {
    fn new(cuda: &Cuda, count: usize, frame: &CudaFrame) -> Result<Self, DeviceError> {
        let (layout, order) = (&frame.layout, frame.core.order());
        let (m, p) = (layout.unknowns(), layout.border());
        let part = layout.keeps_factors().map_or(0, |(_, r)| layout.rows().count() * r);
        Ok(Self {
            count,
            rhs: Pinned::new(cuda, count * (m + p))?,
            step: Pinned::new(cuda, count * (m + p))?,
            rows: Buffer::new(cuda, count * m)?,
            border: Buffer::new(cuda, count * p)?,
            x: Buffer::new(cuda, count * order)?,
            rest: Buffer::new(cuda, count * order)?,
            parts: Buffer::new(cuda, count * part)?,
            ready: Event::new(cuda)?,
        })
    }

    fn columns<'a>(&'a self, v: &'a Buffer<f64>) -> Columns<'a> {
        Columns { count: self.count, v, x: &self.x, rest: &self.rest }
    }
}

impl CudaFrame {
    /// The steps of several right-hand sides in one wide solve, its corrections included.
    ///
    /// # Errors
    /// A right-hand side of another shape; a frame that is not factored; whatever the device says.
    pub fn solve_many(&mut self, rhs: &[Vector]) -> Result<Vec<Vector>, FrameError> {
        self.ready()?;
        rhs.iter().try_for_each(|rhs| self.check(rhs))?;
        let (m, p) = (self.layout.unknowns(), self.layout.border());
        if rhs.len() < 2 {
            return rhs.iter().map(|rhs| self.solve(rhs)).collect();
        }
        let (rows, border) = self.wide_rhs_mut(rhs.len())?;
        for (rhs, (row, beta)) in rhs.iter().zip(rows.chunks_exact_mut(m).zip(border.chunks_exact_mut(p))) {
            row.copy_from_slice(&rhs.row);
            beta.copy_from_slice(&rhs.border);
        }
        let (rows, border) = self.solve_wide()?;
        let steps = rows.chunks_exact(m).zip(border.chunks_exact(p));
        Ok(steps.map(|(row, border)| Vector { row: row.to_vec(), border: border.to_vec() }).collect())
    }

    /// The right-hand sides that [`Self::solve_wide`] reads, pinned: `count` x Σ d_i, and `count` x p.
    ///
    /// # Errors
    /// Too little memory; whatever the device says.
    pub fn wide_rhs_mut(&mut self, count: usize) -> Result<(&mut [f64], &mut [f64]), FrameError> {
        let m = self.layout.unknowns();
        let wide = match self.wide.take().filter(|wide| wide.count == count) {
            Some(wide) => wide,
            None => Wide::new(self.cuda(), count, self)?,
        };
        Ok(self.wide.insert(wide).rhs.split_at_mut(count * m))
    }

    /// The steps of what [`Self::wide_rhs_mut`] holds: `count` x Σ d_i, and `count` x p. With the rows first,
    ///
    /// ```text
    ///     U = L⁻¹b    V = b_β − YᵀU    X = S⁻¹V    X ← X + S⁻¹(V − S·X)    T = L⁻ᵀ(U − Y·X)
    /// ```
    ///
    /// with as many corrections of X as one right-hand side gets; with the border first likewise.
    ///
    /// # Errors
    /// A frame that is not factored; whatever the device says.
    pub fn solve_wide(&mut self) -> Result<(&[f64], &[f64]), FrameError> {
        self.ready()?;
        let m = self.layout.unknowns();
        let Some(wide) = &self.wide else { return Ok((&[], &[])) };
        let queued = self.queue_wide(wide);
        // Nothing may still use the pinned memory when this returns.
        let waits = [self.queue.stream.wait(), self.copies.wait()];
        queued?;
        waits.into_iter().collect::<Result<(), _>>()?;
        Ok(wide.step.split_at(wide.count * m))
    }

    fn queue_wide(&self, wide: &Wide) -> Result<(), DeviceError> {
        let (m, k) = (self.layout.unknowns(), wide.count);
        let (row_rhs, border_rhs) = wide.rhs.split_at(k * m);
        // SAFETY: `solve_wide` waits for both streams, whatever fails here.
        unsafe {
            wide.rows.queue_upload(&self.queue.stream, row_rhs)?;
            wide.border.queue_upload(&self.copies, border_rhs)?;
        }
        wide.ready.record(&self.copies)?;
        let rows = match &self.first {
            First::Rows(first) => {
                let parts = (&self.layout, &self.rows, &self.core, self.tuning);
                let columns = wide.columns(&wide.border);
                let x = first.queue_border(&self.queue, parts, (&wide.rows, &wide.ready), columns)?;
                self.queue_border_down(wide, x)?;
                first.queue_rows(&self.queue, parts, &wide.rows, (x, k))?;
                &wide.rows
            }
            First::Border(first) => {
                self.queue.stream.wait_for(&wide.ready)?;
                let parts = (&self.layout, &self.rows, &self.products, &self.core);
                let rhs = (wide.rows.address(), wide.border.address());
                // The rows' steps go where corrections are done with.
                let step = (wide.rest.address(), wide.border.address());
                let (columns, parts_at) = (wide.columns(&wide.rows), &wide.parts);
                let buffers = border::Wide { columns, border: &wide.border, parts: parts_at };
                first.queue_solve(&self.queue, parts, [rhs, step], Some(buffers))?;
                self.queue_border_down(wide, &wide.border)?;
                &wide.rest
            }
        };
        // SAFETY: as above.
        unsafe { rows.queue_download(&self.queue.stream, &wide.step, 0, k * m) }
    }

    /// The border goes down while the rows are finished.
    fn queue_border_down(&self, wide: &Wide, x: &Buffer<f64>) -> Result<(), DeviceError> {
        let (m, p, k) = (self.layout.unknowns(), self.layout.border(), wide.count);
        wide.ready.record(&self.queue.stream)?;
        self.copies.wait_for(&wide.ready)?;
        // SAFETY: `solve_wide` waits for both streams.
        unsafe { x.queue_download(&self.copies, &wide.step, k * m, k * p) }
    }
}
