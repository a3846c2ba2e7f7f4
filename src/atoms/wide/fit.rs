use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::AtomsError;
use super::codes::{Batch, encode};
use super::frame::{Frame, framed, frames};
use super::plan::Plan;
use super::{Codes, Source, WideDictionary, WideFit, WideOutcome, WideParams};
use super::{begin, decoders, heldout, sources};
use crate::device::arena::{Arena, Layout, View};
use crate::device::{Device, DeviceError, Telemetry};

/// Share of its fair share of rows below which an atom counts as dead.
const DEAD: f64 = 0.01;

/// Bytes that a card takes beside an arena: the ring of tables (16 MiB), the workspace of products (32 MiB), and what cuBLAS,
/// cuSOLVER and loaded kernels hold. Measured, CUDA 13.0 on an H200: see [`EIGEN`].
const LIBRARIES: u64 = 300 << 20;

/// Bytes for each entry of a matrix whose eigenvectors a card finds in f64: four copies, and cuSOLVER's scratch. Measured: a fit
/// takes 582 MiB beside its arena where rows have 2,048 numbers, and 370 where they have 1,024.
const EIGEN: u64 = 8 * 9;

/// Numbers that no arena holds by far; what needs fewer can be placed without overflow.
const BEYOND: u128 = 1 << 40;

/// Fits that share an arena at most: tables of launches stay small against what they start.
const MOST_FITS: usize = 256;

/// One fit of a battery: the first `fit` rows of a source, the others are held out.
pub struct Job<'a> {
    pub source: &'a dyn Source,
    pub fit: usize,
    pub params: WideParams,
}

/// Fits in the order of their jobs, and what they took together.
#[derive(Debug)]
pub struct Battery {
    pub fits: Vec<Result<WideFit, AtomsError>>,
    pub usage: Usage,
}

/// What a battery took.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Usage {
    pub telemetry: Telemetry,
    /// Seconds in which the device had work queued; as long as the whole on the host.
    pub busy: f64,
    pub seconds: f64,
    /// Bytes of the largest arena
    pub arena: u64,
    pub arenas: usize,
}

/// One fit on its way.
pub(super) struct State<'a> {
    pub job: &'a Job<'a>,
    pub plan: Arc<Plan>,
    pub frame: Frame,
    pub failed: Option<AtomsError>,
    pub paired: Option<usize>,
    pub heldout: Option<f64>,
    pub codes: Codes,
    outcome: Option<WideOutcome>,
    explained: Vec<f64>,
    /// σ², what a number in the frame is missed by
    noise: f64,
    dead: f64,
    revived: usize,
}

impl State<'_> {
    pub fn is_running(&self) -> bool {
        self.failed.is_none() && self.outcome.is_none()
    }

    /// κ of circles: σ²/τ², and no bound on the phases alone before σ² is known.
    pub fn stiffness(&self) -> f32 {
        let spread = self.plan.params.spread;
        if spread > 0.0 && self.noise > 0.0 { (self.noise / (spread * spread)) as f32 } else { f32::INFINITY }
    }
}

/// Bytes that one fit alone takes on a device with room for so many numbers: its arena, and what a card's libraries take
/// beside it.
///
/// # Errors
/// Parameters that make no sense for these rows; a fit that has no room.
pub fn predicted_bytes(job: &Job<'_>, device: &Device, room: usize) -> Result<u64, AtomsError> {
    let arena = 4 * planned(&mut Layout::default(), job, room)?.1 as u64;
    let beside = match device {
        Device::Host => 0,
        _ => LIBRARIES + EIGEN * (job.source.width() as u64).pow(2),
    };
    Ok(arena + beside)
}

