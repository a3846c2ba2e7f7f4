use super::{Ridge, System, Vector};
use crate::ops::splitmix::SplitMix64;

/// Steps of the power iteration: a part of one percent of the norm is left out then, and decides no residual.
const STEPS: usize = 30;

impl System {
    /// `‖H + ridge‖₂` by power iteration: a lower bound, so that a residual measured with it is never too small.
    pub fn norm2(&self, ridge: Ridge) -> f64 {
        let mut random = SplitMix64::new(0x0_2043);
        let mut x = Vector::zeros(self);
        x.row.iter_mut().chain(&mut x.border).for_each(|x| *x = random.signed());
        let mut norm = 0.0;
        for _ in 0..STEPS {
            let length = x.norm();
            if length == 0.0 {
                return 0.0;
            }
            x = self.apply_ridged(ridge, &x.scaled(1.0 / length));
            norm = x.norm();
        }
        norm
    }

    /// `‖(H + ridge)δ − b‖₂ / (‖H + ridge‖₂‖δ‖₂ + ‖b‖₂)`: how good a step is, whatever the condition of H.
    /// `norm` is [`Self::norm2`], which one asks for once.
    pub fn residual(&self, ridge: Ridge, norm: f64, step: &Vector, rhs: &Vector) -> f64 {
        let mut rest = self.apply_ridged(ridge, step);
        rest.add_scaled(-1.0, rhs);
        let size = norm * step.norm() + rhs.norm();
        if size == 0.0 { 0.0 } else { rest.norm() / size }
    }
}
