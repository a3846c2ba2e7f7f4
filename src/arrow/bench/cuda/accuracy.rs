use std::sync::Arc;

use super::Card;
use crate::arrow::bench::BenchError;
use crate::arrow::fixtures::{self, SMALL, Shape};
use crate::arrow::{About, Coupling, Elimination, Frame, Method, Params, Ridge, System};

impl Card<'_> {
    /// Residuals of card and host, and their determinants, from well conditioned to condition 1e10.
    pub(super) fn accuracy(&mut self) -> Result<(), BenchError> {
        self.beside_host("small", &Arc::new(fixtures::well_conditioned(SMALL)?))?;
        let shape = Shape { rows: 60, dim: 2, border: 300, seed: 0x111 };
        for power in [2, 4, 6, 8, 10] {
            let system = Arc::new(fixtures::ill_conditioned(shape, 10_f64.powi(power))?);
            self.beside_host(&format!("ill1e{power}"), &system)?;
        }
        Ok(())
    }

    /// The same right-hand sides on card and host: one random and one `b = Hx`, and `log det H` of both.
    pub(super) fn beside_host(&mut self, case: &str, system: &Arc<System>) -> Result<(), BenchError> {
        let norm = system.norm2(Ridge::None);
        let sides = [fixtures::random_vector(system, 3), system.apply(&fixtures::random_vector(system, 4))];
        let mut frames = [Frame::build(system, &self.params())?, Frame::build(system, &Params::default())?];
        for (frame, place) in frames.iter_mut().zip(["card", "host"]) {
            let mut worst: f64 = 0.0;
            for rhs in &sides {
                let step = frame.solve(rhs)?.step;
                worst = worst.max(system.residual(Ridge::None, norm, &step, rhs));
            }
            self.bench.check(&format!("{case}, {place}"), worst)?;
            let prefix = if place == "host" { "arrow.host" } else { "arrow" };
            let about = frame.about();
            let figure = self.bench.push_named(format!("{prefix}.{case}.residual"), worst, "1");
            (figure.residual, figure.note) = (Some(worst), Some(choices(&about)));
            self.bench.push_named(
                format!("{prefix}.{case}.corrections"),
                f64::from(about.corrections),
                "count",
            );
        }
        let [card, host] = frames;
        let apart = ((card.log_det() - host.log_det()) / host.log_det()).abs();
        let allowed = 1e-12_f64.max(10.0 * card.about().condition * f64::EPSILON);
        let figure = self.bench.push(&format!("{case}.log_det_difference"), apart, "1");
        figure.floor = Some((allowed, "what is allowed: 1e-12, or 10κε"));
        if apart > allowed {
            let what = format!("log det is {apart:e} from the host's, allowed are {allowed:e}");
            return Err(Self::wrong(case, what));
        }
        Ok(())
    }
}

fn choices(about: &About) -> String {
    let method = match about.method {
        Method::ExplicitInverse => "explicit inverse",
        Method::TriangularSolves => "triangular solves",
    };
    let first = match about.elimination {
        Elimination::Rows => "rows",
        Elimination::Border => "border",
    };
    let coupling = match about.coupling {
        Coupling::Dense => "dense",
        Coupling::Factored => "factored",
    };
    format!(
        "{first} first, {coupling} coupling, {method}, {} corrections, condition {:.1e}",
        about.corrections, about.condition
    )
}
