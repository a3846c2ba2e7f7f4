use super::{CudaFrame, Layout, Tuning};
use crate::arrow::Budget;
use crate::arrow::frame::FrameError;
use crate::device::cuda::Cuda;

/// One lane of a [`sweep`](crate::arrow::sweep()) on a card: its own streams, handles and buffers, kept warm for every
/// shape that it has met. Results depend on the fit alone: no kernel and no library call looks at what else runs.
pub struct Lane {
    cuda: Cuda,
    frames: Vec<CudaFrame>,
}

impl Lane {
    pub fn new(cuda: &Cuda) -> Self {
        Self { cuda: cuda.clone(), frames: Vec::new() }
    }

    /// The frame of this layout, to be factored and asked.
    ///
    /// # Errors
    /// Too little memory for a shape that is new to the lane; whatever the device says.
    pub fn frame(&mut self, layout: &Layout) -> Result<&mut CudaFrame, FrameError> {
        let at = match self.frames.iter().position(|frame| frame.layout() == layout) {
            Some(at) => at,
            None => {
                let frame = CudaFrame::new(&self.cuda, layout.clone(), Tuning::default(), Budget::Available)?;
                self.frames.push(frame);
                self.frames.len() - 1
            }
        };
        Ok(&mut self.frames[at])
    }
}
