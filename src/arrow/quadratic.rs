use std::sync::Arc;

use super::newton::{Linearisation, Problem};
use super::{System, Vector};

/// `φ(z) = ½ zᵀHz − bᵀz`: the simplest problem; one frame serves every step.
pub struct Quadratic {
    pub hessian: Arc<System>,
    pub rhs: Vector,
}

impl Problem for Quadratic {
    fn objective(&mut self, z: &Vector) -> f64 {
        0.5 * z.dot(&self.hessian.apply(z)) - self.rhs.dot(z)
    }

    fn linearise(&mut self, z: &Vector) -> Result<Linearisation, Box<dyn std::error::Error + Send + Sync>> {
        let mut gradient = self.hessian.apply(z);
        gradient.add_scaled(-1.0, &self.rhs);
        Ok(Linearisation { gradient, hessian: self.hessian.clone() })
    }

    fn as_quadratic(&self) -> Option<&Quadratic> {
        Some(self)
    }
}
