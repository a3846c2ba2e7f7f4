use std::hint::black_box;
use std::sync::Arc;

use super::{Bench, BenchError, WIDE, median, median_of};
use crate::arrow::memory::uses_capacitance;
use crate::arrow::vector::largest;
use crate::arrow::{Border, Cross, Frame, Ridge, System, Vector, build_and_solve, fixtures};

impl Bench<'_> {
    /// Frame, solves of one and of many right-hand sides, and both in one call.
    pub(super) fn fixture(&mut self, case: &str, system: System) -> Result<(), BenchError> {
        let params = self.frame_params();
        let system = Arc::new(system);
        let norm = system.norm2(Ridge::None);
        let wide: Vec<Vector> =
            (0..WIDE as u64).map(|k| system.apply(&fixtures::random_vector(&system, k))).collect();
        let mut frame = Frame::build(&system, &params)?;
        let solution = frame.solve(&wide[0])?;
        let residual = self.check(case, system.residual(Ridge::None, norm, &solution.step, &wide[0]))?;
        let steps = frame.solve_many(&wide)?.steps;
        let residuals =
            steps.iter().zip(&wide).map(|(step, rhs)| system.residual(Ridge::None, norm, step, rhs));
        let wide_residual = self.check(case, largest(residuals))?;

        let (runs, few) = (self.params.runs, (self.params.runs / 10).max(3));
        let solve = median_of(runs, || frame.solve(&wide[0]).map(drop))?;
        let many = median_of(few, || frame.solve_many(&wide).map(drop))?;
        drop(frame);
        let build = median_of(few, || Frame::build(&system, &params).map(drop))?;
        let both = median_of(few, || build_and_solve(&system, &wide[0], &params).map(drop))?;

        // S or K once and the coupling twice.
        let numbers = core_order(&system).powi(2) + 2.0 * coupling(&system);
        let floor = 8e3 * numbers / self.rates.copy;
        let products = 2.0 * WIDE as f64 * numbers;
        let wide_floor = (1e3 * products / self.rates.gemm).max(floor);
        let frame_floor = self.frame_floor(&system);
        self.push(&format!("{case}.floor_ms"), floor, "ms");
        let reads = "what is factored once and the coupling twice at the copy rate";
        let figure = self.push(&format!("{case}.resident_ms"), 1e3 * solve, "ms");
        (figure.floor, figure.residual) = (Some((floor, reads)), Some(residual));
        let figure = self.push(&format!("{case}.many64_ms"), 1e3 * many, "ms");
        figure.floor = Some((wide_floor, "its products at the GEMM rate"));
        figure.residual = Some(wide_residual);
        self.push(&format!("{case}.frame_ms"), 1e3 * build, "ms").floor = frame_floor
            .map(|seconds| (1e3 * seconds, "faer's Cholesky of the border and a SYRK at the GEMM rate"));
        self.push(&format!("{case}.reupload_ms"), 1e3 * both, "ms");
        self.push(&format!("{case}.reupload_ratio"), both / solve, "1");
        Ok(())
    }

    /// Seconds of faer's Cholesky of a dense border and of a SYRK at the rate of the product.
    fn frame_floor(&self, system: &System) -> Option<f64> {
        let (m, p) = (system.unknowns() as f64, system.border());
        let Border::Dense(border) = system.border_hessian() else { return None };
        let border = faer::MatRef::from_column_major_slice(border, p, p);
        let cholesky = median(3, || {
            black_box(border.llt(faer::Side::Lower).is_ok());
        });
        Some(cholesky + (p * p) as f64 * m / self.rates.gemm)
    }
}

/// Order of what is factored last.
fn core_order(system: &System) -> f64 {
    if uses_capacitance(system) { system.unknowns() as f64 } else { system.border() as f64 }
}

/// Numbers of the coupling as a frame holds it.
fn coupling(system: &System) -> f64 {
    let factors = matches!(
        (system.cross(), system.border_hessian()),
        (Cross::Factored { basis, .. }, Border::Kronecker { basis: same, .. }) if basis == same
    );
    let kept = factors && uses_capacitance(system);
    if kept { system.cross().len() as f64 } else { system.unknowns() as f64 * system.border() as f64 }
}
