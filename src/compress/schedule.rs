//! All tensors of a stage on one device: side by side as far as its memory goes, largest first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use super::batch::{
    Candidate, CandidateError, Report, SiteInput, Task, check_rank, encode_batch, fills_a_card, parts,
    predict,
};
use super::encoder::EncodedBy;
use super::recipe::{PathChoice, Recipe};
use super::tensor::{Packed, Quality};
use crate::blr::rank::{Budget, Rank, rank_for};
use crate::device::arena::Arena;
use crate::device::{Device, DeviceError};

/// A tensor to be encoded.
pub struct Wanted<'a> {
    /// For messages
    pub name: String,
    /// W, row-major
    pub weight: &'a [f32],
    pub rows: usize,
    /// Which of the stage's inputs it reads
    pub site: usize,
    pub budget: Budget,
}

/// What became of a tensor on the device.
pub enum Done {
    Packed(Box<Packed>),
    /// It stays as it was, and why.
    Dense(String),
    /// The device could not do it, and why: the reference has to.
    Retry(String),
}

/// One form of one tensor: which, in how many paths, of which rank.
#[derive(Clone, Copy)]
struct Unit {
    tensor: usize,
    paths: usize,
    rank: Rank,
}

/// A device that encodes, with the arenas of its last batches kept for the next.
pub struct Scheduler {
    device: Device,
    lanes: Vec<Lane>,
    /// The most numbers that all lanes may take together; `None` for what the device has.
    most: Option<usize>,
}

/// One queue of batches.
struct Lane {
    device: Device,
    /// Where lanes compete, those of a lower rank go first.
    rank: usize,
    arena: Option<Arena>,
}

/// The share of a card's room that batches may take: the spectra need memory of their own beside it.
#[cfg(feature = "cuda")]
const SHARE: f64 = 0.75;

/// Batches that a card works on at once: tensors with the longest inputs and the others, in one path and in two.
#[cfg(feature = "cuda")]
const LANES: usize = 4;

impl Scheduler {
    /// A card gets several lanes: a chain of small steps leaves most of it idle. Elsewhere there is one queue.
    pub fn new(device: Device) -> Self {
        let lanes = match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => LANES,
            _ => 1,
        };
        let lanes = (0..lanes).map(|rank| Lane { device: device.clone(), rank, arena: None }).collect();
        Self { device, lanes, most: None }
    }

    /// One whose batches take no more than that many numbers of 4 bytes together, where a tensor alone does not need
    /// more. What becomes of a tensor does not depend on it.
    pub fn with_most(device: Device, numbers: usize) -> Self {
        Self { most: Some(numbers), ..Self::new(device) }
    }

    /// The lanes that a stage gets, and the most numbers that a batch of one may take: as many as have room for the
    /// largest tensor each.
    fn open_lanes(&mut self, largest: usize) -> Result<(&mut [Lane], usize), DeviceError> {
        let most = self.most()?;
        let mut count = self.lanes.len();
        while count > 1 && largest > most / count {
            count /= 2;
        }
        // An arena of a stage with fewer lanes may be larger than the share of one now.
        let too_large =
            |arena: &Option<Arena>| arena.as_ref().is_some_and(|arena| arena.len() > most / count);
        for (k, lane) in self.lanes.iter_mut().enumerate() {
            if k >= count || too_large(&lane.arena) {
                lane.arena = None;
            }
        }
        Ok((&mut self.lanes[..count], (most / count).min(u32::MAX as usize)))
    }

    /// The most numbers that batches may take together.
    fn most(&self) -> Result<usize, DeviceError> {
        if let Some(most) = self.most {
            return Ok(most);
        }
        let held: usize = self.lanes.iter().filter_map(|lane| lane.arena.as_ref()).map(Arena::len).sum();
        let most = most(&self.device)?;
        Ok(match self.device {
            // An adapter's limit is that of one binding, whatever is allocated.
            #[cfg(feature = "wgpu")]
            Device::Wgpu(_) => most,
            _ => most.saturating_add(held),
        })
    }
}

