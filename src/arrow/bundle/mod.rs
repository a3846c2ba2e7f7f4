//! Bundle adjustment as an arrow: points are the rows (d = 3), cameras the border (9 each).
//!
//! `φ = ½ Σ ‖r_k‖²`, r_k the error of one observed image point, and the Gauss-Newton model `H = JᵀJ`.
//! Camera model and files: "Bundle Adjustment in the Large", Agarwal, Snavely, Seitz, Szeliski (ECCV 2010).

mod camera;
mod file;

use std::sync::Arc;

use rayon::prelude::*;

pub use camera::{CAMERA, POINT, Projection, project};
pub use file::{BundleError, read};

use super::newton::{Linearisation, NewtonParams, Problem, Stop};
use super::{Border, Budget, Cross, Rows, System, Vector, memory};

/// One observed image point, in pixels from the image's centre.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    pub camera: usize,
    pub point: usize,
    pub pixel: [f64; 2],
}

/// A bundle-adjustment problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    cameras: usize,
    /// In the order of their points.
    observations: Vec<Observation>,
    /// First observation of each point, and their number at the end.
    starts: Vec<usize>,
    budget: Budget,
}

impl Bundle {
    /// A problem from its observations, which are put in the order of their points.
    pub fn new(cameras: usize, points: usize, mut observations: Vec<Observation>) -> Self {
        observations.sort_by_key(|o| o.point);
        let starts = (0..=points).map(|point| observations.partition_point(|o| o.point < point)).collect();
        Self { cameras, observations, starts, budget: Budget::default() }
    }

    /// The same problem, whose linearisations may take this much.
    pub fn with_budget(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    /// Bytes that one linearisation takes: slabs and gradient, and what each observation adds to the border.
    pub fn linearisation_bytes(&self) -> u64 {
        let (m, p) = ((self.points() * POINT) as u64, (self.cameras * CAMERA) as u64);
        let numbers = m.saturating_mul(p + POINT as u64 + 1).saturating_add(p.saturating_mul(p + 1));
        let parts = (self.observations.len() * size_of::<CameraPart>()) as u64;
        numbers.saturating_mul(8).saturating_add(parts)
    }

    pub fn cameras(&self) -> usize {
        self.cameras
    }

    pub fn points(&self) -> usize {
        self.starts.len() - 1
    }

    pub fn observations(&self) -> &[Observation] {
        &self.observations
    }

    fn projection(&self, observation: &Observation, z: &Vector) -> Projection {
        let camera = &z.border[observation.camera * CAMERA..(observation.camera + 1) * CAMERA];
        let point = &z.row[observation.point * POINT..(observation.point + 1) * POINT];
        project(camera, point)
    }
}

/// What one point adds to the border: camera, its 9 x 9 block, its 9 gradient entries.
type CameraPart = (usize, [f64; CAMERA * CAMERA], [f64; CAMERA]);

/// How the Newton loop runs on bundles. Moving, turning and scaling the whole scene changes no pixel, so H is singular
/// at every point: the ridge begins at 1e-4, where the first steps of the published problems fit, and stays above
/// 1e-9, below which rounding would choose the seven free directions. The gradient is zero at 1e-7 of the first: what
/// φ could still lose is then below 1e-6 of it.
pub fn params() -> NewtonParams {
    NewtonParams {
        stop: Stop::RelativeGradient(1e-7),
        first_ridge: 1e-4,
        least_ridge: 1e-9,
        ..NewtonParams::default()
    }
}

impl Problem for Bundle {
    fn objective(&mut self, z: &Vector) -> f64 {
        let cost = |o: &Observation| {
            let Projection { pixel, .. } = self.projection(o, z);
            let error = [pixel[0] - o.pixel[0], pixel[1] - o.pixel[1]];
            0.5 * (error[0] * error[0] + error[1] * error[1])
        };
        // Sums of fixed parts, added in order: the same bits for any number of threads.
        let parts: Vec<f64> =
            self.observations.par_chunks(1024).map(|part| part.iter().map(cost).sum()).collect();
        parts.iter().sum()
    }

    fn linearise(&mut self, z: &Vector) -> Result<Linearisation, Box<dyn std::error::Error + Send + Sync>> {
        let (points, p) = (self.points(), self.cameras * CAMERA);
        let detail = format!("linearising {points} points and {} cameras", self.cameras);
        self.budget.check(self.linearisation_bytes(), &detail, memory::host_available)?;
        let mut row_hessian = vec![0.0; points * POINT * POINT];
        let mut row_gradient = vec![0.0; points * POINT];
        let mut cross = vec![0.0; points * POINT * p];
        let parts: Vec<Vec<CameraPart>> = row_hessian
            .par_chunks_mut(POINT * POINT)
            .zip(row_gradient.par_chunks_mut(POINT))
            .zip(cross.par_chunks_mut(POINT * p))
            .zip(self.starts.par_windows(2))
            .map(|(((block, gradient), cross), at)| {
                let seen = &self.observations[at[0]..at[1]];
                seen.iter()
                    .map(|o| add_observation(o, self.projection(o, z), p, block, gradient, cross))
                    .collect()
            })
            .collect();
        let mut border = vec![0.0; p * p];
        let mut border_gradient = vec![0.0; p];
        for (camera, block, gradient) in parts.iter().flatten() {
            let at = camera * CAMERA;
            for (i, row) in block.chunks_exact(CAMERA).enumerate() {
                let target = &mut border[(at + i) * p + at..(at + i) * p + at + CAMERA];
                target.iter_mut().zip(row).for_each(|(t, v)| *t += v);
            }
            border_gradient[at..at + CAMERA].iter_mut().zip(gradient).for_each(|(t, v)| *t += v);
        }
        let rows = Rows::Uniform { count: points, dim: POINT };
        let hessian = System::new(rows, p, row_hessian, Cross::Dense(cross), Border::Dense(border))?;
        Ok(Linearisation {
            gradient: Vector { row: row_gradient, border: border_gradient },
            hessian: Arc::new(hessian),
        })
    }
}

/// Adds `JᵀJ` and `Jᵀr` of one observation to its point's slabs, and hands back the camera's.
fn add_observation(
    observation: &Observation,
    projection: Projection,
    p: usize,
    block: &mut [f64],
    gradient: &mut [f64],
    cross: &mut [f64],
) -> CameraPart {
    let Projection { pixel, by_camera, by_point } = projection;
    let mut camera_block = [0.0; CAMERA * CAMERA];
    let mut camera_gradient = [0.0; CAMERA];
    for k in 0..2 {
        let error = pixel[k] - observation.pixel[k];
        let (by_camera, by_point) = (&by_camera[k], &by_point[k]);
        for i in 0..POINT {
            gradient[i] += by_point[i] * error;
            (0..POINT).for_each(|j| block[i * POINT + j] += by_point[i] * by_point[j]);
            let at = i * p + observation.camera * CAMERA;
            (0..CAMERA).for_each(|j| cross[at + j] += by_point[i] * by_camera[j]);
        }
        for i in 0..CAMERA {
            camera_gradient[i] += by_camera[i] * error;
            (0..CAMERA).for_each(|j| camera_block[i * CAMERA + j] += by_camera[i] * by_camera[j]);
        }
    }
    (observation.camera, camera_block, camera_gradient)
}
