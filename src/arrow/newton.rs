use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "cuda")]
use super::cuda::OnCard;
use super::ground::{Assembled, Attempt, Ground};
use super::step::{Damping, StepPolicy, Verdict};
use super::{Backend, Block, Budget, FrameError, Quadratic, Ridge, System, Telemetry, Vector};

type ProblemError = Box<dyn std::error::Error + Send + Sync>;

/// A function φ of `z = (t, β)` whose second derivative (or a model of it) has the shape of an arrow.
pub trait Problem {
    /// φ(z). NaN or infinity means that z is out of bounds: the step is rejected.
    fn objective(&mut self, z: &Vector) -> f64;

    /// ∇φ(z) and H(z). A problem whose H does not change hands out the same `Arc`, and frames are then shared.
    ///
    /// # Errors
    /// Whatever keeps the problem from being linearised; the run stops with it.
    fn linearise(&mut self, z: &Vector) -> Result<Linearisation, ProblemError>;

    /// ∇φ(z) alone, for steps that a kept frame serves.
    ///
    /// # Errors
    /// As [`Self::linearise`].
    fn gradient(&mut self, z: &Vector) -> Result<Vector, ProblemError> {
        Ok(self.linearise(z)?.gradient)
    }

    /// The point that a step leads to; `z + δ` unless the unknowns live on something curved.
    fn retract(&self, z: &Vector, step: &Vector) -> Vector {
        let mut next = z.clone();
        next.add_scaled(1.0, step);
        next
    }

    /// The quadratic that this is, if it is one: on a card its vectors then stay there from try to try.
    fn as_quadratic(&self) -> Option<&Quadratic> {
        None
    }
}

/// φ near a point: `φ(z + δ) ≈ φ(z) + gᵀδ + ½ δᵀHδ`.
pub struct Linearisation {
    pub gradient: Vector,
    pub hessian: Arc<System>,
}

/// When a gradient counts as zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    /// `‖∇φ(z)‖ ≤ tol·‖∇φ(z₀)‖`.
    RelativeGradient(f64),
    /// `‖∇φ(z)‖/(1 + ‖z‖) < tol`.
    PerUnknown(f64),
}

/// How long a frame serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reuse {
    /// As long as H and ridge are the same.
    SameHessian,
    /// Longer, while each accepted step shrinks the gradient to this share or less.
    WhileContracting(f64),
}

/// How the loop runs.
#[derive(Clone, Debug)]
pub struct NewtonParams {
    pub stop: Stop,
    pub damping: Damping,
    /// ρ of the first try.
    pub first_ridge: f64,
    /// What ρ does not decay below: 0, unless H is singular at every point (a free gauge), where a smaller ridge than
    /// this lets rounding choose the step.
    pub least_ridge: f64,
    /// Most tries, accepted or not.
    pub tries: u32,
    pub time: Option<Duration>,
    pub reuse: Reuse,
    pub backend: Backend,
    pub budget: Budget,
}

impl Default for NewtonParams {
    fn default() -> Self {
        Self {
            stop: Stop::RelativeGradient(1e-9),
            damping: Damping::Relative,
            first_ridge: 0.0,
            least_ridge: 0.0,
            tries: 200,
            time: None,
            reuse: Reuse::SameHessian,
            backend: Backend::default(),
            budget: Budget::default(),
        }
    }
}

impl NewtonParams {
    /// The rule of the published solver (SauersML/gam): absolute ridges, `‖r‖/(1 + ‖z‖) < 1e-9`, 16 iterations.
    /// On its quadratic the ratio is 1 for every ridge, so only blocks that are not positive definite move the ridge.
    pub fn published() -> Self {
        Self { stop: Stop::PerUnknown(1e-9), damping: Damping::Absolute, tries: 16, ..Self::default() }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Converged,
    IterationLimit,
    RidgeLimit,
    TimeLimit,
}

/// A factorisation that failed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failure {
    pub block: Block,
    pub index: usize,
    pub pivot: f64,
    pub ridge: Ridge,
}

