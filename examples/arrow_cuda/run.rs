use std::sync::Arc;
use std::time::Instant;

use std::num::NonZero;
use std::sync::Mutex;

use lapidary::arrow::bench::small_batch;
use lapidary::arrow::cuda::{CudaFrame, DeviceSlabs, Lane, Layout, Slabs, SmallBatch, Tuning};
use lapidary::arrow::fixtures::{self, COLOR_ARM, QWEN, SMALL, Shape};
use lapidary::arrow::{
    Backend, BatchSolution, Border, Budget, Cross, Frame, FrameError, NewtonParams, Params, Ridge, Rows,
    Status, System, Vector, bundle, newton, sweep,
};
use lapidary::device::cuda::{Buffer, Cuda, Event, Registered, Stream};
use lapidary::device::{Device, DevicePolicy, select};
use lapidary::ops::splitmix::SplitMix64;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const RUNS: usize = 60;

pub fn run() -> Result<()> {
    let started = Instant::now();
    let Device::Cuda(cuda) = select(DevicePolicy::Cuda)?.device else { return Err("no card".into()) };
    println!("card: {} (sm_{}), opened after {:.2?}", cuda.name(), cuda.arch(), started.elapsed());
    let copy = copy_rate(&cuda)?;
    println!("copy: {:.2} TB/s, bytes read plus written", copy / 1e12);
    accuracy(&cuda)?;
    let parts: Vec<String> = std::env::args().skip(1).collect();
    let wants = |part: &str| parts.is_empty() || parts.iter().any(|p| p == part);
    if wants("solve") {
        let mut small = CudaFrame::build(
            &cuda,
            &fixtures::well_conditioned(SMALL)?.into(),
            Ridge::None,
            Budget::Available,
        )?;
        let fixed = time(500, || small.solve_in_place().map(drop).map_err(Into::into))?;
        println!("the five kernels on a system of no size, launch and wait included: {fixed:.4} ms");
        fixture(&cuda, "color_arm", COLOR_ARM, copy)?;
        fixture(&cuda, "qwen", QWEN, copy)?;
    }
    if wants("bundle") {
        bundle_adjustment(&cuda)?;
    }
    if wants("batch") {
        batch(&cuda, copy)?;
    }
    if wants("sweep") {
        colour_matrix(&cuda)?;
    }
    println!("device counters: {:?}; {:.1?} in all", cuda.telemetry(), started.elapsed());
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Median milliseconds of `runs` runs after a tenth as many for warm-up.
fn time(runs: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..runs.div_ceil(10).max(3) {
        work()?;
    }
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(times))
}

fn copy_rate(cuda: &Cuda) -> Result<f64> {
    let stream = Stream::new(cuda)?;
    let (from, to) = (Buffer::<f64>::new(cuda, 1 << 28)?, Buffer::<f64>::new(cuda, 1 << 28)?);
    from.fill_bytes(&stream, 0x11)?;
    let (start, end) = (Event::new(cuda)?, Event::new(cuda)?);
    let mut times = Vec::new();
    for _ in 0..20 {
        start.record(&stream)?;
        to.copy_from(&stream, &from)?;
        end.record(&stream)?;
        times.push(end.milliseconds_since(&start)? as f64);
    }
    Ok(2.0 * from.bytes() as f64 / (median(times) * 1e-3))
}

