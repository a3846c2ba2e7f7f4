use faer::Mat;
use rayon::prelude::*;

use super::CandidateError;
use super::job::Job;
use super::layout::{Shape, State};
use super::metric::{lambdas, relative_errors, residuals, weight_errors};
use crate::blr::Payload;
use crate::compress::factors::Path;
use crate::compress::round::round_to_payload;
use crate::device::DeviceError;
use crate::device::arena::{Arena, View};
use crate::ops::scale::{Scale, scale};

/// A rounded candidate and what it is worth. Relative errors are `sqrt(err(Ŵ; A)/err(0; A))`.
pub struct Judged {
    pub payload: Payload,
    /// On the held-out Gram (without one, in the metric of the fit), before rounding: what candidates of one weight are
    /// compared by.
    pub choice: f64,
    /// Of the stored, rounded tensor, on the fit and held-out Grams, and in the identity.
    pub fit_rel: Option<f64>,
    pub heldout_rel: Option<f64>,
    pub weight_rel: f64,
}

/// Measures what each candidate keeps, rounds it, and measures it again as it is stored.
pub fn judge(
    arena: &mut Arena,
    jobs: &mut [&mut Job],
    has_grams: bool,
) -> Result<Vec<Result<Judged, CandidateError>>, DeviceError> {
    // The steps read what is tried.
    for job in jobs.iter_mut() {
        std::mem::swap(&mut job.kept, &mut job.tried);
        job.moved +=
            job.tried.u.len() + job.tried.v.len() + 2 * (job.tried.h.len() + job.tried.g.len() + job.width());
    }
    let shared: Vec<&Job> = jobs.iter().map(|j| &**j).collect();
    measure(arena, &shared);
    let choices =
        relative_errors(arena, &shared, |j| if has_grams { j.site.heldout } else { j.site.damped })?;
    let mut read = Vec::new();
    for job in &shared {
        read.push(Factors::read(arena, job)?);
    }
    let rounded =
        read.into_par_iter().zip(&shared).map(|(factors, job)| round_to_payload(&factors.paths(job)));
    let payloads: Vec<_> = rounded.collect();
    for (job, payload) in shared.iter().zip(&payloads) {
        if let Ok(payload) = payload {
            write_scales(arena, job, payload);
        }
    }
    measure(arena, &shared);
    let (mut fit, mut heldout) = (Vec::new(), Vec::new());
    if has_grams {
        fit = relative_errors(arena, &shared, |j| j.site.fit)?;
        heldout = relative_errors(arena, &shared, |j| j.site.heldout)?;
    }
    let weight = weight_errors(arena, &shared)?;
    let each = payloads.into_iter().enumerate().map(|(k, payload)| {
        if !(choices[k].is_finite() && shared[k].error.is_finite()) {
            return Err(CandidateError::NotFinite);
        }
        Ok(Judged {
            payload: payload?,
            choice: choices[k],
            fit_rel: fit.get(k).copied(),
            heldout_rel: heldout.get(k).copied(),
            weight_rel: weight[k],
        })
    });
    Ok(each.collect())
}

/// Λ, B and W − Ŵ of what is tried.
fn measure<'a>(arena: &mut Arena, jobs: &[&'a Job]) {
    lambdas(arena, jobs);
    let scaled = |j: &&'a Job| {
        let job = *j;
        (0..j.active)
            .map(move |p| Scale::new(job.path(job.tried.v, p), job.path(job.tried.b, p)).rows(job.g(p)))
    };
    scale(arena, &jobs.iter().flat_map(scaled).collect::<Vec<_>>());
    residuals(arena, jobs);
}

/// The factors of one candidate, as they lie in the arena.
struct Factors {
    u: Vec<f32>,
    v: Vec<f32>,
    h: Vec<f32>,
    g: Vec<f32>,
    l: Vec<f32>,
}

impl Factors {
    fn read(arena: &mut Arena, job: &Job) -> Result<Self, DeviceError> {
        let State { u, v, h, g, l, .. } = job.tried;
        let mut matrix = |view: View| arena.read(view.at, view.span());
        Ok(Self {
            u: matrix(u)?,
            v: matrix(v)?,
            h: matrix(h)?,
            g: matrix(g)?,
            l: arena.read(l, job.width())?,
        })
    }

    fn paths(&self, job: &Job) -> Vec<Path> {
        let Shape { m, n, rank: r, .. } = job.shape;
        let wide = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
        let part = |all: &[f32], rows: usize, p: usize| {
            let stride = job.tried.u.stride;
            Mat::from_fn(rows, r, |i, k| f64::from(all[i * stride + p * r + k]))
        };
        let path = |p: usize| Path {
            h: wide(&self.h[p * m..][..m]),
            u: part(&self.u, m, p),
            l: wide(&self.l[p * r..][..r]),
            v: part(&self.v, n, p),
            g: wide(&self.g[p * n..][..n]),
        };
        (0..job.active).map(path).collect()
    }
}

/// The scales as they are stored, in the place of those that were fitted.
fn write_scales(arena: &mut Arena, job: &Job, payload: &Payload) {
    for (p, path) in payload.paths().enumerate() {
        arena.write(job.h(p), &path.h.to_f32());
        arena.write(job.l(p), &path.l.to_f32());
        arena.write(job.g(p), &path.g.to_f32()[..job.shape.n]);
    }
}