/// Fits all jobs, as many side by side as `memory` bytes hold (nothing given: as the device has free). Each result is the one
/// that its job has alone, bit for bit; one that fails leaves the others as they are. `told` hears of each as it ends.
pub fn fit_battery(
    device: &Device,
    jobs: &[Job<'_>],
    memory: Option<u64>,
    told: &dyn Fn(usize, &Result<WideFit, AtomsError>),
) -> Battery {
    Battery::fit_while(device, jobs, memory, &|at, fit| {
        told(at, fit);
        true
    })
}

impl Battery {
    /// As [`fit_battery`], but `told` says whether to go on: once it does not, no further fit is begun, and the fits that it
    /// has heard of are all that there are.
    pub fn fit_while(
        device: &Device,
        jobs: &[Job<'_>],
        memory: Option<u64>,
        told: &dyn Fn(usize, &Result<WideFit, AtomsError>) -> bool,
    ) -> Self {
        let began = Instant::now();
        let mut battery = Self { fits: Vec::new(), usage: Usage::default() };
        // What fails as a whole fails a job when it is alone; beside others each gets its own chance.
        let mut alone = 0;
        'all: while battery.fits.len() < jobs.len() {
            let rest = &jobs[battery.fits.len()..];
            let count = match alone {
                0 => room(device, memory).and_then(|room| together(rest, room)),
                _ => Ok(1),
            };
            let fits = match count {
                Ok(count) => match attempt(device, &rest[..count], memory, &mut battery.usage) {
                    Err(_) if count > 1 => {
                        alone = count;
                        continue;
                    }
                    Err(error) => vec![Err(error)],
                    Ok(fits) => fits,
                },
                Err(error) => vec![Err(error)],
            };
            alone = alone.saturating_sub(1);
            for fit in fits {
                let goes_on = told(battery.fits.len(), &fit);
                battery.fits.push(fit);
                if !goes_on {
                    break 'all;
                }
            }
        }
        battery.usage.seconds = began.elapsed().as_secs_f64();
        if matches!(device, Device::Host) {
            battery.usage.busy = battery.usage.seconds;
        }
        battery
    }
}

/// Numbers that an arena may hold.
fn room(device: &Device, memory: Option<u64>) -> Result<usize, AtomsError> {
    let most = Arena::largest(device)?;
    Ok(memory.map_or(most, |bytes| most.min((bytes / 4) as usize)))
}

/// Places a fit behind others and returns what the layout then needs. Where not all rows fit, the first are kept and the
/// others read again in every round.
fn planned(layout: &mut Layout, job: &Job<'_>, room: usize) -> Result<(Plan, usize), AtomsError> {
    let rows = job.fit.min(job.source.rows());
    job.params.check(rows, job.source.width())?;
    let floor = Plan::floor(job);
    if floor > BEYOND {
        let needed_mib = u64::try_from(floor.div_ceil(1 << 18)).unwrap_or(u64::MAX);
        let what = format!("a wide dictionary of {} atoms", job.params.atoms);
        return Err(DeviceError::Memory { what, needed_mib, free_mib: (4 * room as u64) >> 20 }.into());
    }
    let from = *layout;
    let plan = Plan::place(layout, job, rows);
    let needed = layout.most();
    if needed <= room {
        return Ok((plan, needed));
    }
    *layout = from;
    let over = (needed - room).div_ceil(plan.rank).next_multiple_of(plan.batch);
    let kept = rows.saturating_sub(over);
    if kept == 0 {
        let free = 4 * room as u64;
        return Err(DeviceError::memory("a wide dictionary", 4 * needed as u64, free).into());
    }
    let plan = Plan::place(layout, job, kept);
    Ok((plan, layout.most()))
}

/// How many of the first jobs fit into an arena together; the error of the first where not even that does.
fn together(jobs: &[Job<'_>], room: usize) -> Result<usize, AtomsError> {
    let mut layout = Layout::default();
    planned(&mut layout, &jobs[0], room)?;
    let mut count = 1;
    for job in &jobs[1..jobs.len().min(MOST_FITS)] {
        let rows = job.fit.min(job.source.rows());
        if job.params.check(rows, job.source.width()).is_err() || Plan::floor(job) > BEYOND {
            break;
        }
        Plan::place(&mut layout, job, rows);
        if layout.most() > room {
            break;
        }
        count += 1;
    }
    Ok(count)
}

fn attempt(
    device: &Device,
    jobs: &[Job<'_>],
    memory: Option<u64>,
    usage: &mut Usage,
) -> Result<Vec<Result<WideFit, AtomsError>>, AtomsError> {
    let began = Instant::now();
    let (room, mut layout) = (room(device, memory)?, Layout::default());
    let mut states = Vec::new();
    for job in jobs {
        states.push(State {
            job,
            plan: Arc::new(planned(&mut layout, job, room)?.0),
            frame: Frame { total: 0.0, values: Vec::new() },
            failed: None,
            paired: None,
            heldout: None,
            codes: Codes::default(),
            outcome: None,
            explained: Vec::new(),
            noise: 0.0,
            dead: 0.0,
            revived: 0,
        });
    }
    let mut arena = Arena::new(device, layout.most())?;
    frames(&mut arena, &mut states)?;
    start(&mut arena, &mut states)?;
    while states.iter().any(State::is_running) {
        round(&mut arena, &mut states, began)?;
    }
    let mut fits = Vec::new();
    for mut state in states {
        if state.failed.is_none() {
            heldout::measure(&mut arena, &mut state)?;
        }
        fits.push(match state.failed.take() {
            Some(error) => Err(error),
            None => finished(&mut arena, state),
        });
    }
    usage.telemetry += arena.telemetry();
    usage.busy += arena.busy().as_secs_f64();
    usage.arena = usage.arena.max(4 * layout.most() as u64);
    usage.arenas += 1;
    Ok(fits)
}

/// Bulks and decoders to begin with.
fn start(arena: &mut Arena, states: &mut [State<'_>]) -> Result<(), AtomsError> {
    sources::seek(arena, states)?;
    for state in states.iter().filter(|state| state.is_running() && state.plan.seeking.is_none()) {
        begin::bulk(arena, &state.plan);
        begin::from_rows(arena, state, 0);
    }
    let plans: Vec<&Plan> =
        states.iter().filter(|state| state.is_running()).map(|state| &*state.plan).collect();
    decoders::form(arena, &plans);
    decoders::see(arena, &plans);
    Ok(())
}

/// One round of all fits that still run.
fn round(arena: &mut Arena, states: &mut [State<'_>], began: Instant) -> Result<(), AtomsError> {
    for state in states.iter().filter(|state| state.is_running()) {
        arena.write(state.plan.activity, &vec![0.0; state.plan.params.atoms]);
        arena.write(state.plan.weights, &vec![0.0; state.plan.decoder.rows]);
    }
    let batches = states.iter().filter(|s| s.is_running()).map(|s| s.plan.batches()).max().unwrap_or(0);
    for c in 0..batches {
        let now = fetched(arena, states, c)?;
        encode(arena, &now);
        decoders::assemble(arena, c, &now);
    }
    let running: Vec<usize> = (0..states.len()).filter(|i| states[*i].is_running()).collect();
    let plans: Vec<Arc<Plan>> = running.iter().map(|i| states[*i].plan.clone()).collect();
    decoders::solve(arena, &plans.iter().map(|plan| &**plan).collect::<Vec<_>>());
    for i in &running {
        judge(arena, &mut states[*i], began.elapsed())?;
    }
    // Those that have just ended too: the bulk belongs to their last decoders.
    decoders::bulk(arena, states, &running)?;
    decoders::see(arena, &plans.iter().map(|plan| &**plan).collect::<Vec<_>>());
    Ok(())
}

/// Batch `c` of all fits that run and have one.
fn fetched<'a>(arena: &mut Arena, states: &'a [State<'_>], c: usize) -> Result<Vec<Batch<'a>>, AtomsError> {
    let (mut now, mut read) = (Vec::new(), Vec::new());
    for state in states.iter().filter(|state| state.is_running() && c < state.plan.batches()) {
        let plan = &*state.plan;
        let (first, rows) = plan.span(c);
        let part = |view: View| view.part((first, 0), (rows, view.cols));
        let kept = first + rows <= plan.kept.rows;
        let x = if kept { part(plan.kept) } else { plan.x.part((0, 0), (rows, plan.rank)) };
        if !kept {
            read.push((state, first, x));
        }
        let errors = plan.errors.at + first;
        let (support, values) = (part(plan.support), part(plan.values));
        now.push(Batch { plan, x, support, values, errors, stiffness: state.stiffness() });
    }
    framed(arena, &read)?;
    Ok(now)
}

/// Reads how a round went, decides whether it was the last, and lets dead atoms begin anew where it was not.
fn judge(arena: &mut Arena, state: &mut State<'_>, elapsed: Duration) -> Result<(), AtomsError> {
    let plan = state.plan.clone();
    let errors = arena.read(plan.errors.at, plan.rows)?;
    let rows = plan.rows as f64;
    let missed: f64 = errors.iter().map(|e| f64::from(*e)).sum();
    let inside: f64 = state.frame.values.iter().sum();
    let outside = (state.frame.total - inside).max(0.0);
    let explained = 1.0 - (missed / rows + outside) / state.frame.total;
    if !explained.is_finite() {
        state.failed =
            Some(AtomsError::Wide { what: "its numbers went beyond f32; scale the rows down".into() });
        return Ok(());
    }
    let activity = arena.read(plan.activity, plan.params.atoms)?;
    let fair = rows * plan.params.active as f64 / plan.params.atoms as f64;
    let dead: Vec<usize> = (0..activity.len()).filter(|k| f64::from(activity[*k]) < DEAD * fair).collect();
    state.dead = dead.len() as f64 / activity.len() as f64;
    state.noise = missed / (rows * plan.rank as f64);
    let before = state.explained.last().copied().unwrap_or(f64::NEG_INFINITY);
    state.explained.push(explained);
    let settled = (explained - before).abs() < plan.params.settled;
    state.outcome = match () {
        () if settled => Some(WideOutcome::Converged),
        () if state.explained.len() >= plan.params.rounds => Some(WideOutcome::RoundLimit),
        () if plan.params.deadline().is_some_and(|limit| elapsed >= limit) => Some(WideOutcome::TimeLimit),
        () => None,
    };
    if state.outcome.is_none() && !dead.is_empty() {
        state.revived += begin::revive(arena, state, &dead, &errors)?;
        decoders::form(arena, &[&plan]);
    }
    Ok(())
}

fn finished(arena: &mut Arena, state: State<'_>) -> Result<WideFit, AtomsError> {
    let plan = &state.plan;
    let mut read = |view: View| arena.read(view.at, view.len());
    let dictionary = WideDictionary {
        kind: plan.params.kind,
        width: plan.width,
        rank: plan.rank,
        mean: read(plan.mean)?,
        axes: read(plan.axes)?,
        bulk: read(plan.bulk)?,
        decoder: read(plan.decoder)?,
        activity: read(View::vector(plan.activity, plan.params.atoms))?,
    };
    Ok(WideFit {
        outcome: state.outcome.unwrap_or(WideOutcome::RoundLimit),
        explained: state.explained,
        heldout: state.heldout,
        dead: state.dead,
        revived: state.revived,
        paired: state.paired,
        dictionary,
        codes: state.codes,
    })
}