fn accuracy(cuda: &Cuda) -> Result<()> {
    println!(
        "\n| system | method | corrections | condition | residual, random b | residual, b = Hx | log det, relative |"
    );
    println!("|---|---|---|---|---|---|---|");
    let shape = |rows, dim, border| Shape { rows, dim, border, seed: 7 };
    let mut systems = vec![("small".to_owned(), fixtures::well_conditioned(SMALL)?)];
    for s in [shape(5, 1, 1), shape(7, 3, 129), shape(50, 16, 65), shape(300, 5, 441), shape(1000, 3, 441)] {
        systems.push((format!("{} x {} + {}", s.rows, s.dim, s.border), fixtures::well_conditioned(s)?));
    }
    let ragged: Vec<usize> = (0..41).scan(0, |at, i| Some(std::mem::replace(at, *at + 1 + i % 5))).collect();
    systems.push(("ragged".to_owned(), ragged_system(&ragged, 100)?));
    for power in [1, 2, 3, 4, 5, 6, 7, 8, 10, 12] {
        let system = fixtures::ill_conditioned(shape(64, 2, 500), 10_f64.powi(power))?;
        systems.push((format!("condition 1e{power}"), system));
    }
    for (name, system) in systems {
        check(cuda, &name, system, true)?;
    }
    match Frame::build(&fixtures::indefinite()?.into(), &params(cuda)) {
        Err(error) => println!("indefinite: {error}"),
        Ok(_) => return Err("an indefinite system was factored".into()),
    }
    let border_only = fixtures::well_conditioned(SMALL)?;
    let mut c = fixtures::tridiagonal(4);
    c[10] = -0.5;
    let rows = Rows::Uniform { count: SMALL.rows, dim: SMALL.dim };
    let (d, b) = (border_only.row_hessian().to_vec(), border_only.cross().clone());
    match Frame::build(&System::new(rows, 4, d, b, Border::Dense(c))?.into(), &params(cuda)) {
        Err(error) => println!("indefinite border: {error}"),
        Ok(_) => return Err("an indefinite border was factored".into()),
    }
    let huge = Layout::new(vec![0, 1], 200_000);
    match CudaFrame::new(cuda, huge, Tuning::default(), Budget::Available) {
        Err(error) => println!("too large: {error}"),
        Ok(_) => return Err("a frame of 1 TB was allocated".into()),
    }
    Ok(())
}

fn params(cuda: &Cuda) -> Params {
    Params { backend: Backend::Cuda(cuda.clone().into()), ..Params::default() }
}

fn ragged_system(offsets: &[usize], p: usize) -> Result<System> {
    let mut random = SplitMix64::new(11);
    let blocks = offsets.windows(2).flat_map(|at| fixtures::row_block(at[1] - at[0], &mut random)).collect();
    let m = offsets[offsets.len() - 1];
    let mut random = SplitMix64::new(12);
    let cross = (0..m * p).map(|_| fixtures::cross_entry(&mut random)).collect();
    let border = Border::Dense(fixtures::tridiagonal(p));
    Ok(System::new(Rows::Ragged(offsets.to_vec()), p, blocks, Cross::Dense(cross), border)?)
}

/// Residuals of one and of several solves, and the determinant beside the host's.
fn check(cuda: &Cuda, name: &str, system: System, host: bool) -> Result<()> {
    let system = Arc::new(system);
    let mut frame = Frame::build(&system, &params(cuda))?;
    let norm = system.norm2(Ridge::None);
    let random = fixtures::random_vector(&system, 3);
    let exact = system.apply(&fixtures::random_vector(&system, 4));
    let residual = |step: &Vector, rhs: &Vector| system.residual(Ridge::None, norm, step, rhs);
    let first = residual(&frame.solve(&random)?.step, &random);
    let second = residual(&frame.solve(&exact)?.step, &exact);
    let again = frame.solve(&exact)?.step;
    let many: Vec<Vector> = (0..5).map(|k| system.apply(&fixtures::random_vector(&system, 20 + k))).collect();
    let steps = frame.solve_many(&many)?.steps;
    let worst = many.iter().zip(&steps).map(|(rhs, step)| residual(step, rhs)).fold(second, f64::max);
    let about = frame.about();
    let log_det = if host {
        let expected = Frame::build(&system, &Params::default())?.log_det();
        format!("{:.1e}", ((frame.log_det() - expected) / expected).abs())
    } else {
        "-".to_owned()
    };
    println!(
        "| {name} | {:?} | {} | {:.1e} | {first:.1e} | {worst:.1e} | {log_det} |",
        about.method, about.corrections, about.condition
    );
    let same = again == frame.solve(&exact)?.step;
    let good = first.max(worst) <= 1e-14;
    if !same || !good {
        println!("FAILED: {name}: residual {first:e} {worst:e}, repeats {same}");
    }
    Ok(())
}