/// One try of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Try {
    /// ρ.
    pub ridge: f64,
    /// `φ(z) − φ(z + δ)`; NaN where there was no factor.
    pub actual: f64,
    /// The same by the undamped model.
    pub predicted: f64,
    /// ‖∇φ(z)‖ before it.
    pub gradient_norm: f64,
    pub accepted: bool,
}

/// What a run did.
#[derive(Clone, Debug)]
pub struct Summary {
    pub outcome: Outcome,
    pub z: Vector,
    /// φ(z).
    pub objective: f64,
    /// ‖∇φ(z)‖.
    pub gradient_norm: f64,
    /// Every try counts: accepted, rejected, or without a factor.
    pub tries: u32,
    pub accepts: u32,
    /// ρ at the end.
    pub ridge: f64,
    /// Frames built.
    pub builds: u64,
    /// The failed factorisation with the lowest pivot.
    pub worst: Option<Failure>,
    /// Every try, in order.
    pub trace: Vec<Try>,
    pub telemetry: Telemetry,
    pub time: Duration,
}

/// Why a run cannot go on. Not converging is an [`Outcome`].
#[derive(Debug, thiserror::Error)]
pub enum NewtonError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the problem cannot be linearised after {tries} tries: {source}")]
    Problem { tries: u32, source: ProblemError },
    #[error("the objective is {value} at the start; begin where it is finite")]
    Start { value: f64 },
    #[error("the gradient has NaN or infinity in it after {tries} tries")]
    Gradient { tries: u32 },
}

/// Newton's method with a trust region by Levenberg-Marquardt ridges, from `z` on.
///
/// ```text
///     (H + ρ·diag H)δ = −∇φ(z),    predicted = −∇φᵀδ − ½ δᵀHδ,    actual = φ(z) − φ(z + δ)
/// ```
///
/// A [`Quadratic`] on a card keeps H, point, gradient and step there: each try brings scalars down, the end the point.
///
/// # Errors
/// A start out of bounds, a problem that cannot be linearised, or a device that is lost. Blocks that are not positive
/// definite are no error: the ridge grows.
pub fn newton(problem: &mut dyn Problem, z: Vector, params: &NewtonParams) -> Result<Summary, NewtonError> {
    let began = Instant::now();
    let mut run = Run::start(ground(problem, z, params)?, params, began)?;
    let outcome = loop {
        if run.is_stationary() {
            break Outcome::Converged;
        }
        if run.tries >= params.tries {
            break Outcome::IterationLimit;
        }
        if params.time.is_some_and(|limit| began.elapsed() >= limit) {
            break Outcome::TimeLimit;
        }
        run.tries += 1;
        let before = run.ground.here().value;
        let Some((value, predicted)) = run.attempt()? else {
            run.note(f64::NAN, f64::NAN, false);
            if run.policy.rejected() { continue } else { break Outcome::RidgeLimit }
        };
        let actual = before - value;
        let verdict = run.policy.judge(before, actual, predicted);
        run.note(actual, predicted, verdict != Verdict::Reject && actual >= 0.0);
        match verdict {
            Verdict::Accept => run.advance()?,
            Verdict::Converged => {
                if value <= before {
                    run.take();
                    run.refresh_gradient()?;
                }
                break Outcome::Converged;
            }
            Verdict::Reject => {
                if !run.reject()? {
                    break Outcome::RidgeLimit;
                }
            }
        }
    };
    run.summary(outcome)
}

fn ground<'a>(
    problem: &'a mut dyn Problem,
    z: Vector,
    params: &NewtonParams,
) -> Result<Box<dyn Ground + 'a>, NewtonError> {
    #[cfg(feature = "cuda")]
    if let (Backend::Cuda(pool), Some(quadratic)) = (&params.backend, problem.as_quadratic()) {
        return Ok(Box::new(OnCard::start(pool, quadratic, &z, params.budget)?));
    }
    Ok(Box::new(Assembled::start(problem, z, (params.backend.clone(), params.budget))?))
}

