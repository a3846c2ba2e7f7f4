use super::Ridge;

/// The ridge of the first rejection of a run that began without one.
const FIRST_RIDGE: f64 = 1e-6;

/// Ridge beyond which a step is shorter than the rounding of the point: nothing is gained by going on.
const LARGEST_RIDGE: f64 = 1e9;

/// Growth of the ridge after a step that failed, and its decay after one that was accepted.
const GROWTH: f64 = 4.0;
const DECAY: f64 = 0.5;

/// Share of |φ| below which actual and predicted reduction are rounding: a hundred times the spacing of f64.
const NEGLIGIBLE: f64 = 1e-14;

/// How the ridge ρ is added to H.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damping {
    /// `ρ·diag(H)`: the steps are the same when unknowns or the objective change their scale.
    Relative,
    /// `ρ·I`.
    Absolute,
}

/// The trust region: a ridge that grows where the model lied and decays where it did not.
#[derive(Clone, Debug)]
pub(super) struct StepPolicy {
    damping: Damping,
    rho: f64,
    /// What ρ does not decay below.
    least: f64,
}

/// What becomes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Reject,
    /// Neither the model nor the objective has anything left to gain.
    Converged,
}

impl StepPolicy {
    pub(super) fn new(damping: Damping, rho: f64, least: f64) -> Self {
        Self { damping, rho: rho.max(least), least }
    }

    pub(super) fn ridge(&self) -> Ridge {
        match self.damping {
            _ if self.rho == 0.0 => Ridge::None,
            Damping::Relative => Ridge::Relative(self.rho),
            Damping::Absolute => Ridge::Absolute { row: self.rho, border: self.rho },
        }
    }

    pub(super) fn rho(&self) -> f64 {
        self.rho
    }

    /// Accepts where `actual / predicted > 0` and finite.
    pub(super) fn judge(&self, objective: f64, actual: f64, predicted: f64) -> Verdict {
        let negligible = NEGLIGIBLE * objective.abs();
        if actual.abs() <= negligible && predicted.abs() <= negligible {
            return Verdict::Converged;
        }
        let ratio = actual / predicted;
        if ratio.is_finite() && ratio > 0.0 && predicted > 0.0 { Verdict::Accept } else { Verdict::Reject }
    }

    pub(super) fn accepted(&mut self) {
        self.rho = (self.rho * DECAY).max(self.least);
    }

    /// After a rejected step or a block that is not positive definite. `false` where the ridge has run out.
    #[must_use]
    pub(super) fn rejected(&mut self) -> bool {
        self.rho = if self.rho == 0.0 { FIRST_RIDGE } else { self.rho * GROWTH };
        self.rho <= LARGEST_RIDGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let policy = StepPolicy::new(Damping::Relative, 0.0, 0.0);
        for (objective, actual, predicted, verdict) in [
            (1.0, 0.5, 0.6, Verdict::Accept),
            (1.0, -0.5, 0.6, Verdict::Reject),
            (1.0, f64::NAN, 0.6, Verdict::Reject),
            (1.0, f64::NEG_INFINITY, 0.6, Verdict::Reject),
            (1.0, -0.5, -0.6, Verdict::Reject),
            (1.0, 1e-15, -1e-15, Verdict::Converged),
            (1.0, 1e-15, 1e-3, Verdict::Accept),
        ] {
            assert_eq!(policy.judge(objective, actual, predicted), verdict, "{actual} of {predicted}");
        }
    }

    #[test]
    fn the_ridge_rises_from_nothing_and_runs_out() {
        let mut policy = StepPolicy::new(Damping::Absolute, 0.0, 0.0);
        assert_eq!(policy.ridge(), Ridge::None);
        let mut tries = 0;
        while policy.rejected() {
            tries += 1;
        }
        // 1e-6·4^k stays below 1e9 for k up to 24.
        assert_eq!(tries, 25);
        policy.accepted();
        assert!(policy.rho() > 0.0);
    }
}
