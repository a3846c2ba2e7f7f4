//! The encoder's stages on every device that is there, each started from the reference's state, one body for all.

#[path = "../../../../tests/common/mod.rs"]
mod common;
mod failures;
mod reference;
mod stages;

use faer::{Mat, MatRef};

use super::gauge::Start;
use super::job::Job;
use super::spectrum::{Metric64, Request, spectra};
use super::{Plan, SiteInput, Task, on_card};
use crate::compress::factors::Path;
use crate::compress::metric::Metric;
use crate::device::Device;
use crate::device::arena::{Arena, View};
use reference::{DAMPING, LAYERS, Layer};

/// One candidate of a layer on a device, with everything that the reference knows of its input and its weight.
struct Candidate<'a> {
    name: String,
    layer: &'a Layer,
    arena: Arena,
    job: Job,
    first: Start,
    second: Start,
}

/// Runs a body for each layer on each device, in one path and in two.
fn on_every_device(body: impl Fn(&mut Candidate<'_>)) {
    for device in common::devices() {
        for layer in LAYERS.iter() {
            [1, 2].into_iter().for_each(|paths| body(&mut Candidate::new(&device, layer, paths)));
        }
    }
}

impl<'a> Candidate<'a> {
    /// In an arena that is NaN elsewhere.
    fn new(device: &Device, layer: &'a Layer, paths: usize) -> Self {
        let (m, n) = layer.weight.shape();
        let rank = layer.starts[paths - 1].rank;
        let weight = row_major(layer.weight.as_ref());
        let input = SiteInput { width: n, grams: Some(&layer.grams), damping: Some(DAMPING) };
        let task = Task { weight: &weight, rows: m, site: 0, candidates: vec![(paths, rank)] };
        let plan = Plan::of(&[input], &[task]);
        let mut arena = Arena::new(device, plan.numbers).unwrap();
        arena.write(0, &vec![f32::NAN; plan.numbers]);
        let (site, views) = (plan.sites[0].clone(), plan.tasks[0]);
        let (_, shape, job_views, second) = plan.jobs[0];
        let mut job = Job::new(site, shape, (views.weight, views.weighted), job_views);
        (job.sums, job.flips) = (plan.sums, plan.flips);
        let first = Start {
            weight: views.weight,
            left: views.left,
            root: views.root,
            inverse_root: views.inverse_root,
        };
        let name = format!("{}, {} in {paths} paths", device.name(), layer.name);
        let mut candidate = Self { name, layer, arena, job, first, second };
        candidate.load_input();
        candidate
    }

    fn load_input(&mut self) {
        let (site, context) = (self.job.site.clone(), &self.layer.context);
        let problem = self.layer.problem();
        self.job.energy = problem.energy;
        for (view, matrix) in [
            (site.fit, &self.layer.grams.fit),
            (site.heldout, &self.layer.grams.heldout),
            (site.damped, &context.damped),
            (site.r_transposed, &context.r_transposed),
            (self.job.weight, &problem.weight),
            (self.job.weighted, &problem.weighted),
        ] {
            self.write(view, matrix.as_ref());
        }
        let n = context.width();
        let mut position = vec![0.0; n];
        context.order.iter().enumerate().for_each(|(at, &column)| position[column] = at as f64);
        let order: Vec<f64> = context.order.iter().map(|j| *j as f64).collect();
        let diagonal: Vec<f64> = (0..n).map(|j| context.damped[(j, j)]).collect();
        for (at, values) in [(site.order, order), (site.position, position), (site.diagonal, diagonal)] {
            self.write_vector(at, &values);
        }
    }

    /// What is tried becomes these paths, with their products with the metric.
    fn load(&mut self, paths: &[Path]) {
        let metric = Metric::of(&self.layer.problem(), paths);
        self.job.active = paths.len();
        let tried = self.job.tried;
        for (p, path) in paths.iter().enumerate() {
            for (view, matrix) in [
                (tried.u, &path.u),
                (tried.v, &path.v),
                (tried.b, &metric.b[p]),
                (tried.hb, &metric.hb[p]),
                (tried.wb, &metric.wb[p]),
            ] {
                self.write(self.job.path(view, p), matrix.as_ref());
            }
            for (c, product) in metric.bhb[p].iter().enumerate() {
                self.write(self.job.block(tried.bhb, p, c), product.as_ref());
            }
            for (at, scale) in [(self.job.h(p), &path.h), (self.job.g(p), &path.g), (self.job.l(p), &path.l)]
            {
                self.write_vector(at, scale);
            }
        }
    }

    /// The paths that are tried.
    fn paths(&mut self) -> Vec<Path> {
        let (shape, tried) = (self.job.shape, self.job.tried);
        (0..self.job.active)
            .map(|p| Path {
                h: self.read_vector(self.job.h(p), shape.m),
                u: self.read(self.job.path(tried.u, p)),
                l: self.read_vector(self.job.l(p), shape.rank),
                v: self.read(self.job.path(tried.v, p)),
                g: self.read_vector(self.job.g(p), shape.n),
            })
            .collect()
    }

    /// Finds the spectrum that the last path of this candidate starts from.
    fn find_start(&mut self) -> Start {
        let last = self.job.shape.paths - 1;
        let Start { weight, left, root, inverse_root } = [self.first, self.second][last];
        self.write(weight, self.layer.starts[last].left_over.as_ref());
        let mut site = self.job.site.clone();
        (site.damping, site.tries) = (self.layer.context.damping, 1);
        let input = SiteInput { width: site.n, grams: Some(&self.layer.grams), damping: Some(DAMPING) };
        let task = Task { weight: &[], rows: self.job.shape.m, site: 0, candidates: Vec::new() };
        let sites = [site];
        let metrics = match on_card(&mut self.arena) {
            true => Vec::new(),
            false => Metric64::of(&sites, &[input], &[task], &mut [None]),
        };
        let request = Request { weight, site: 0, left, root, inverse_root };
        let found = spectra(&mut self.arena, &sites, &metrics, &[request]).unwrap();
        assert_eq!(found, [Ok(())], "{}", self.name);
        Start { weight, left, root, inverse_root }
    }

    fn write(&mut self, view: View, matrix: MatRef<'_, f64>) {
        assert_eq!((view.rows, view.cols), matrix.shape());
        let values = row_major(matrix);
        if view.stride == view.cols {
            return self.arena.write(view.at, &values);
        }
        for (i, row) in values.chunks(view.cols).enumerate() {
            self.arena.write(view.at + i * view.stride, row);
        }
    }

    fn write_vector(&mut self, at: usize, values: &[f64]) {
        self.arena.write(at, &values.iter().map(|v| *v as f32).collect::<Vec<_>>());
    }

    fn read(&mut self, view: View) -> Mat<f64> {
        let values = self.arena.read(view.at, view.span()).unwrap();
        Mat::from_fn(view.rows, view.cols, |i, j| f64::from(values[i * view.stride + j]))
    }

    fn read_vector(&mut self, at: usize, len: usize) -> Vec<f64> {
        self.arena.read(at, len).unwrap().into_iter().map(f64::from).collect()
    }
}

fn row_major(a: MatRef<'_, f64>) -> Vec<f32> {
    (0..a.nrows()).flat_map(|i| a.row(i).iter().map(|v| *v as f32)).collect()
}