impl Lane {
    /// An arena of at least this size.
    fn arena(&mut self, numbers: usize) -> Result<&mut Arena, DeviceError> {
        if self.arena.as_ref().is_none_or(|arena| arena.len() < numbers) {
            // The old one first: both may not fit.
            self.arena = None;
            self.arena = Some(Arena::ranked(&self.device, numbers, self.rank)?);
        }
        Ok(self.arena.as_mut().expect("made above"))
    }
}

/// The most numbers that batches may take together beside what is allocated.
pub(super) fn most(device: &Device) -> Result<usize, DeviceError> {
    let room = Arena::room(device)?;
    Ok(match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => (room as f64 * SHARE) as usize,
        _ => room,
    })
}

/// Encodes all tensors of a stage and calls `done` once for each, as it is done.
///
/// As many as the device has room for go side by side; what becomes of one does not depend on that. A device that fails
/// gives its tensors back ([`Done::Retry`]).
pub fn encode_stage(
    scheduler: &mut Scheduler,
    recipe: &Recipe,
    sites: &[SiteInput<'_>],
    wanted: &[Wanted<'_>],
    mut done: impl FnMut(usize, Done),
) -> Report {
    let mut units = Vec::new();
    for (tensor, want) in wanted.iter().enumerate() {
        let width = sites[want.site].width;
        match forms(recipe, (want.rows, width), want.budget) {
            Ok(forms) => units.extend(forms.into_iter().map(|(paths, rank)| Unit { tensor, paths, rank })),
            Err(done_with) => done(tensor, done_with),
        }
    }
    let mut collected = Collected::new(scheduler.device.clone(), wanted, sites, &units);
    let device = scheduler.device.clone();
    let needed = |unit: &Unit| {
        let want = &wanted[unit.tensor];
        alone(&device, (want.rows, sites[want.site].width), (unit.paths, unit.rank))
    };
    let largest = units.iter().map(needed).max().unwrap_or(0);
    let (lanes, limit) = match scheduler.open_lanes(largest) {
        Ok(found) => found,
        Err(error) => {
            collected.take(units, Err(error), &mut done);
            return collected.report;
        }
    };
    let groups = if lanes.len() > 1 { grouped(&units, wanted, sites) } else { vec![units] };
    let batches: VecDeque<_> =
        groups.iter().flat_map(|group| batches(&device, group, wanted, sites, limit)).collect();
    let batches = Mutex::new(batches);
    let next = || batches.lock().unwrap_or_else(|e| e.into_inner()).pop_front();
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel();
        for lane in lanes {
            let (send, next) = (send.clone(), &next);
            // The batches that take longest go to the lanes that go first.
            let mut batch = next();
            let work = move || {
                while let Some(batch) = batch.take().or_else(next) {
                    let ran = run(lane, recipe, sites, wanted, &batch);
                    // What is in the arena of a device that failed is worth nothing.
                    if ran.is_err() {
                        lane.arena = None;
                    }
                    // The receiver lives until all lanes are done.
                    let _ = send.send((batch, ran));
                }
            };
            scope.spawn(work);
        }
        drop(send);
        receive.into_iter().for_each(|(batch, ran)| collected.take(batch, ran, &mut done));
    });
    collected.report
}

/// The units for lanes side by side, those with the longest chains of steps first: two paths apart from one. Where products
/// fill the card by themselves, also long inputs apart from short ones: what is left to go side by side there are the
/// steps over the columns of the input.
fn grouped(units: &[Unit], wanted: &[Wanted<'_>], sites: &[SiteInput<'_>]) -> Vec<Vec<Unit>> {
    let mut groups: BTreeMap<_, Vec<Unit>> = BTreeMap::new();
    for unit in units {
        let want = &wanted[unit.tensor];
        let width = sites[want.site].width;
        let length = if fills_a_card(want.rows, width) { width } else { 0 };
        groups.entry((Reverse(length), Reverse(unit.paths))).or_default().push(*unit);
    }
    groups.into_values().collect()
}