fn fixture(cuda: &Cuda, name: &str, shape: Shape, copy: f64) -> Result<()> {
    println!("\n## {name}: n = {}, d = {}, p = {}", shape.rows, shape.dim, shape.border);
    let system = fixtures::well_conditioned(shape)?;
    check(cuda, name, system.clone(), true)?;
    let (m, p) = (system.unknowns(), system.border());
    let (Cross::Dense(cross), Border::Dense(border)) = (system.cross(), system.border_hessian()) else {
        return Err("a fixture is dense".into());
    };
    let row_hessian = system.row_hessian();
    let pinned =
        (Registered::new(cuda, cross)?, Registered::new(cuda, border)?, Registered::new(cuda, row_hessian)?);
    let stream = Stream::new(cuda)?;
    let slabs = DeviceSlabs::from_host(&stream, row_hessian, cross, border)?;
    let layout = Layout::new(system.offsets().to_vec(), p);
    let (y, half) = ((m * p * 8) as f64, (p * (p + 1) / 2 * 8) as f64);
    println!(
        "floors: half S⁻¹ and Y twice {:.4} ms, whole S⁻¹ {:.4} ms",
        (half + 2.0 * y) / copy * 1e3,
        (2.0 * half + 2.0 * y) / copy * 1e3
    );
    let rhs = fixtures::random_vector(&system, 9);
    for (leaf, panels) in [(64, 4), (96, 4)] {
        let tuning = Tuning { leaf, panels, ..Tuning::default() };
        let mut frame = CudaFrame::new(cuda, layout.clone(), tuning, Budget::Available)?;
        let build = time(50, || Ok(frame.factor(Slabs::Device(&slabs), Ridge::None)?))?;
        println!("frame, slabs on the device, leaf {leaf}, panels {panels}: {build:.3} ms");
    }
    for (kept, reducers) in [(0, 4), (24, 4), (24, 1), (24, 2), (24, 3), (24, 8)] {
        let tuning = Tuning { kept_bytes: kept << 20, reducers, ..Tuning::default() };
        let mut frame = CudaFrame::new(cuda, layout.clone(), tuning, Budget::Available)?;
        frame.factor(Slabs::Device(&slabs), Ridge::None)?;
        let vectors = time(300, || frame.solve(&rhs).map(drop).map_err(Into::into))?;
        let pinned = time(300, || frame.solve_in_place().map(drop).map_err(Into::into))?;
        println!(
            "resident, {kept} MiB kept, {reducers} reducers: {vectors:.4} ms from vector to vector, {pinned:.4} ms pinned to pinned"
        );
    }
    let mut frame = CudaFrame::new(cuda, layout, Tuning::default(), Budget::Available)?;
    let reupload = time(50, || {
        frame.factor(Slabs::Host { row_hessian, cross, border }, Ridge::None)?;
        frame.solve(&rhs).map(drop).map_err(Into::into)
    })?;
    println!("re-upload (pinned, warm): {reupload:.3} ms");
    let (rows, borders) = frame.wide_rhs_mut(64)?;
    let mut random = SplitMix64::new(5);
    rows.iter_mut().chain(borders).for_each(|v| *v = random.signed());
    let many = time(100, || frame.solve_wide().map(drop).map_err(Into::into))?;
    println!("solve_many of 64, pinned to pinned: {many:.4} ms");
    drop(pinned);
    Ok(())
}

fn batch(cuda: &Cuda, copy: f64) -> Result<()> {
    for (systems, rows, dim, p) in [(10_000, 200, 2, 8), (5, 3, 1, 1), (300, 70, 3, 32), (300, 129, 2, 5)] {
        let mut batch = small_batch(systems, rows, dim, p);
        batch.border_hessian[3 * p * p] = -1.0;
        batch.row_hessian[2 * rows * dim * dim] = -1.0;
        let device = SmallBatch::new(cuda, &batch)?;
        device.solve(Ridge::None)?;
        let (seen, expected) = (device.steps()?, batch.solve()?);
        let mut worst = 0.0_f64;
        for k in (0..systems).step_by(systems.div_ceil(50)).filter(|k| *k != 3 && *k != 2) {
            let (system, rhs) = batch.system(k)?;
            let step = seen.step(&batch, k);
            worst = worst.max(system.residual(Ridge::None, system.norm2(Ridge::None), &step, &rhs));
        }
        let failed = |solution: &BatchSolution| {
            let all = solution.status.iter().enumerate();
            all.filter(|(_, s)| **s != Status::Solved).map(|(k, s)| (k, *s)).collect::<Vec<_>>()
        };
        let log_det = seen.log_det.iter().zip(&expected.log_det).enumerate();
        let log_det = log_det.filter(|(k, _)| *k != 2 && *k != 3);
        let apart = log_det.map(|(_, (a, b))| ((a - b) / b).abs()).fold(0.0, f64::max);
        let took = time(RUNS, || device.solve(Ridge::None).map_err(Into::into))?;
        let numbers = batch.row_hessian.len()
            + batch.row_cross.len()
            + batch.border_hessian.len()
            + 2 * batch.row_rhs.len()
            + 2 * batch.border_rhs.len();
        println!(
            "\nbatch of {systems} systems ({rows} rows, d = {dim}, p = {p}): {took:.4} ms, floor {:.4} ms, worst residual {worst:.1e}, log det apart {apart:.1e}\n  device {:?}\n  host   {:?}",
            8.0 * numbers as f64 / copy * 1e3,
            failed(&seen),
            failed(&expected)
        );
    }
    Ok(())
}

