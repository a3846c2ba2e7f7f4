//! Measurements: every answer is checked by its residual first and timed after that; medians of many runs.

#[cfg(feature = "cuda")]
mod cuda;
mod fixture;
mod machine;

use std::hint::black_box;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par};
use rayon::prelude::*;

use super::bundle::{self, BundleError};
use super::fixtures::{self, Shape};
use super::vector::largest;
use super::{
    Backend, Batch, BatchError, Budget, Frame, FrameError, NewtonError, NewtonParams, Outcome, Params, Ridge,
    Status, System, SystemError, Vector, build_and_solve, newton, sweep,
};
use crate::ops::splitmix::SplitMix64;

pub use machine::machine;

/// Residual that no answer may pass.
pub const RESIDUAL_BOUND: f64 = 1e-14;

/// Right-hand sides of the wide solve.
const WIDE: usize = 64;

/// What is measured, and where.
#[derive(Clone, Debug)]
pub struct BenchParams {
    pub backend: Backend,
    /// Timed runs of a solve. On the host, frames take a tenth of them, three at least; on a card nothing takes fewer.
    pub runs: usize,
    /// A problem of "Bundle Adjustment in the Large"; without it that line is left out.
    pub bundle: Option<PathBuf>,
    /// Cells of the colour matrix that are swept.
    pub cells: usize,
    /// Fits of the sweep at once: 2 on the host where nothing is said. On a card the best of 1, 2, 4 ... up to this, or
    /// up to 4.
    pub lanes: Option<NonZero<usize>>,
}

/// One measured number.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Figure {
    /// Stable over time, as in figures.csv.
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    /// What the machine would allow, in the same unit, and how that was computed.
    pub floor: Option<(f64, &'static str)>,
    pub residual: Option<f64>,
    /// How it came about.
    pub note: Option<String>,
}

impl Figure {
    /// One without a floor or a residual.
    pub fn new(name: String, value: f64, unit: &'static str, note: Option<String>) -> Self {
        Self { name, value, unit, floor: None, residual: None, note }
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("{case}: the residual is {residual:e}, above {RESIDUAL_BOUND:e}; a wrong answer is not timed")]
    Residual { case: String, residual: f64 },
    #[error("{case}: {what}")]
    Wrong { case: String, what: String },
    #[error(transparent)]
    System(#[from] SystemError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Newton(#[from] NewtonError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    SmallBatch(#[from] super::cuda::SmallBatchError),
    #[error(transparent)]
    Device(#[from] crate::device::DeviceError),
    #[error("a bundle cannot be linearised: {0}")]
    Problem(#[from] Box<dyn std::error::Error + Send + Sync>),
}

/// Measures everything; `tell` hears what is being done. What was measured before an error stays in `figures`.
///
/// # Errors
/// A wrong answer, or whatever keeps a fixture from being solved.
pub fn run(params: &BenchParams, figures: &mut Vec<Figure>, tell: &dyn Fn(&str)) -> Result<(), BenchError> {
    match &params.backend {
        Backend::Host => run_host(params, figures, tell),
        #[cfg(feature = "cuda")]
        Backend::Cuda(pool) => cuda::run(params, pool, figures, tell),
    }
}

fn run_host(params: &BenchParams, figures: &mut Vec<Figure>, tell: &dyn Fn(&str)) -> Result<(), BenchError> {
    let mut bench = Bench { params, rates: Rates::measure(), figures, worst: 0.0 };
    bench.push("copy_rate", bench.rates.copy / 1e9, "GB/s");
    bench.push("gemm_rate", bench.rates.gemm / 1e9, "GFLOP/s");
    for (case, shape) in [("color_arm", fixtures::COLOR_ARM), ("qwen", fixtures::QWEN)] {
        tell(case);
        bench.fixture(case, fixtures::well_conditioned(shape)?)?;
    }
    for (case, system) in structured()? {
        tell(case);
        bench.fixture(case, system)?;
    }
    tell("ill-conditioned");
    bench.ill_conditioned()?;
    tell("small systems");
    bench.small_systems()?;
    tell("sweep");
    bench.sweep()?;
    if let Some(path) = &params.bundle {
        tell("bundle adjustment");
        bench.bundle(path)?;
    }
    bench.push("worst_residual", bench.worst, "1");
    Ok(())
}

/// What this machine does at best, measured in the same run.
#[derive(Clone, Copy, Debug)]
struct Rates {
    /// Bytes read and written a second.
    copy: f64,
    /// f64 multiplications and additions a second.
    gemm: f64,
}

impl Rates {
    fn measure() -> Self {
        const NUMBERS: usize = 1 << 25;
        const SIDE: usize = 1536;
        const PART: usize = 1 << 18;
        let from = vec![1.0f64; NUMBERS];
        let mut to = vec![0.0f64; NUMBERS];
        let seconds = median(7, || {
            to.par_chunks_mut(PART)
                .zip(from.par_chunks(PART))
                .for_each(|(to, from)| to.copy_from_slice(from));
            black_box(&mut to);
        });
        let a = Mat::from_fn(SIDE, SIDE, |i, j| ((i + 3 * j) % 7) as f64);
        let mut c = Mat::zeros(SIDE, SIDE);
        let product =
            median(5, || matmul(c.as_mut(), Accum::Replace, a.as_ref(), a.as_ref(), 1.0, Par::rayon(0)));
        Self { copy: 16.0 * NUMBERS as f64 / seconds, gemm: 2.0 * (SIDE as f64).powi(3) / product }
    }
}

struct Bench<'a> {
    params: &'a BenchParams,
    rates: Rates,
    figures: &'a mut Vec<Figure>,
    worst: f64,
}

impl Bench<'_> {
    /// Names of device figures begin with `arrow.`, those of the host with `arrow.host.`.
    fn push(&mut self, name: &str, value: f64, unit: &'static str) -> &mut Figure {
        let prefix = match self.params.backend {
            Backend::Host => "arrow.host",
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) => "arrow",
        };
        self.push_named(format!("{prefix}.{name}"), value, unit)
    }

