use std::sync::Arc;

use super::{Card, time};
use crate::arrow::bench::BenchError;
use crate::arrow::fixtures::{self, COLOR_ARM};
use crate::arrow::{Backend, NewtonParams, Quadratic, Summary, Vector, newton};

impl Card<'_> {
    /// Newton's method on a quadratic whose vectors stay on the card, beside the host's.
    pub(super) fn quadratic(&mut self) -> Result<(), BenchError> {
        let system = Arc::new(fixtures::well_conditioned(COLOR_ARM)?);
        let rhs = fixtures::random_vector(&system, 9);
        let run = |backend: Backend| -> Result<Summary, BenchError> {
            let mut problem = Quadratic { hessian: system.clone(), rhs: rhs.clone() };
            let params = NewtonParams { backend, first_ridge: 1e-3, ..NewtonParams::default() };
            Ok(newton(&mut problem, Vector::zeros(&system), &params)?)
        };
        let (card, host) = (run(self.backend())?, run(Backend::Host)?);
        let same = (card.tries, card.accepts, card.outcome) == (host.tries, host.accepts, host.outcome);
        if !same {
            return Err(Self::wrong("quadratic", "card and host took other ways"));
        }
        let z_bytes = 8 * (system.unknowns() + system.border()) as u64;
        let down = (card.telemetry.counts.bytes_down - z_bytes) as f64 / f64::from(card.tries.max(1));
        let took = time(5, || run(self.backend()).map(drop))?;
        let mut push = |name: &str, value: f64, unit| {
            self.bench.push(&format!("quadratic.{name}"), value, unit).note =
                Some(format!("{:?} after {} tries, {} frames", card.outcome, card.tries, card.builds));
        };
        push("tries", f64::from(card.tries), "count");
        push("run_ms", took, "ms");
        push("bytes_down_per_try", down, "bytes");
        push("same_trajectory", f64::from(u8::from(same)), "1");
        Ok(())
    }
}
