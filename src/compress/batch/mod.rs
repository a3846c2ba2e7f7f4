//! The encoder on a device, many candidates at once, in f32. [`encode`](crate::compress::encode) is its definition in
//! f64, one tensor at a time; the files here have the names of those there and do the same steps for a whole batch.
//!
//! [`layout`] places every matrix of a batch in one arena and so predicts what it takes; [`site`] builds what the
//! candidates that read one input share; [`job`] is one candidate. Steps: [`spectrum`], [`gauge`], [`scales`] (over
//! [`metric`]), [`refine`]; [`judge`] rounds, measures and brings the results back.

mod gauge;
mod job;
mod judge;
mod layout;
mod metric;
mod refine;
mod scales;
mod site;
mod spectrum;

use faer::Mat;

use super::context::ContextError;
use super::encode::Params;
use super::refine::RefineInfo;
use super::tensor::Grams;
use crate::device::arena::{Arena, View};
use crate::device::{Device, DeviceError};
use crate::ops::dots::PARTS;
use gauge::{Start, start_path};
use job::{Job, JobViews, SUMS};
use judge::judge;
use layout::Layout;
use metric::weigh;
use refine::refine;
use scales::scale_sweeps;
use site::{Site, SiteScratch, build_sites};
use spectrum::{Metric64, residuals_on_host, spectra, write_spectrum};

pub use judge::Judged;
pub use layout::Shape;

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
}

