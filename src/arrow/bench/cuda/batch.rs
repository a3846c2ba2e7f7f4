use rayon::prelude::*;

use super::{Card, time};
use crate::arrow::bench::{BenchError, small_batch};
use crate::arrow::cuda::SmallBatch;
use crate::arrow::{Ridge, Status};

impl Card<'_> {
    /// 10,000 small systems that lie on the device.
    pub(super) fn small_systems(&mut self) -> Result<(), BenchError> {
        let batch = small_batch(10_000, 200, 2, 8);
        let device = SmallBatch::new(&self.cuda, &batch)?;
        device.solve(Ridge::None)?;
        let (seen, host) = (device.steps()?, batch.solve()?);
        if let Some(k) = seen.status.iter().position(|status| *status != Status::Solved) {
            return Err(Self::wrong("small systems", format!("system {k}: {:?}", seen.status[k])));
        }
        let residual = (0..batch.systems())
            .into_par_iter()
            .map(|k| {
                let (system, rhs) = batch.system(k)?;
                let step = seen.step(&batch, k);
                Ok(system.residual(Ridge::None, system.norm2(Ridge::None), &step, &rhs))
            })
            .try_reduce(|| 0.0, |a: f64, b| Ok::<_, BenchError>(a.max(b)))?;
        self.bench.check("small systems", residual)?;
        let apart = seen.log_det.iter().zip(&host.log_det).map(|(a, b)| ((a - b) / b).abs());
        let apart = apart.fold(0.0, f64::max);
        let took = time(2 * self.runs(), || device.solve(Ridge::None))?;
        let numbers = batch.row_hessian.len()
            + batch.row_cross.len()
            + batch.border_hessian.len()
            + 2 * (batch.row_rhs.len() + batch.border_rhs.len());
        let floor = 8e3 * numbers as f64 / self.bench.rates.copy;
        let figure = self.bench.push("small10k_ms", took, "ms");
        figure.floor = Some((floor, "every slab and step once at the copy rate"));
        figure.residual = Some(residual);
        self.bench.push("small10k.log_det_difference", apart, "1").floor = Some((1e-12, "what is allowed"));
        Ok(())
    }
}
