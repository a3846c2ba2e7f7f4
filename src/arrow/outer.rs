use std::sync::Arc;

use super::{Frame, FrameError, Params, Solution, Solutions, System, Telemetry, Vector};

/// Many gradients over one unchanged H: one frame, however many outer iterations.
pub struct OuterSequence {
    frame: Frame,
    telemetry: Telemetry,
}

impl OuterSequence {
    /// Builds the one frame.
    ///
    /// # Errors
    /// As [`Frame::build`].
    pub fn begin(system: &Arc<System>, params: &Params) -> Result<Self, FrameError> {
        let frame = Frame::build(system, params)?;
        Ok(Self { telemetry: frame.built(), frame })
    }

    /// The step of the next right-hand side (the negated gradient).
    ///
    /// # Errors
    /// As [`Frame::solve`].
    pub fn next(&mut self, rhs: &Vector) -> Result<Solution, FrameError> {
        let solution = self.frame.solve(rhs)?;
        self.telemetry += solution.telemetry;
        Ok(solution)
    }

    /// The steps of all right-hand sides at once, where they are known up front: one wide solve.
    ///
    /// # Errors
    /// As [`Frame::solve_many`].
    pub fn all(&mut self, rhs: &[Vector]) -> Result<Solutions, FrameError> {
        let solutions = self.frame.solve_many(rhs)?;
        self.telemetry += solutions.telemetry;
        Ok(solutions)
    }

    /// The sum so far; `frames` is 1.
    pub fn telemetry(&self) -> Telemetry {
        self.telemetry
    }
}
