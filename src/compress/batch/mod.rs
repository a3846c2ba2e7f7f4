//! The encoder on a device, many candidates at once, in f32. [`encode`](crate::compress::encode) is its definition in
//! f64, one tensor at a time; the files here have the names of those there and do the same steps for a whole batch.
//!
//! `layout` places every matrix of a batch in one arena and so predicts what it takes; `site` builds what the
//! candidates that read one input share; `job` is one candidate. Steps: `spectrum`, `gauge`, `scales` (over
//! `metric`), `refine`; `judge` rounds, measures and brings the results back.

mod error;
mod gauge;
mod job;
mod judge;
mod layout;
mod metric;
mod refine;
mod report;
mod scales;
mod site;
mod spectrum;
#[cfg(test)]
mod tests;

use super::encode::Params;
use super::refine::RefineInfo;
use super::tensor::Grams;
use crate::device::DeviceError;
use crate::device::arena::{Arena, View};
use crate::ops::dots::PARTS;
use gauge::{Start, start_path};
use job::{Job, JobViews, SUMS};
use judge::judge;
use layout::{Layout, parts_len};
use metric::{lambdas, residuals, weigh};
use refine::refine;
use report::Clock;
use scales::scale_sweeps;
use site::{Site, SiteScratch, open_sites};
use spectrum::{Metric64, Request, spectra};

pub use error::{CandidateError, check_rank};
pub use judge::Judged;
pub use layout::{Shape, fills_a_card};
pub use report::{Report, Step};

/// An input that layers read.
#[derive(Clone, Copy)]
pub struct SiteInput<'a> {
    pub width: usize,
    /// Fit and held-out Grams; `None` when no text was given.
    pub grams: Option<&'a Grams>,
    /// ρ of the damped Gram that the fit works in; `None` for the identity.
    pub damping: Option<f64>,
}

/// For each task, what became of each of its candidates.
pub type Results = Vec<Vec<Result<Candidate, CandidateError>>>;

/// A weight to be encoded, and in which forms.
pub struct Task<'a> {
    /// W, m x n, row-major
    pub weight: &'a [f32],
    pub rows: usize,
    /// Which of the batch's inputs it reads.
    pub site: usize,
    /// (paths, rank) of each candidate
    pub candidates: Vec<(usize, usize)>,
}

/// One candidate, fitted and rounded.
pub struct Candidate {
    pub judged: Judged,
    /// err(Ŵ; H̃)/err(0; H̃) before rounding.
    pub error: f64,
    pub refine: RefineInfo,
    pub damping: f64,
    pub damping_tries: usize,
    /// Bytes copied to and from the device for this candidate alone.
    pub moved: u64,
}