type Cell = (Layout, Vec<f64>, Vec<f64>, Vector);

fn colour_matrix(cuda: &Cuda) -> Result<()> {
    let p = COLOR_ARM.border;
    let border = fixtures::tridiagonal(p);
    let mut cells: Vec<Cell> = Vec::new();
    for (_, shape) in fixtures::colour_matrix() {
        let mut random = SplitMix64::new(shape.seed);
        let rows: Vec<f64> =
            (0..shape.rows).flat_map(|_| fixtures::row_block(shape.dim, &mut random)).collect();
        let m = shape.rows * shape.dim;
        let cross: Vec<f64> = (0..m * p).map(|_| fixtures::cross_entry(&mut random)).collect();
        let mut take = |count: usize| (0..count).map(|_| random.signed()).collect();
        let rhs = Vector { row: take(m), border: take(p) };
        cells.push((Layout::new((0..=shape.rows).map(|i| i * shape.dim).collect(), p), rows, cross, rhs));
    }
    let mut pinned = vec![Registered::new(cuda, &border)?];
    for (_, rows, cross, _) in &cells {
        pinned.extend([Registered::new(cuda, rows)?, Registered::new(cuda, cross)?]);
    }
    let bytes: usize = cells.iter().map(|(_, r, c, _)| 8 * (r.len() + c.len() + border.len())).sum();
    let stream = Stream::new(cuda)?;
    let target = Buffer::<f64>::new(cuda, border.len())?;
    let upload = time(20, || {
        target.upload(&stream, &border)?;
        Ok(stream.wait()?)
    })?;
    let transfer = bytes as f64 / (8 * border.len()) as f64 * upload;
    println!("\nsweep of 32: {:.2} GB, upload alone {transfer:.1} ms", bytes as f64 / 1e9);
    let mut reference = None;
    for lanes in [1, 2, 4, 6] {
        let pool: Vec<Mutex<Lane>> = (0..lanes).map(|_| Mutex::new(Lane::new(cuda))).collect();
        let fit = |lane: &mut usize, (layout, row_hessian, cross, rhs): &Cell| {
            let mut lane = pool[*lane].lock().unwrap();
            let frame = lane.frame(layout)?;
            frame.factor(Slabs::Host { row_hessian, cross, border: &border }, Ridge::None)?;
            frame.solve(rhs)
        };
        let mut steps: Vec<Vector> = Vec::new();
        let took = time(20, || {
            let swept = sweep(&cells, NonZero::new(lanes).unwrap(), |lane| lane, fit);
            steps = swept.results.into_iter().collect::<std::result::Result<_, FrameError>>()?;
            Ok(())
        })?;
        let same = reference.get_or_insert_with(|| steps.clone()) == &steps;
        println!(
            "{lanes} lanes: {took:.1} ms, {:.0} fits/s, bit-identical {same}, upload share {:.2}",
            32e3 / took,
            transfer / took
        );
    }
    Ok(())
}

/// The same loop on host and device.
fn bundle_adjustment(cuda: &Cuda) -> Result<()> {
    let path =
        std::env::var("LAPIDARY_BAL").unwrap_or("../shared/data/bal/problem-49-7776-pre.txt".to_owned());
    for backend in [Backend::Host, Backend::Cuda(cuda.clone().into())] {
        let (mut problem, start) = bundle::read(path.as_ref())?;
        let name = if matches!(backend, Backend::Host) { "host" } else { "cuda" };
        let params = NewtonParams { backend, ..NewtonParams::default() };
        let summary = newton(&mut problem, start, &params)?;
        println!(
            "\nbundle adjustment, {name}: {:?}, cost {:.6}, {} tries, {} accepted, {} frames, {:.1} ms a try, {:?}",
            summary.outcome,
            summary.objective,
            summary.tries,
            summary.accepts,
            summary.builds,
            1e3 * summary.time.as_secs_f64() / f64::from(summary.tries.max(1)),
            summary.telemetry
        );
    }
    Ok(())
}
