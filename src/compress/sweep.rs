//! How the encoder's time goes with the shape of a weight: single tensors, made up, one path.

use super::batch::{Report, SiteInput, Step, Task, encode_batch, parts, predict};
use super::bench::{made_up_grams, made_up_weight};
use super::encode::Params;
use crate::device::arena::Arena;
use crate::device::{Device, DeviceError};

/// Shape that the others differ from in one number.
const MIDDLE: Size = Size { m: 2048, n: 2048, rank: 512 };
const SIDES: [usize; 4] = [1024, 2048, 4096, 8192];
const RANKS: [usize; 4] = [128, 256, 512, 1024];

/// An m x n weight of rank r.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub m: usize,
    pub n: usize,
    pub rank: usize,
}

/// What varies along a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Varied {
    M,
    N,
    Rank,
}

impl Varied {
    pub const ALL: [Self; 3] = [Self::M, Self::N, Self::Rank];

    pub fn name(self) -> &'static str {
        match self {
            Self::M => "m",
            Self::N => "n",
            Self::Rank => "r",
        }
    }

    pub fn of(self, size: Size) -> usize {
        match self {
            Self::M => size.m,
            Self::N => size.n,
            Self::Rank => size.rank,
        }
    }

    fn sizes(self) -> [Size; 4] {
        match self {
            Self::M => SIDES.map(|m| Size { m, ..MIDDLE }),
            Self::N => SIDES.map(|n| Size { n, ..MIDDLE }),
            Self::Rank => RANKS.map(|rank| Size { rank, ..MIDDLE }),
        }
    }
}

/// One tensor encoded alone.
#[derive(Clone, Debug)]
pub struct Point {
    pub varied: Varied,
    pub size: Size,
    pub report: Report,
    /// Floating-point operations of the products and factorisations, by formula.
    pub flop: f64,
    /// Numbers of the operands and results of those, 4 bytes each, by formula.
    pub bytes: f64,
    /// Flips of signs that were kept.
    pub flips: usize,
}

impl Point {
    /// Seconds of a step.
    pub fn seconds(&self, step: Step) -> f64 {
        self.report.seconds[step as usize]
    }

    pub fn total(&self) -> f64 {
        self.report.seconds.iter().sum()
    }
}

/// Encodes a tensor of each size, after one that is not counted.
pub fn sweep(device: &Device, say: &dyn Fn(&str)) -> Result<Vec<Point>, DeviceError> {
    run(device, Varied::M, Size { m: 1024, n: 1024, rank: 128 })?;
    let mut points = Vec::new();
    for varied in Varied::ALL {
        for size in varied.sizes() {
            let Size { m, n, rank } = size;
            say(&format!("{m} x {n} of rank {rank}"));
            points.extend(run(device, varied, size)?);
        }
    }
    Ok(points)
}

/// Nothing where the tensor could not be encoded.
fn run(device: &Device, varied: Varied, size: Size) -> Result<Option<Point>, DeviceError> {
    let Size { m, n, rank } = size;
    let (grams, weight) = (made_up_grams(device, n, 1)?, made_up_weight(device, m, n, 2)?);
    let sites = [SiteInput { width: n, grams: Some(&grams), damping: Some(0.03) }];
    let tasks = [Task { weight: &weight, rows: m, site: 0, candidates: vec![(1, rank)] }];
    let mut arena = Arena::new(device, predict(&sites, &tasks) + parts(&sites, &tasks))?;
    let params = Params::nvg();
    let (mut results, report) = encode_batch(&mut arena, &sites, &tasks, &params)?;
    let Some(Ok(candidate)) = results.pop().and_then(|mut task| task.pop()) else { return Ok(None) };
    let refined = candidate.refine;
    let (flop, bytes) = flop(size, &params);
    Ok(Some(Point { varied, size, report, flop, bytes, flips: refined.row_flips + refined.column_flips }))
}

/// Operations (2 a multiply-add pair) and bytes of the products and factorisations of one path: of the gauge (two products of
/// the stack and some 22 of order r a step), the scale sweeps, the column searches but for their flips, and what each input
/// and weight take once.
fn flop(Size { m, n, rank }: Size, params: &Params) -> (f64, f64) {
    let [m, n, r] = [m, n, rank].map(|side| side as f64);
    // (m, n, k) of products, and how often each is done.
    let searches = params.refine.sweeps as f64;
    let sweeps = params.scale_sweeps as f64 + 2.0 * searches * params.refine.scale_sweeps as f64;
    let steps = params.gauge_steps as f64;
    let products = [
        (2.0, (m, n, n)),
        (1.0, (n, n, n)),
        (2.0 * steps, (m + n, r, r)),
        (22.0 * steps, (r, r, r)),
        (sweeps, (r, r, m)),
        (sweeps, (m, r, r)),
        (sweeps, (r, r, m)),
        (2.0 * sweeps, (m, r, n)),
        (2.0 * sweeps, (n, r, r)),
        (sweeps, (n, n, r)),
        (sweeps, (n, r, n)),
        (sweeps / 6.0, (n, n, n)),
        (sweeps / 6.0, (r, r, r)),
        (2.0 * searches, (n, r, m)),
        (0.5 * searches, (n, r, n)),
    ];
    let count =
        |of: fn((f64, f64, f64)) -> f64| products.iter().map(|(often, shape)| often * of(*shape)).sum();
    (count(|(m, n, k)| 2.0 * m * n * k), count(|(m, n, k)| 4.0 * (m * k + n * k + m * n)))
}