    fn push_named(&mut self, name: String, value: f64, unit: &'static str) -> &mut Figure {
        self.figures.push(Figure::new(name, value, unit, None));
        let last = self.figures.len() - 1;
        &mut self.figures[last]
    }

    fn frame_params(&self) -> Params {
        Params { ridge: Ridge::None, backend: self.params.backend.clone(), budget: Budget::default() }
    }

    fn check(&mut self, case: &str, residual: f64) -> Result<f64, BenchError> {
        self.worst = largest([self.worst, residual]);
        if residual <= RESIDUAL_BOUND {
            return Ok(residual);
        }
        Err(BenchError::Residual { case: case.into(), residual })
    }

    fn ill_conditioned(&mut self) -> Result<(), BenchError> {
        let shape = Shape { rows: 60, dim: 2, border: 300, seed: 0x111 };
        let system = Arc::new(fixtures::ill_conditioned(shape, 1e10)?);
        let rhs = system.apply(&fixtures::random_vector(&system, 7));
        let mut frame = Frame::build(&system, &self.frame_params())?;
        let solution = frame.solve(&rhs)?;
        let norm = system.norm2(Ridge::None);
        let residual =
            self.check("ill-conditioned", system.residual(Ridge::None, norm, &solution.step, &rhs))?;
        self.push("ill.condition", solution.about.condition, "1").residual = Some(residual);
        self.push("ill.corrections", f64::from(solution.about.corrections), "count");
        Ok(())
    }

    fn small_systems(&mut self) -> Result<(), BenchError> {
        let batch = small_batch(10_000, 200, 2, 8);
        let solution = batch.solve()?;
        if let Some(k) = solution.status.iter().position(|status| *status != Status::Solved) {
            let what = format!("system {k}: {:?}", solution.status[k]);
            return Err(BenchError::Wrong { case: "small systems".into(), what });
        }
        let mut residual: f64 = 0.0;
        for k in (0..batch.systems()).step_by(997) {
            let (system, rhs) = batch.system(k)?;
            let step = solution.step(&batch, k);
            let one = system.residual(Ridge::None, system.norm2(Ridge::None), &step, &rhs);
            residual = largest([residual, one]);
        }
        self.check("small systems", residual)?;
        let seconds = median_of((self.params.runs / 5).max(5), || batch.solve().map(drop))?;
        let numbers = batch.row_hessian.len()
            + batch.row_cross.len()
            + batch.border_hessian.len()
            + 2 * (batch.row_rhs.len() + batch.border_rhs.len());
        let floor = 8.0 * numbers as f64 / self.rates.copy;
        let figure = self.push("small10k_ms", 1e3 * seconds, "ms");
        figure.floor = Some((1e3 * floor, "every slab once at the copy rate"));
        figure.residual = Some(residual);
        Ok(())
    }