/// Encodes all candidates of all tasks side by side. `sites` are the inputs that tasks name.
///
/// What a candidate becomes does not depend on the others. Memory: the first [`predict`] numbers of the arena, and on a card
/// [`parts`] behind them.
/// Errors: the device's; a candidate's own failure is its own result.
///
/// # Panics
/// When the arena is smaller than that.
pub fn encode_batch(
    arena: &mut Arena,
    sites: &[SiteInput<'_>],
    tasks: &[Task<'_>],
    params: &Params,
) -> Result<(Results, Report), DeviceError> {
    let plan = Plan::of(sites, tasks);
    let behind = if arena.has_tensor_cores() { parts(sites, tasks) } else { 0 };
    let numbers = plan.numbers + behind;
    assert!(numbers <= arena.len(), "{numbers} numbers in an arena of {}", arena.len());
    let clock = Clock::start(numbers, arena);
    Batch::open(arena, plan, sites, tasks, clock)?.run(params)
}

/// Numbers (4 bytes each) of the arena that a batch needs.
pub fn predict(sites: &[SiteInput<'_>], tasks: &[Task<'_>]) -> usize {
    Plan::of(sites, tasks).numbers
}

/// Numbers behind those of [`predict`] that a batch needs on a card: its tensor cores take operands apart there.
pub fn parts(sites: &[SiteInput<'_>], tasks: &[Task<'_>]) -> usize {
    let of_tasks = tasks.iter().map(|task| parts_len(Some(task.rows), sites[task.site].width));
    of_tasks.chain(sites.iter().map(|site| parts_len(None, site.width))).max().unwrap_or(0)
}

/// Where everything of a batch lies.
struct Plan {
    sites: Vec<Site>,
    site_scratch: Vec<SiteScratch>,
    tasks: Vec<TaskViews>,
    jobs: Vec<(usize, Shape, JobViews, Start)>,
    sums: usize,
    flips: usize,
    flips_stride: usize,
    numbers: usize,
}

#[derive(Clone, Copy)]
struct TaskViews {
    weight: View,
    weighted: View,
    /// Leading left singular vectors for the largest rank, and the roots of their singular values.
    left: View,
    root: usize,
    inverse_root: usize,
}

impl Plan {
    fn of(sites: &[SiteInput<'_>], tasks: &[Task<'_>]) -> Self {
        let mut layout = Layout::default();
        let placed: Vec<_> = sites.iter().map(|s| Site::place(&mut layout, s.width)).collect();
        let shared = layout.mark();
        let site_scratch = placed.iter().map(|s| SiteScratch::place(&mut layout, s.n)).collect();
        layout.back_to(shared);
        let (mut views, mut jobs) = (Vec::new(), Vec::new());
        for (t, task) in tasks.iter().enumerate() {
            let (m, n) = (task.rows, placed[task.site].n);
            let rank = task.candidates.iter().map(|c| c.1).max().unwrap_or(0);
            views.push(TaskViews {
                weight: layout.matrix(m, n),
                weighted: layout.matrix(m, n),
                left: layout.matrix(m, rank),
                root: layout.vector(rank),
                inverse_root: layout.vector(rank),
            });
            for &(paths, rank) in &task.candidates {
                let shape = Shape { m, n, rank, paths };
                let second = match paths {
                    1 => (View::new(0, m, 0), 0, 0),
                    _ => (layout.matrix(m, rank), layout.vector(rank), layout.vector(rank)),
                };
                let views = JobViews::place(&mut layout, shape);
                let (left, root, inverse_root) = second;
                jobs.push((t, shape, views, Start { weight: views.residual(), left, root, inverse_root }));
            }
        }
        let sums = layout.vector(jobs.len() * SUMS * PARTS);
        let flips_stride = jobs.iter().map(|(_, s, ..)| s.m.max(s.n)).max().unwrap_or(0);
        let flips = layout.vector(jobs.len() * flips_stride);
        let numbers = layout.most();
        Self { sites: placed, site_scratch, tasks: views, jobs, sums, flips, flips_stride, numbers }
    }
}

/// A batch under way.
struct Batch<'a> {
    arena: &'a mut Arena,
    inputs: &'a [SiteInput<'a>],
    sites: Vec<Site>,
    tasks: &'a [Task<'a>],
    clock: Clock,
    views: Vec<TaskViews>,
    metrics: Vec<Metric64>,
    entries: Vec<Entry>,
}

struct Entry {
    task: usize,
    job: Job,
    /// Where its second path starts from, once that is known.
    second: Start,
    failed: Option<CandidateError>,
}