/// Why a candidate has to be encoded by the reference instead, or stays dense.
#[derive(Debug, thiserror::Error)]
pub enum CandidateError {
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error("the weight is zero wherever its input is not")]
    ZeroWeight,
    #[error(transparent)]
    Spectrum(#[from] super::latents::SpectrumError),
    #[error("the gauge rotation is singular in f32")]
    SingularGauge,
    #[error("the error is not finite in f32")]
    NotFinite,
    #[error(transparent)]
    Round(#[from] super::round::RoundError),
}

/// Encodes all candidates of all tasks side by side. `sites` are the inputs that tasks name.
///
/// What a candidate becomes does not depend on the others. Memory: [`predict`] numbers in one arena.
/// Errors: the device's; a candidate's own failure is its own result.
pub fn encode_batch(
    device: &Device,
    sites: &[&Grams],
    tasks: &[Task<'_>],
    damping: f64,
    params: &Params,
) -> Result<Vec<Vec<Result<Candidate, CandidateError>>>, DeviceError> {
    let plan = Plan::of(sites, tasks);
    let mut arena = Arena::new(device, plan.numbers)?;
    Batch::open(&mut arena, plan, sites, tasks, damping)?.run(params)
}

/// Numbers (4 bytes each) of the arena that a batch needs.
pub fn predict(sites: &[&Grams], tasks: &[Task<'_>]) -> usize {
    Plan::of(sites, tasks).numbers
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
    fn of(sites: &[&Grams], tasks: &[Task<'_>]) -> Self {
        let mut layout = Layout::default();
        let placed: Vec<_> = sites.iter().map(|s| Site::place(&mut layout, s.fit.nrows())).collect();
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
    tasks: &'a [Task<'a>],
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
        sites: &[&Grams],
        tasks: &'a [Task<'a>],
        damping: f64,
    ) -> Result<Self, DeviceError> {
        for (site, grams) in plan.sites.iter().zip(sites) {
            arena.write(site.fit.at, &row_major(&grams.fit));
            arena.write(site.heldout.at, &row_major(&grams.heldout));
        }
        let mut errors = build_sites(arena, &mut plan.sites, &plan.site_scratch, damping)?;
        let metrics = Metric64::of(&plan.sites, sites, tasks, &mut errors);
        for (task, views) in tasks.iter().zip(&plan.tasks) {
            arena.write(views.weight.at, task.weight);
        }
        let mut entries = Vec::new();
        for (k, (task, shape, views, second)) in plan.jobs.into_iter().enumerate() {
            let TaskViews { weight, weighted, .. } = plan.tasks[task];
            let site = tasks[task].site;
            let mut job = Job::new(plan.sites[site].clone(), shape, (weight, weighted), views);
            job.sums = plan.sums + k * SUMS * PARTS;
            job.flips = plan.flips + k * plan.flips_stride;
            let failed = errors[site].clone().map(CandidateError::Context);
            entries.push(Entry { task, job, second, failed });
        }
        Ok(Self { arena, tasks, views: plan.tasks, metrics, entries })
    }

    fn run(mut self, params: &Params) -> Result<Vec<Vec<Result<Candidate, CandidateError>>>, DeviceError> {
        self.weigh()?;
        let starts = self.first_starts();
        self.start(&starts, params)?;
        scale_sweeps(self.arena, &alive(&self.entries, |_| true), params.scale_sweeps);
        let starts = self.second_starts()?;
        self.start(&starts, params)?;
        scale_sweeps(self.arena, &alive(&self.entries, |j| j.active == 2), params.joint_scale_sweeps);
        let mut jobs: Vec<&mut Job> = (self.entries.iter_mut())
            .filter(|entry| entry.failed.is_none())
            .map(|entry| &mut entry.job)
            .collect();
        refine(self.arena, &mut jobs, params.refine)?;
        self.judge()
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
    fn first_starts(&mut self) -> Vec<(usize, Start)> {
        let open = |t: &usize| self.entries.iter().any(|e| e.task == *t && e.failed.is_none());
        let tasks: Vec<usize> = (0..self.tasks.len()).filter(open).collect();
        let weights: Vec<_> = (tasks.iter())
            .map(|t| {
                let task = &self.tasks[*t];
                let n = task.weight.len() / task.rows;
                let weight = Mat::from_fn(task.rows, n, |i, j| f64::from(task.weight[i * n + j]));
                (weight, &self.metrics[task.site])
            })
            .collect();
        let spectra = spectra(&weights);
        let mut starts = Vec::new();
        for (t, spectrum) in tasks.into_iter().zip(spectra) {
            let TaskViews { weight, left, root, inverse_root, .. } = self.views[t];
            let written = spectrum.map(|s| write_spectrum(self.arena, &s, left, root, inverse_root));
            for (k, entry) in self.entries.iter_mut().enumerate() {
                if entry.task != t || entry.failed.is_some() {
                    continue;
                }
                match &written {
                    Ok(()) => {
                        let left = left.part((0, 0), (left.rows, entry.job.shape.rank));
                        starts.push((k, Start { weight, left, root, inverse_root }));
                    }
                    Err(error) => entry.failed = Some(error.clone().into()),
                }
            }
        }
        starts
    }

    /// The same for the second path, from what the first one leaves.
    fn second_starts(&mut self) -> Result<Vec<(usize, Start)>, DeviceError> {
        let two: Vec<usize> = (0..self.entries.len())
            .filter(|k| self.entries[*k].failed.is_none() && self.entries[*k].job.shape.paths == 2)
            .collect();
        let jobs: Vec<&Job> = two.iter().map(|k| &self.entries[*k].job).collect();
        let residuals = residuals_on_host(self.arena, &jobs)?;
        let metric = |k: &usize| &self.metrics[self.tasks[self.entries[*k].task].site];
        let weights: Vec<_> = residuals.into_iter().zip(two.iter().map(metric)).collect();
        let spectra = spectra(&weights);
        let mut starts = Vec::new();
        for (k, spectrum) in two.into_iter().zip(spectra) {
            let start = self.entries[k].second;
            match spectrum {
                Ok(spectrum) => {
                    write_spectrum(self.arena, &spectrum, start.left, start.root, start.inverse_root);
                    starts.push((k, start));
                }
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

    fn judge(mut self) -> Result<Vec<Vec<Result<Candidate, CandidateError>>>, DeviceError> {
        let mut jobs: Vec<&mut Job> = (self.entries.iter_mut())
            .filter(|entry| entry.failed.is_none())
            .map(|entry| &mut entry.job)
            .collect();
        let mut judged = judge(self.arena, &mut jobs)?.into_iter();
        let mut results: Vec<Vec<_>> = self.tasks.iter().map(|_| Vec::new()).collect();
        for entry in self.entries {
            let job = entry.job;
            let result = match entry.failed {
                Some(error) => Err(error),
                None => {
                    judged.next().expect("one judgement for each candidate that is alive").map(|judged| {
                        Candidate {
                            judged,
                            error: job.error / job.energy,
                            refine: job.info,
                            damping: job.site.damping,
                            damping_tries: job.site.tries,
                        }
                    })
                }
            };
            results[entry.task].push(result);
        }
        Ok(results)
    }
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

fn row_major(symmetric: &Mat<f64>) -> Vec<f32> {
    let n = symmetric.ncols();
    (0..n).flat_map(|j| symmetric.col(j).iter().map(|v| *v as f32)).collect()
}