/// What is known of each tensor's forms; nothing once it is done.
struct Collected<'a> {
    device: Device,
    wanted: &'a [Wanted<'a>],
    sites: &'a [SiteInput<'a>],
    open: Vec<Option<Vec<Formed>>>,
    /// Forms that each tensor has
    forms: Vec<usize>,
    report: Report,
}

impl<'a> Collected<'a> {
    fn new(device: Device, wanted: &'a [Wanted<'a>], sites: &'a [SiteInput<'a>], units: &[Unit]) -> Self {
        let forms = |tensor: usize| units.iter().filter(|unit| unit.tensor == tensor).count();
        Self {
            device,
            wanted,
            sites,
            open: wanted.iter().map(|_| Some(Vec::new())).collect(),
            forms: (0..wanted.len()).map(forms).collect(),
            report: Report::default(),
        }
    }

    fn take(&mut self, batch: Vec<Unit>, ran: Ran, done: &mut impl FnMut(usize, Done)) {
        let (results, report) = match ran {
            Ok(ran) => ran,
            Err(error) => {
                for unit in batch {
                    if self.open[unit.tensor].take().is_some() {
                        done(unit.tensor, Done::Retry(error.to_string()));
                    }
                }
                return;
            }
        };
        self.report.add(&report);
        for (unit, result) in batch.into_iter().zip(results) {
            let Some(formed) = &mut self.open[unit.tensor] else { continue };
            formed.push((unit, result));
            if formed.len() == self.forms[unit.tensor] {
                let mut formed = self.open[unit.tensor].take().unwrap_or_default();
                formed.sort_by_key(|(unit, _)| unit.paths);
                done(unit.tensor, choose(&self.device, formed, &self.wanted[unit.tensor], self.sites));
            }
        }
    }
}

/// The results of a batch, one a unit.
type Ran = Result<(Vec<Result<Candidate, CandidateError>>, Report), DeviceError>;

type Formed = (Unit, Result<Candidate, CandidateError>);

/// The forms that a tensor of m x n is encoded in, as (paths, rank); where it has none on a device, what becomes of it.
pub(super) fn forms(
    recipe: &Recipe,
    (m, n): (usize, usize),
    budget: Budget,
) -> Result<Vec<(usize, Rank)>, Done> {
    let paths: &[usize] = match recipe.paths {
        PathChoice::One => &[1],
        PathChoice::Two => &[2],
        PathChoice::Auto => &[1, 2],
    };
    let form = |paths: &usize| {
        let rank = rank_for(m, n, *paths, budget)
            .ok_or_else(|| Done::Dense(format!("a side of {m}x{n} is below 8, the smallest rank")))?;
        check_rank(rank.rank).map_err(|error| Done::Retry(error.to_string()))?;
        Ok((*paths, rank))
    };
    paths.iter().map(form).collect()
}

/// Numbers that one form of an m x n tensor takes in a batch of its own.
pub(super) fn alone(device: &Device, (m, n): (usize, usize), (paths, rank): (usize, Rank)) -> usize {
    let task = Task { weight: &[], rows: m, site: 0, candidates: vec![(paths, rank.rank)] };
    numbers(device, &[SiteInput { width: n, grams: None, damping: None }], &[task])
}

/// Numbers that a batch takes on a device.
fn numbers(device: &Device, sites: &[SiteInput<'_>], tasks: &[Task<'_>]) -> usize {
    let behind = match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => parts(sites, tasks),
        _ => 0,
    };
    predict(sites, tasks) + behind
}

