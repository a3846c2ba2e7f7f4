//! The bench of a card: floors are set by rates that the same run measures on it.

mod accuracy;
mod batch;
mod bundle;
mod fixture;
mod quadratic;
mod sweep;

use std::time::Instant;

use super::{Bench, BenchError, BenchParams, Figure, Rates};
use crate::arrow::cuda::CudaPool;
use crate::arrow::fixtures;
use crate::arrow::{Backend, Params};
use crate::device::DeviceError;
use crate::device::cuda::{Blas, Buffer, Cuda, Event, Op, Pinned, Stream};

/// Timed runs of a single solve for one run of anything longer.
const SHORT: usize = 6;

/// Numbers that are copied to measure a rate: 2 GiB on the card, 256 MiB from the host.
const COPIED: usize = 1 << 28;
const UPLOADED: usize = 1 << 25;
/// Order of the product that measures the rate of arithmetic.
const SIDE: usize = 8192;

pub(super) fn run(
    params: &BenchParams,
    pool: &CudaPool,
    figures: &mut Vec<Figure>,
    tell: &dyn Fn(&str),
) -> Result<(), BenchError> {
    tell("rates of the card");
    let cuda = pool.cuda().clone();
    let rates = Rates { copy: copy_rate(&cuda)?, gemm: gemm_rate(&cuda)? };
    let upload = upload_rate(&cuda)?;
    let bench = Bench { params, rates, figures, worst: 0.0 };
    let mut card = Card { bench, cuda, upload };
    card.bench.push("copy_rate", rates.copy / 1e9, "GB/s").note = Some("bytes read plus written".into());
    card.bench.push("gemm_rate", rates.gemm / 1e9, "GFLOP/s");
    card.bench.push("upload_rate", upload / 1e9, "GB/s").note = Some("pinned".into());
    let measured = card.measure(tell);
    let worst = card.bench.worst;
    card.bench.push("worst_residual", worst, "1").floor = Some((super::RESIDUAL_BOUND, "what is allowed"));
    measured
}

/// The bench with what it knows of the card.
struct Card<'a> {
    bench: Bench<'a>,
    cuda: Cuda,
    /// Bytes a second from pinned memory.
    upload: f64,
}

impl Card<'_> {
    fn measure(&mut self, tell: &dyn Fn(&str)) -> Result<(), BenchError> {
        tell("accuracy beside the host");
        self.accuracy()?;
        for (case, shape) in [("color_arm", fixtures::COLOR_ARM), ("qwen", fixtures::QWEN)] {
            tell(case);
            self.fixture(case, fixtures::well_conditioned(shape)?)?;
        }
        for (case, system) in super::structured()? {
            tell(case);
            self.fixture(case, system)?;
        }
        tell("a quadratic from try to try");
        self.quadratic()?;
        tell("small systems");
        self.small_systems()?;
        tell("sweep");
        self.sweep()?;
        if let Some(path) = &self.bench.params.bundle {
            tell("bundle adjustment, host and card");
            self.bundle(path)?;
        }
        Ok(())
    }

    fn backend(&self) -> Backend {
        self.bench.params.backend.clone()
    }

    fn params(&self) -> Params {
        self.bench.frame_params()
    }

    fn runs(&self) -> usize {
        self.bench.params.runs
    }

    fn wrong(case: &str, what: impl Into<String>) -> BenchError {
        BenchError::Wrong { case: case.into(), what: what.into() }
    }
}

/// Median milliseconds of `runs` runs, after a tenth as many for warm-up.
fn time<E>(runs: usize, mut work: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    for _ in 0..runs.div_ceil(10).max(3) {
        work()?;
    }
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs.max(1) {
        let began = Instant::now();
        work()?;
        times.push(1e3 * began.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Median milliseconds of device time between two events around `queue`.
fn device_time(stream: &Stream, queue: impl Fn() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
    let (start, end) = (Event::new(stream.cuda())?, Event::new(stream.cuda())?);
    let mut times = Vec::new();
    for _ in 0..20 {
        start.record(stream)?;
        queue()?;
        end.record(stream)?;
        times.push(f64::from(end.milliseconds_since(&start)?));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Bytes read plus bytes written a second.
fn copy_rate(cuda: &Cuda) -> Result<f64, DeviceError> {
    let stream = Stream::new(cuda)?;
    let (from, to) = (Buffer::<f64>::new(cuda, COPIED)?, Buffer::<f64>::new(cuda, COPIED)?);
    from.fill_bytes(&stream, 0x11)?;
    let milliseconds = device_time(&stream, || to.copy_from(&stream, &from))?;
    Ok(2e3 * from.bytes() as f64 / milliseconds)
}

/// f64 multiplications and additions a second in a large product.
fn gemm_rate(cuda: &Cuda) -> Result<f64, DeviceError> {
    let stream = Stream::new(cuda)?;
    let blas = Blas::new(&stream)?;
    let [a, b, c] = [(); 3].map(|()| Buffer::<f64>::new(cuda, SIDE * SIDE));
    let (a, b, c) = (a?, b?, c?);
    // Bytes of 0x3f are numbers near 4.8e-4.
    a.fill_bytes(&stream, 0x3f)?;
    b.fill_bytes(&stream, 0x3f)?;
    let of = |matrix: &Buffer<f64>| (matrix.address(), SIDE);
    let (ops, shape) = ((Op::None, Op::Transposed), (SIDE, SIDE, SIDE));
    // SAFETY: three buffers of this shape.
    let product = || unsafe { blas.gemm(ops, shape, (1.0, 0.0), of(&a), of(&b), of(&c)) };
    let milliseconds = device_time(&stream, product)?;
    Ok(2e3 * (SIDE as f64).powi(3) / milliseconds)
}

/// Bytes a second from pinned memory.
fn upload_rate(cuda: &Cuda) -> Result<f64, DeviceError> {
    let stream = Stream::new(cuda)?;
    let from = Pinned::<f64>::new(cuda, UPLOADED)?;
    let to = Buffer::<f64>::new(cuda, UPLOADED)?;
    let milliseconds = time(20, || to.upload(&stream, &from))?;
    Ok(1e3 * to.bytes() as f64 / milliseconds)
}
