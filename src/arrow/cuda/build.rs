use super::core::CoreError;
use super::{CudaFrame, DeviceSlabs, First, HostSlabs, Slabs};
use crate::arrow::frame::FrameError;
use crate::arrow::rows::not_positive;
use crate::arrow::{Block, Ridge};
use crate::device::cuda::Event;
use crate::device::{DeviceError, Telemetry};

impl CudaFrame {
    /// Factors `H + ridge`. Slabs on the device are only read.
    ///
    /// ```text
    ///     rows first:    L_i = chol(D_i + ρ)    Y_i = L_i⁻¹B_i    S = C + ρ − ΣY_iᵀY_i
    ///     border first:  C + ρ = E·Eᵀ    Z = L⁻¹·B·E⁻ᵀ    K = I − Z·Zᵀ
    ///     either:        the inverse of S or K by halves, scaled to a diagonal of ones
    /// ```
    ///
    /// A structured border is eliminated first where the rows are fewer. The 1-norm condition of the scaled matrix is
    /// known from both norms, and decides between the explicit inverse with 0, 1 or 2 corrections and triangular solves.
    ///
    /// # Errors
    /// Slabs of another shape; a block that is not positive definite; whatever the device says.
    pub fn factor(&mut self, slabs: Slabs<'_>, ridge: Ridge) -> Result<(), FrameError> {
        slabs.check(&self.layout)?;
        self.begin(ridge)?;
        match slabs {
            Slabs::Device(slabs) => self.factor_on_device(slabs, ridge),
            Slabs::Host(slabs) => self.factor_from_host(slabs, ridge),
        }
    }

    /// Factors what was sent from the host last, under another ridge: no slab travels.
    ///
    /// # Errors
    /// As [`Self::factor`]; nothing was sent before.
    pub fn refactor(&mut self, ridge: Ridge) -> Result<(), FrameError> {
        self.begin(ridge)?;
        let Some(sent) = self.sent.take() else { return Err(FrameError::NotFactored) };
        let result = self.factor_on_device(&sent, ridge);
        self.sent = Some(sent);
        result
    }

    /// Sends slabs without factoring them: [`Self::refactor`] does.
    pub(super) fn send(&mut self, slabs: HostSlabs<'_>) -> Result<(), FrameError> {
        Slabs::Host(slabs).check(&self.layout)?;
        self.factored = false;
        let sent = self.room_for(slabs)?;
        let queued = self.queue_slabs(&sent, slabs);
        let waits = [self.copies.wait(), self.queue.stream.wait()];
        self.sent = Some(sent);
        queued?;
        Ok(waits.into_iter().collect::<Result<(), _>>()?)
    }

    fn begin(&mut self, ridge: Ridge) -> Result<(), FrameError> {
        if !ridge.is_valid() {
            return Err(FrameError::Ridge { ridge });
        }
        self.factored = false;
        self.graph = None;
        self.core.record(&self.queue)?;
        self.about.ridge = ridge;
        self.about.condition = f64::NAN;
        Ok(())
    }

    fn factor_on_device(&mut self, slabs: &DeviceSlabs, ridge: Ridge) -> Result<(), FrameError> {
        let root = self.make_root(slabs, ridge);
        let queued = self.queue_build(slabs, ridge, root.is_ok(), None);
        let waited = self.queue.stream.wait();
        queued.and(waited)?;
        self.settle(root, ridge)
    }

    fn factor_from_host(&mut self, slabs: HostSlabs<'_>, ridge: Ridge) -> Result<(), FrameError> {
        let sent = self.room_for(slabs)?;
        let root = self.make_root(&sent, ridge);
        // The border travels on a second stream while the rows are eliminated.
        let queued = self.queue_slabs(&sent, slabs).and_then(|()| {
            self.copied.record(&self.copies)?;
            self.queue_build(&sent, ridge, root.is_ok(), Some(&self.copied))
        });
        // Nothing may still read the caller's slabs when this returns.
        let waits = [self.copies.wait(), self.queue.stream.wait()];
        self.sent = Some(sent);
        queued?;
        waits.into_iter().collect::<Result<(), _>>()?;
        self.settle(root, ridge)
    }

    fn room_for(&mut self, slabs: HostSlabs<'_>) -> Result<DeviceSlabs, FrameError> {
        let mut sent = match self.sent.take() {
            Some(sent) => sent,
            None => DeviceSlabs::new(self.cuda(), &self.layout)?,
        };
        sent.keep_structure(&self.layout, slabs);
        Ok(sent)
    }

    fn queue_slabs(&self, to: &DeviceSlabs, from: HostSlabs<'_>) -> Result<(), DeviceError> {
        // SAFETY: `factor_from_host` waits for both streams, whatever fails here.
        unsafe {
            to.row_hessian.queue_upload(&self.queue.stream, from.row_hessian)?;
            to.cross.queue_upload(&self.queue.stream, from.cross)?;
            to.basis.queue_upload(&self.queue.stream, from.basis)?;
            to.border.queue_upload(&self.copies, from.border)
        }
    }

    /// The root of a structured border; rows have none, and come first where both fail.
    fn make_root(&mut self, slabs: &DeviceSlabs, ridge: Ridge) -> Result<(), FrameError> {
        match &mut self.first {
            First::Rows(_) => Ok(()),
            First::Border(border) => border.make_root(&self.queue, &self.layout, slabs, ridge),
        }
    }

    /// Queues everything up to the inverse and its norms; without a root, the row blocks alone.
    fn queue_build(
        &self,
        slabs: &DeviceSlabs,
        ridge: Ridge,
        has_root: bool,
        border_follows: Option<&Event>,
    ) -> Result<(), DeviceError> {
        let parts = (&self.layout, &self.rows, &self.products, &self.core);
        self.rows.queue_factor(&self.queue, &slabs.row_hessian, ridge)?;
        match &self.first {
            _ if !has_root => Ok(()),
            First::Rows(rows) => {
                rows.queue(&self.queue, parts, (slabs, ridge), (self.tuning.panels, border_follows))
            }
            First::Border(border) => border.queue(&self.queue, parts, slabs),
        }
    }

    /// Reads the verdicts, rows before the border, and settles the method.
    fn settle(&mut self, root: Result<(), FrameError>, ridge: Ridge) -> Result<(), FrameError> {
        self.rows.settle(&self.queue, ridge)?;
        root?;
        let settled = self.core.settle(&self.queue);
        settled.map_err(|error| match (error, &self.first) {
            (CoreError::Device(error), _) => error.into(),
            (CoreError::Pivot(failed, height), First::Rows(_)) => not_positive(Block::Border, failed, height),
            (CoreError::Pivot(failed, _), First::Border(_)) => {
                self.rows.too_strong(&self.queue, failed, ridge)
            }
        })?;
        let (condition, factorisations) = match &self.first {
            First::Rows(_) => (self.core.condition, 0),
            First::Border(border) => (self.core.condition.max(border.condition()), border.factorisations()),
        };
        self.queue.stream.count(Telemetry { factorisations, ..Telemetry::default() });
        self.about.condition = condition;
        self.about.method = self.core.method;
        self.about.corrections = self.core.corrections;
        self.factored = true;
        Ok(())
    }
}