/// Cuts the units, in their order, into batches that fit; one that does not fit alone is a batch of its own, and the
/// device will say so.
fn batches(
    device: &Device,
    units: &[Unit],
    wanted: &[Wanted<'_>],
    sites: &[SiteInput<'_>],
    limit: usize,
) -> Vec<Vec<Unit>> {
    let mut batches: Vec<Vec<Unit>> = Vec::new();
    for unit in units {
        if let Some(last) = batches.last_mut() {
            last.push(*unit);
            let (inputs, tasks, _) = layout(last, wanted, sites);
            if numbers(device, &inputs, &tasks) <= limit {
                continue;
            }
            last.pop();
        }
        batches.push(vec![*unit]);
    }
    batches
}

/// The inputs and tasks of a batch, and for each unit its task and its place among that task's candidates.
fn layout<'a>(
    batch: &[Unit],
    wanted: &[Wanted<'a>],
    sites: &[SiteInput<'a>],
) -> (Vec<SiteInput<'a>>, Vec<Task<'a>>, Vec<(usize, usize)>) {
    let (mut inputs, mut used, mut tensors) = (Vec::new(), Vec::new(), Vec::new());
    let (mut tasks, mut places): (Vec<Task<'_>>, _) = (Vec::new(), Vec::new());
    for unit in batch {
        let want = &wanted[unit.tensor];
        let site = used.iter().position(|s| *s == want.site).unwrap_or_else(|| {
            used.push(want.site);
            inputs.push(sites[want.site]);
            used.len() - 1
        });
        let task = tensors.iter().position(|t| *t == unit.tensor).unwrap_or_else(|| {
            tensors.push(unit.tensor);
            tasks.push(Task { weight: want.weight, rows: want.rows, site, candidates: Vec::new() });
            tensors.len() - 1
        });
        places.push((task, tasks[task].candidates.len()));
        tasks[task].candidates.push((unit.paths, unit.rank.rank));
    }
    (inputs, tasks, places)
}

/// The results of a batch, one a unit.
fn run(
    lane: &mut Lane,
    recipe: &Recipe,
    sites: &[SiteInput<'_>],
    wanted: &[Wanted<'_>],
    batch: &[Unit],
) -> Ran {
    let (inputs, tasks, places) = layout(batch, wanted, sites);
    let arena = lane.arena(numbers(&lane.device, &inputs, &tasks))?;
    let (results, report) = encode_batch(arena, &inputs, &tasks, &recipe.params)?;
    let mut results: Vec<Vec<Option<_>>> =
        results.into_iter().map(|task| task.into_iter().map(Some).collect()).collect();
    let in_order =
        places.into_iter().map(|(task, k)| results[task][k].take().expect("each unit has its own place"));
    Ok((in_order.collect(), report))
}

/// The form with the lower error on the held-out Gram, before rounding; two paths on a tie.
fn choose(device: &Device, forms: Vec<Formed>, want: &Wanted<'_>, sites: &[SiteInput<'_>]) -> Done {
    let mut best: Option<(Unit, Candidate)> = None;
    let mut moved = 0;
    for (unit, result) in forms {
        let candidate = match result {
            Ok(candidate) => candidate,
            Err(error @ CandidateError::Round(_)) => return Done::Dense(error.to_string()),
            Err(error) => return Done::Retry(error.to_string()),
        };
        moved += candidate.moved;
        if best.as_ref().is_none_or(|(_, best)| candidate.judged.choice <= best.judged.choice) {
            best = Some((unit, candidate));
        }
    }
    let Some((unit, candidate)) = best else { return Done::Retry("it has no candidate".into()) };
    let (judged, weights) = (candidate.judged, want.rows * sites[want.site].width);
    let quality = Quality {
        encoded_by: EncodedBy::of(device),
        retried: None,
        paths: unit.paths,
        rank: unit.rank.rank,
        requested_bits: want.budget.bits,
        delivered_bits: judged.payload.bits() as f64 / weights as f64,
        factor: want.budget.factor,
        clipped: unit.rank.clipped,
        fit_rel: judged.fit_rel,
        heldout_rel: judged.heldout_rel,
        weight_rel: judged.weight_rel,
        damping: candidate.damping,
        damping_tries: candidate.damping_tries,
        row_flips: candidate.refine.row_flips,
        column_flips: candidate.refine.column_flips,
        steps_kept: candidate.refine.kept,
        steps_undone: candidate.refine.undone,
        svd_fallbacks: 0,
    };
    Done::Packed(Box::new(Packed { payload: judged.payload, quality, moved }))
}