impl<'a> Batch<'a> {
    fn open(
        arena: &'a mut Arena,
        mut plan: Plan,
        sites: &'a [SiteInput<'a>],
        tasks: &'a [Task<'a>],
        mut clock: Clock,
    ) -> Result<Self, DeviceError> {
        let (behind, has_tensor_cores) = (plan.numbers, arena.has_tensor_cores());
        // By the shape alone, so that what a candidate becomes does not depend on the batch.
        let own_parts = |m: Option<usize>, n: usize| match has_tensor_cores {
            true => View::vector(behind, parts_len(m, n)),
            false => View::EMPTY,
        };
        for (site, scratch) in plan.sites.iter().zip(&mut plan.site_scratch) {
            scratch.factor.parts = own_parts(None, site.n);
        }
        let mut errors = open_sites(arena, &mut plan.sites, &plan.site_scratch, sites)?;
        clock.lap(arena, Step::Context)?;
        let metrics = match on_card(arena) {
            true => Vec::new(),
            false => Metric64::of(&plan.sites, sites, tasks, &mut errors),
        };
        for (task, views) in tasks.iter().zip(&plan.tasks) {
            arena.write(views.weight.at, task.weight);
        }
        clock.lap(arena, Step::Upload)?;
        let mut entries = Vec::new();
        for (k, (task, shape, views, second)) in plan.jobs.into_iter().enumerate() {
            let TaskViews { weight, weighted, .. } = plan.tasks[task];
            let site = tasks[task].site;
            let mut job = Job::new(plan.sites[site].clone(), shape, (weight, weighted), views);
            job.sums = plan.sums + k * SUMS * PARTS;
            job.flips = plan.flips + k * plan.flips_stride;
            job.moved = shape.m * shape.n;
            job.parts = own_parts(Some(shape.m), shape.n);
            let failed = check_rank(shape.rank).err().or(errors[site].clone().map(CandidateError::Context));
            entries.push(Entry { task, job, second, failed });
        }
        Ok(Self {
            arena,
            inputs: sites,
            sites: plan.sites,
            tasks,
            views: plan.tasks,
            metrics,
            entries,
            clock,
        })
    }

    fn run(mut self, params: &Params) -> Result<(Results, Report), DeviceError> {
        self.weigh()?;
        let starts = self.first_starts()?;
        self.clock.lap(self.arena, Step::Spectrum)?;
        self.start(&starts, params)?;
        self.clock.lap(self.arena, Step::Gauge)?;
        scale_sweeps(self.arena, &alive(&self.entries, |_| true), params.scale_sweeps);
        self.clock.lap(self.arena, Step::Scales)?;
        let starts = self.second_starts()?;
        self.clock.lap(self.arena, Step::Spectrum)?;
        self.start(&starts, params)?;
        self.clock.lap(self.arena, Step::Gauge)?;
        scale_sweeps(self.arena, &alive(&self.entries, |j| j.active == 2), params.joint_scale_sweeps);
        self.clock.lap(self.arena, Step::Scales)?;
        let mut jobs: Vec<&mut Job> = (self.entries.iter_mut())
            .filter(|entry| entry.failed.is_none())
            .map(|entry| &mut entry.job)
            .collect();
        refine(self.arena, &mut jobs, params.refine, &mut self.clock)?;
        let judged = self.judge()?;
        self.clock.lap(self.arena, Step::Judge)?;
        Ok((self.results(judged), self.clock.finish(self.arena)))
    }

    fn weigh(&mut self) -> Result<(), DeviceError> {
        let mut jobs: Vec<&mut Job> = (self.entries.iter_mut())
            .filter(|entry| entry.failed.is_none())
            .map(|entry| &mut entry.job)
            .collect();
        weigh(self.arena, &mut jobs)?;
        for entry in self.entries.iter_mut().filter(|entry| entry.failed.is_none()) {
            if !entry.job.energy.is_finite() {
                entry.failed = Some(CandidateError::NotFinite);
            } else if entry.job.energy <= 0.0 {
                entry.failed = Some(CandidateError::ZeroWeight);
            }
        }
        Ok(())
    }

    /// The spectrum of each weight, and where the first path of each candidate starts from.
    fn first_starts(&mut self) -> Result<Vec<(usize, Start)>, DeviceError> {
        let open = |t: &usize| self.entries.iter().any(|e| e.task == *t && e.failed.is_none());
        let tasks: Vec<usize> = (0..self.tasks.len()).filter(open).collect();
        let request = |t: &usize| {
            let TaskViews { weight, left, root, inverse_root, .. } = self.views[*t];
            Request { weight, site: self.tasks[*t].site, left, root, inverse_root }
        };
        let requests: Vec<_> = tasks.iter().map(request).collect();
        let found = spectra(self.arena, &self.sites, &self.metrics, &requests)?;
        let mut starts = Vec::new();
        for ((t, request), found) in tasks.into_iter().zip(requests).zip(found) {
            for (k, entry) in self.entries.iter_mut().enumerate() {
                if entry.task != t || entry.failed.is_some() {
                    continue;
                }
                match &found {
                    Ok(()) => {
                        let Request { weight, left, root, inverse_root, .. } = request;
                        let left = left.part((0, 0), (left.rows, entry.job.shape.rank));
                        starts.push((k, Start { weight, left, root, inverse_root }));
                    }
                    Err(error) => entry.failed = Some(error.clone().into()),
                }
            }
        }
        Ok(starts)
    }

    /// The same for the second path, from what the first one leaves.
    fn second_starts(&mut self) -> Result<Vec<(usize, Start)>, DeviceError> {
        let two: Vec<usize> = (0..self.entries.len())
            .filter(|k| self.entries[*k].failed.is_none() && self.entries[*k].job.shape.paths == 2)
            .collect();
        let jobs: Vec<&Job> = two.iter().map(|k| &self.entries[*k].job).collect();
        lambdas(self.arena, &jobs);
        residuals(self.arena, &jobs);
        let request = |k: &usize| {
            let Start { weight, left, root, inverse_root } = self.entries[*k].second;
            Request { weight, site: self.tasks[self.entries[*k].task].site, left, root, inverse_root }
        };
        let requests: Vec<_> = two.iter().map(request).collect();
        let found = spectra(self.arena, &self.sites, &self.metrics, &requests)?;
        let mut starts = Vec::new();
        for (k, found) in two.into_iter().zip(found) {
            match found {
                Ok(()) => starts.push((k, self.entries[k].second)),
                Err(error) => self.entries[k].failed = Some(error.into()),
            }
        }
        Ok(starts)
    }

    fn start(&mut self, starts: &[(usize, Start)], params: &Params) -> Result<(), DeviceError> {
        let mut jobs: Vec<&mut Job> = (self.entries.iter_mut().enumerate())
            .filter(|(k, _)| starts.iter().any(|(start, _)| start == k))
            .map(|(_, entry)| &mut entry.job)
            .collect();
        let order: Vec<Start> = starts_in_order(starts);
        start_path(self.arena, &mut jobs, &order, params.gauge_steps);
        for (k, _) in starts {
            let entry = &mut self.entries[*k];
            if self.arena.read(entry.job.scratch.status, 1)?[0] != 0.0 {
                entry.failed = Some(CandidateError::SingularGauge);
            }
        }
        Ok(())
    }

    fn judge(&mut self) -> Result<Vec<Result<Judged, CandidateError>>, DeviceError> {
        let has_grams = self.inputs.iter().all(|input| input.grams.is_some());
        let mut jobs: Vec<&mut Job> = (self.entries.iter_mut())
            .filter(|entry| entry.failed.is_none())
            .map(|entry| &mut entry.job)
            .collect();
        judge(self.arena, &mut jobs, has_grams)
    }

    fn results(&mut self, judged: Vec<Result<Judged, CandidateError>>) -> Results {
        let mut judged = judged.into_iter();
        let mut results: Results = self.tasks.iter().map(|_| Vec::new()).collect();
        for entry in self.entries.drain(..) {
            let job = entry.job;
            let result = match entry.failed {
                Some(error) => Err(error),
                None => {
                    judged.next().expect("one for each candidate that is alive").map(|judged| Candidate {
                        judged,
                        error: job.error / job.energy,
                        refine: job.info,
                        damping: job.site.damping,
                        damping_tries: job.site.tries,
                        moved: 4 * job.moved as u64,
                    })
                }
            };
            results[entry.task].push(result);
        }
        results
    }
}

#[cfg(feature = "cuda")]
fn on_card(arena: &mut Arena) -> bool {
    arena.card().is_some()
}

#[cfg(not(feature = "cuda"))]
fn on_card(_: &mut Arena) -> bool {
    false
}

fn alive(entries: &[Entry], wanted: impl Fn(&Job) -> bool) -> Vec<&Job> {
    entries.iter().filter(|e| e.failed.is_none()).map(|e| &e.job).filter(|j| wanted(j)).collect()
}

/// The starts in the order of their candidates, as jobs are collected.
fn starts_in_order(starts: &[(usize, Start)]) -> Vec<Start> {
    let mut starts = starts.to_vec();
    starts.sort_by_key(|(k, _)| *k);
    starts.into_iter().map(|(_, start)| start).collect()
}
