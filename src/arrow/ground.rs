use std::sync::Arc;

use super::newton::{Linearisation, Problem};
use super::{
    Backend, Budget, Failure, Frame, FrameError, NewtonError, Params, Ridge, System, Telemetry, Vector,
};

/// What a Newton loop knows of a point.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sight {
    /// φ(z).
    pub value: f64,
    /// ‖∇φ(z)‖.
    pub gradient_norm: f64,
    /// ‖z‖.
    pub point_norm: f64,
}

/// What a try came to.
pub(super) enum Attempt {
    NotPositiveDefinite(Failure),
    /// The step leaves the range of f64.
    Overflow,
    /// φ at the point that the step leads to, and the reduction that the undamped model predicts.
    Candidate {
        value: f64,
        predicted: f64,
    },
}

/// Where point, gradient, step and frame of a Newton loop live: the loop sees scalars alone.
pub(super) trait Ground {
    fn here(&self) -> Sight;

    /// Tries the step of a ridge; the candidate is kept until the next try.
    fn attempt(&mut self, ridge: Ridge) -> Result<Attempt, NewtonError>;

    /// Moves the point to the candidate; the gradient stays that of the point before until it is asked for.
    fn advance(&mut self);

    /// ∇φ at the point, beside an H that stays.
    fn refresh_gradient(&mut self, tries: u32) -> Result<(), NewtonError>;

    /// ∇φ and H at the point.
    fn linearise(&mut self, tries: u32) -> Result<(), NewtonError>;

    /// The point, and what the run counted.
    fn end(self: Box<Self>) -> Result<(Vector, Telemetry), NewtonError>;
}

/// Any problem, assembled on the host; only its frames may be elsewhere.
pub(super) struct Assembled<'a> {
    problem: &'a mut dyn Problem,
    backend: Backend,
    budget: Budget,
    here: Sight,
    z: Vector,
    gradient: Vector,
    hessian: Arc<System>,
    candidate: Option<(Vector, f64)>,
    frame: Option<(Arc<System>, Frame)>,
    telemetry: Telemetry,
}

impl<'a> Assembled<'a> {
    pub fn start(
        problem: &'a mut dyn Problem,
        z: Vector,
        (backend, budget): (Backend, Budget),
    ) -> Result<Self, NewtonError> {
        let value = problem.objective(&z);
        if !value.is_finite() {
            return Err(NewtonError::Start { value });
        }
        let Linearisation { gradient, hessian } =
            problem.linearise(&z).map_err(|source| NewtonError::Problem { tries: 0, source })?;
        let here = Sight { value, gradient_norm: gradient.norm(), point_norm: z.norm() };
        let (candidate, frame, telemetry) = (None, None, Telemetry::default());
        Ok(Self { problem, backend, budget, here, z, gradient, hessian, candidate, frame, telemetry })
    }

    /// A frame of the present H and this ridge; or the block that is not positive definite.
    fn prepare(&mut self, ridge: Ridge) -> Result<Option<Failure>, NewtonError> {
        if let Some((system, frame)) = &self.frame
            && Arc::ptr_eq(system, &self.hessian)
            && frame.ridge() == ridge
        {
            return Ok(None);
        }
        // The old frame goes first: two of them may not fit.
        self.frame = None;
        let params = Params { ridge, backend: self.backend.clone(), budget: self.budget };
        match Frame::build(&self.hessian, &params) {
            Ok(frame) => {
                self.telemetry += frame.built();
                self.frame = Some((self.hessian.clone(), frame));
                Ok(None)
            }
            Err(FrameError::NotPositiveDefinite { block, index, pivot, .. }) => {
                Ok(Some(Failure { block, index, pivot, ridge }))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// `−gᵀδ − ½ δᵀHδ` of the undamped model. With `(H + R)δ = −g` it is `½(δᵀRδ − gᵀδ)`, R being the ridge.
    fn predicted(&self, ridge: Ridge, step: &Vector) -> f64 {
        let h = self.hessian.diagonal();
        let damping = |h: &[f64], step: &[f64], on: &dyn Fn(f64) -> f64| {
            h.iter().zip(step).map(|(h, s)| on(*h) * s * s).sum::<f64>()
        };
        let rows = damping(&h.row, &step.row, &|h| ridge.on_row(h));
        let border = damping(&h.border, &step.border, &|h| ridge.on_border(h));
        0.5 * (rows + border - self.gradient.dot(step))
    }
}

impl Ground for Assembled<'_> {
    fn here(&self) -> Sight {
        self.here
    }

    fn attempt(&mut self, ridge: Ridge) -> Result<Attempt, NewtonError> {
        if let Some(failure) = self.prepare(ridge)? {
            return Ok(Attempt::NotPositiveDefinite(failure));
        }
        let Some((_, frame)) = &mut self.frame else { return Ok(Attempt::Overflow) };
        let step = match frame.solve(&self.gradient.scaled(-1.0)) {
            Ok(solution) => {
                self.telemetry += solution.telemetry;
                solution.step
            }
            Err(FrameError::Overflow { .. }) => return Ok(Attempt::Overflow),
            Err(error) => return Err(error.into()),
        };
        let candidate = self.problem.retract(&self.z, &step);
        let value = self.problem.objective(&candidate);
        self.candidate = Some((candidate, value));
        Ok(Attempt::Candidate { value, predicted: self.predicted(ridge, &step) })
    }

    fn advance(&mut self) {
        if let Some((z, value)) = self.candidate.take() {
            self.here = Sight { value, point_norm: z.norm(), ..self.here };
            self.z = z;
        }
    }

    fn refresh_gradient(&mut self, tries: u32) -> Result<(), NewtonError> {
        let gradient = self.problem.gradient(&self.z);
        self.gradient = gradient.map_err(|source| NewtonError::Problem { tries, source })?;
        self.here.gradient_norm = self.gradient.norm();
        Ok(())
    }

    fn linearise(&mut self, tries: u32) -> Result<(), NewtonError> {
        let linearisation = self.problem.linearise(&self.z);
        let Linearisation { gradient, hessian } =
            linearisation.map_err(|source| NewtonError::Problem { tries, source })?;
        (self.gradient, self.hessian) = (gradient, hessian);
        self.here.gradient_norm = self.gradient.norm();
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<(Vector, Telemetry), NewtonError> {
        Ok((self.z, self.telemetry))
    }
}
