use std::path::Path;

use super::Card;
use crate::arrow::bench::BenchError;
use crate::arrow::{
    Backend, Frame, NewtonParams, Params, Problem, Ridge, Summary, System, Vector, bundle, fixtures, newton,
};

/// Difference of the costs of host and card, relative, that is allowed.
const COST: f64 = 1e-6;

impl Card<'_> {
    /// The same Newton loop on host and card.
    pub(super) fn bundle(&mut self, path: &Path) -> Result<(), BenchError> {
        let (mut problem, start) = bundle::read(path)?;
        let places = [(Backend::Host, "arrow.host"), (self.backend(), "arrow")];
        let mut runs = Vec::new();
        for (backend, prefix) in &places {
            let first = problem.linearise(&start)?.hessian;
            self.ridged(prefix, "bal49.first_residual", &first, backend, bundle::params().first_ridge)?;
            let params = NewtonParams { backend: backend.clone(), ..bundle::params() };
            let summary = newton(&mut problem, start.clone(), &params)?;
            self.report(prefix, &summary);
            runs.push(summary);
        }
        for ((backend, prefix), summary) in places.iter().zip(&runs) {
            let last = problem.linearise(&summary.z)?.hessian;
            self.ridged(prefix, "bal49.last_residual", &last, backend, bundle::params().least_ridge)?;
        }
        let [host, card] = &runs[..] else { return Ok(()) };
        let apart = (card.objective / host.objective - 1.0).abs();
        self.bench.push("bal49.cost_difference", apart, "1").floor = Some((COST, "what is allowed"));
        let same = (host.tries, host.accepts, host.outcome) == (card.tries, card.accepts, card.outcome);
        self.bench.push("bal49.same_trajectory", f64::from(u8::from(same)), "1").note =
            Some(format!("host {:?}, card {:?}", host.outcome, card.outcome));
        if apart > COST {
            return Err(Self::wrong("bal49", format!("the cost is {apart:e} from the host's")));
        }
        Ok(())
    }

    /// The residual of a solve with a random right-hand side.
    fn ridged(
        &mut self,
        prefix: &str,
        name: &str,
        system: &std::sync::Arc<System>,
        backend: &Backend,
        rho: f64,
    ) -> Result<(), BenchError> {
        let ridge = Ridge::Relative(rho);
        let params = Params { ridge, backend: backend.clone(), ..Params::default() };
        let mut frame = Frame::build(system, &params)?;
        let rhs: Vector = fixtures::random_vector(system, 8);
        let step = frame.solve(&rhs)?.step;
        let residual = system.residual(ridge, system.norm2(ridge), &step, &rhs);
        let name = format!("{prefix}.{name}");
        self.bench.check(&name, residual)?;
        let about = frame.about();
        let figure = self.bench.push_named(name, residual, "1");
        figure.residual = Some(residual);
        figure.note = Some(format!("relative ridge {rho:e}, condition {:.1e}", about.condition));
        Ok(())
    }

    fn report(&mut self, prefix: &str, summary: &Summary) {
        let mut push = |name: &str, value: f64, unit| {
            self.bench.push_named(format!("{prefix}.bal49.{name}"), value, unit);
        };
        push("cost", summary.objective, "px2");
        push("tries", f64::from(summary.tries), "count");
        push("accepts", f64::from(summary.accepts), "count");
        push("frames", summary.builds as f64, "count");
        let seconds = summary.time.as_secs_f64();
        push("try_ms", 1e3 * seconds / f64::from(summary.tries.max(1)), "ms");
    }
}