struct Run<'a> {
    ground: Box<dyn Ground + 'a>,
    params: &'a NewtonParams,
    policy: StepPolicy,
    first_norm: f64,
    /// Whether H is that of an earlier point.
    stale: bool,
    tries: u32,
    accepts: u32,
    worst: Option<Failure>,
    trace: Vec<Try>,
    began: Instant,
}

impl<'a> Run<'a> {
    fn start(
        ground: Box<dyn Ground + 'a>,
        params: &'a NewtonParams,
        began: Instant,
    ) -> Result<Self, NewtonError> {
        let here = ground.here();
        if !here.value.is_finite() {
            return Err(NewtonError::Start { value: here.value });
        }
        let run = Self {
            policy: StepPolicy::new(params.damping, params.first_ridge, params.least_ridge),
            first_norm: here.gradient_norm,
            ground,
            params,
            stale: false,
            tries: 0,
            accepts: 0,
            worst: None,
            trace: Vec::new(),
            began,
        };
        run.check_gradient()?;
        Ok(run)
    }

    fn is_stationary(&self) -> bool {
        let here = self.ground.here();
        match self.params.stop {
            Stop::RelativeGradient(tol) => here.gradient_norm <= tol * self.first_norm,
            Stop::PerUnknown(tol) => here.gradient_norm / (1.0 + here.point_norm) < tol,
        }
    }

    /// φ and predicted reduction of the step with the present ridge; none where a block is not positive definite or
    /// the step overflows.
    fn attempt(&mut self) -> Result<Option<(f64, f64)>, NewtonError> {
        match self.ground.attempt(self.policy.ridge())? {
            Attempt::Candidate { value, predicted } => Ok(Some((value, predicted))),
            Attempt::Overflow => Ok(None),
            Attempt::NotPositiveDefinite(failure) => {
                if self.worst.is_none_or(|worst| failure.pivot.total_cmp(&worst.pivot).is_lt()) {
                    self.worst = Some(failure);
                }
                Ok(None)
            }
        }
    }

    fn take(&mut self) {
        self.ground.advance();
        self.accepts += 1;
    }

    fn advance(&mut self) -> Result<(), NewtonError> {
        let before = self.ground.here().gradient_norm;
        self.take();
        if let Reuse::WhileContracting(share) = self.params.reuse {
            self.refresh_gradient()?;
            if self.ground.here().gradient_norm <= share * before || self.is_stationary() {
                self.stale = true;
                return Ok(());
            }
        }
        self.policy.accepted();
        self.linearise()
    }

    /// ∇φ at the present point, beside an H that stays.
    fn refresh_gradient(&mut self) -> Result<(), NewtonError> {
        self.ground.refresh_gradient(self.tries)?;
        self.check_gradient()
    }

    fn linearise(&mut self) -> Result<(), NewtonError> {
        self.ground.linearise(self.tries)?;
        self.stale = false;
        self.check_gradient()
    }

    /// A rejected step. `false` where the ridge has run out.
    fn reject(&mut self) -> Result<bool, NewtonError> {
        // A model of an earlier point is the first suspect, and the ridge only the second.
        if self.stale {
            self.linearise()?;
            return Ok(true);
        }
        Ok(self.policy.rejected())
    }

    fn note(&mut self, actual: f64, predicted: f64, accepted: bool) {
        let gradient_norm = self.ground.here().gradient_norm;
        self.trace.push(Try { ridge: self.policy.rho(), actual, predicted, gradient_norm, accepted });
    }

    fn check_gradient(&self) -> Result<(), NewtonError> {
        let fine = self.ground.here().gradient_norm.is_finite();
        fine.then_some(()).ok_or(NewtonError::Gradient { tries: self.tries })
    }

    fn summary(self, outcome: Outcome) -> Result<Summary, NewtonError> {
        let here = self.ground.here();
        let (z, telemetry) = self.ground.end()?;
        Ok(Summary {
            outcome,
            z,
            objective: here.value,
            gradient_norm: here.gradient_norm,
            tries: self.tries,
            accepts: self.accepts,
            ridge: self.policy.rho(),
            builds: telemetry.frames,
            worst: self.worst,
            trace: self.trace,
            telemetry,
            time: self.began.elapsed(),
        })
    }
}