    fn sweep(&mut self) -> Result<(), BenchError> {
        let cells: Vec<Shape> =
            fixtures::colour_matrix().into_iter().take(self.params.cells).map(|(_, shape)| shape).collect();
        if cells.is_empty() {
            return Ok(());
        }
        let systems: Vec<Arc<System>> = cells
            .iter()
            .map(|shape| fixtures::well_conditioned(*shape).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let fits: Vec<(Arc<System>, Vector)> = systems
            .into_iter()
            .enumerate()
            .map(|(k, system)| {
                let rhs = system.apply(&fixtures::random_vector(&system, k as u64));
                (system, rhs)
            })
            .collect();
        let params = self.frame_params();
        let fit = |_: &mut (), (system, rhs): &(Arc<System>, Vector)| {
            build_and_solve(system, rhs, &params).map(|solution| solution.step)
        };
        let single = sweep(&fits, NonZero::<usize>::MIN, |_| (), fit);
        let lanes = self.params.lanes.unwrap_or(NonZero::<usize>::MIN.saturating_add(1));
        let swept = sweep(&fits, lanes, |_| (), fit);
        let mut worst: f64 = 0.0;
        for (((system, rhs), one), many) in fits.iter().zip(single.results).zip(&swept.results) {
            let (one, many) = (one?, many.as_ref().map_err(Clone::clone)?);
            if one != *many {
                let what = "multiplexed results are not those of one after another".into();
                return Err(BenchError::Wrong { case: "sweep".into(), what });
            }
            let residual = system.residual(Ridge::None, system.norm2(Ridge::None), many, rhs);
            worst = largest([worst, residual]);
        }
        self.check("sweep", worst)?;
        let work = |(system, _): &(Arc<System>, Vector)| {
            let (m, p) = (system.unknowns() as f64, system.border() as f64);
            p * p * m + p * p * p / 3.0
        };
        let bound = fits.iter().map(work).sum::<f64>() / self.rates.gemm;
        let name = format!("sweep{}", fits.len());
        let seconds = swept.time.as_secs_f64();
        let figure = self.push(&format!("{name}.bound_share"), bound / seconds, "fraction");
        (figure.floor, figure.residual) = (Some((1.0, "arithmetic at the GEMM rate")), Some(worst));
        self.push(&format!("{name}.speedup"), single.time.as_secs_f64() / seconds, "1");
        self.push(&format!("{name}.fits_per_s"), swept.fits_per_second(), "1/s");
        Ok(())
    }

    fn bundle(&mut self, path: &std::path::Path) -> Result<(), BenchError> {
        let (mut problem, start) = bundle::read(path)?;
        let params = NewtonParams { backend: self.params.backend.clone(), ..bundle::params() };
        let summary = newton(&mut problem, start, &params)?;
        // The problems of the data set are told apart by their cameras.
        let case = format!("bal{}", problem.cameras());
        if summary.outcome != Outcome::Converged {
            let what = format!("{:?} after {} tries, not converged", summary.outcome, summary.tries);
            return Err(BenchError::Wrong { case, what });
        }
        self.push(&format!("{case}.cost"), summary.objective, "px2");
        self.push(&format!("{case}.tries"), f64::from(summary.tries), "count");
        self.push(&format!("{case}.accepts"), f64::from(summary.accepts), "count");
        let seconds = summary.time.as_secs_f64();
        self.push(&format!("{case}.try_ms"), 1e3 * seconds / f64::from(summary.tries.max(1)), "ms");
        Ok(())
    }
}

/// Basis functions of the Kronecker border that is measured.
const BASIS: usize = 64;

/// The shortcuts of structured borders, reported apart: color_arm's shape with a diagonal border and a dense cross
/// block, and with a Kronecker border and a cross block of factors.
fn structured() -> Result<[(&'static str, System); 2], SystemError> {
    Ok([
        ("color_arm.structured_diagonal", fixtures::diagonal_border(fixtures::COLOR_ARM)?),
        ("color_arm.structured_kronecker", fixtures::kronecker_border(fixtures::COLOR_ARM, BASIS)?),
    ])
}

/// Small systems of one shape, drawn as the fixtures are.
pub fn small_batch(systems: usize, rows: usize, dim: usize, border: usize) -> Batch {
    let mut random = SplitMix64::new(0xBA7C);
    let count = systems * rows;
    let mut signed = |count: usize| (0..count).map(|_| random.signed()).collect::<Vec<f64>>();
    let (row_rhs, border_rhs) = (signed(count * dim), signed(systems * border));
    Batch {
        dim,
        border,
        offsets: (0..=systems).map(|k| k * rows).collect(),
        row_hessian: (0..count).flat_map(|_| fixtures::row_block(dim, &mut random)).collect(),
        row_cross: (0..count * dim * border).map(|_| fixtures::cross_entry(&mut random)).collect(),
        border_hessian: fixtures::tridiagonal(border).repeat(systems),
        row_rhs,
        border_rhs,
    }
}

/// Median seconds of `runs` calls, after one that is not counted.
fn median(runs: usize, mut call: impl FnMut()) -> f64 {
    call();
    let mut seconds: Vec<f64> = (0..runs.max(1))
        .map(|_| {
            let began = Instant::now();
            call();
            began.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// The same for calls that can fail.
fn median_of<E>(runs: usize, mut call: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let mut failed = None;
    let seconds = median(runs, || {
        if failed.is_none() {
            failed = call().err();
        }
    });
    failed.map_or(Ok(seconds), Err)
}
