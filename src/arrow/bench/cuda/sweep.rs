use std::num::NonZero;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::{Card, time};
use crate::arrow::bench::BenchError;
use crate::arrow::cuda::{HostSlabs, Lane, Layout, Slabs};
use crate::arrow::fixtures::{self, COLOR_ARM, Shape};
use crate::arrow::{Border, Cross, FrameError, Ridge, Rows, System, Vector, sweep};
use crate::device::cuda::Registered;
use crate::ops::splitmix::SplitMix64;

/// Most fits at once that are tried where nothing is said.
const LANES: usize = 4;

/// One fit; all share their border slab, which each sends up for itself.
struct Cell {
    shape: Shape,
    layout: Layout,
    row_hessian: Vec<f64>,
    cross: Vec<f64>,
    rhs: Vector,
}

impl Cell {
    fn new(shape: Shape) -> Self {
        let Shape { rows, dim, border, seed } = shape;
        let (mut random, m) = (SplitMix64::new(seed), rows * dim);
        let row_hessian = (0..rows).flat_map(|_| fixtures::row_block(dim, &mut random)).collect();
        let cross = (0..m * border).map(|_| fixtures::cross_entry(&mut random)).collect();
        let mut take = |count: usize| (0..count).map(|_| random.signed()).collect();
        let rhs = Vector { row: take(m), border: take(border) };
        let layout = Layout::new((0..=rows).map(|i| i * dim).collect(), border);
        Self { shape, layout, row_hessian, cross, rhs }
    }

    fn residual(&self, border: &[f64], step: &Vector) -> Result<f64, BenchError> {
        let rows = Rows::Uniform { count: self.shape.rows, dim: self.shape.dim };
        let (cross, border) = (Cross::Dense(self.cross.clone()), Border::Dense(border.to_vec()));
        let system = System::new(rows, self.shape.border, self.row_hessian.clone(), cross, border)?;
        Ok(system.residual(Ridge::None, system.norm2(Ridge::None), step, &self.rhs))
    }
}

impl Card<'_> {
    /// The colour matrix from pinned slabs: upload, frame and solve of each cell, in one lane and in several.
    pub(super) fn sweep(&mut self) -> Result<(), BenchError> {
        let shapes = fixtures::colour_matrix().into_iter().take(self.bench.params.cells);
        let cells: Vec<Cell> = shapes.map(|(_, shape)| Cell::new(shape)).collect();
        if cells.is_empty() {
            return Ok(());
        }
        let border = fixtures::tridiagonal(COLOR_ARM.border);
        let mut pinned = vec![Registered::new(&self.cuda, &border)?];
        for cell in &cells {
            pinned.push(Registered::new(&self.cuda, &cell.row_hessian)?);
            pinned.push(Registered::new(&self.cuda, &cell.cross)?);
        }
        let most = self.bench.params.lanes.map_or(LANES, NonZero::get);
        let alone = self.steps(&cells, &border, 1)?;
        let residuals: Vec<f64> = cells
            .par_iter()
            .zip(&alone)
            .map(|(cell, step)| cell.residual(&border, step))
            .collect::<Result<_, _>>()?;
        let worst = residuals.into_iter().fold(0.0, f64::max);
        self.bench.check("sweep", worst)?;
        let mut times = Vec::new();
        for lanes in
            std::iter::successors(Some(1), |lanes| Some(2 * lanes)).take_while(|lanes| *lanes <= most)
        {
            if self.steps(&cells, &border, lanes)? != alone {
                return Err(Self::wrong("sweep", format!("{lanes} lanes gave other bits than one")));
            }
            times.push((self.timed(&cells, &border, lanes)?, lanes));
        }
        drop(pinned);
        let single = times[0].0;
        let (took, lanes) =
            times.iter().copied().fold(times[0], |best, next| if next.0 < best.0 { next } else { best });
        let (bound, what) = self.bound(&cells);
        let name = format!("sweep{}", cells.len());
        for (took, lanes) in times {
            self.bench.push(&format!("{name}.lanes{lanes}_ms"), took, "ms").floor = Some((bound, what));
        }
        let figure = self.bench.push(&format!("{name}.bound_share"), bound / took, "fraction");
        (figure.floor, figure.residual) = (Some((1.0, what)), Some(worst));
        figure.note = Some(format!("{lanes} lanes; bit-identical to one"));
        self.bench.push(&format!("{name}.speedup"), single / took, "1").note =
            Some(format!("{lanes} lanes against one"));
        self.bench.push(&format!("{name}.fits_per_s"), 1e3 * cells.len() as f64 / took, "1/s");
        Ok(())
    }

    fn steps(&self, cells: &[Cell], border: &[f64], lanes: usize) -> Result<Vec<Vector>, FrameError> {
        let pool = self.lanes(lanes);
        fit_all(&pool, cells, border)
    }

    /// Lanes that were warm before.
    fn timed(&self, cells: &[Cell], border: &[f64], lanes: usize) -> Result<f64, FrameError> {
        let pool = self.lanes(lanes);
        time(self.runs(), || fit_all(&pool, cells, border).map(drop))
    }

    fn lanes(&self, lanes: usize) -> Vec<Mutex<Lane>> {
        (0..lanes).map(|_| Mutex::new(Lane::new(&self.cuda))).collect()
    }

    /// Milliseconds of the slowest of transfer, memory and arithmetic, and which it is.
    fn bound(&self, cells: &[Cell]) -> (f64, &'static str) {
        let rates = self.bench.rates;
        let (mut bytes, mut flop) = (0.0, 0.0);
        for cell in cells {
            let (m, p) = (cell.layout.unknowns() as f64, cell.layout.border() as f64);
            bytes += 8.0 * (cell.layout.rows().numbers() as f64 + m * p + p * p);
            flop += p * p * m + p.powi(3) / 3.0;
        }
        let bounds = [
            (1e3 * bytes / self.upload, "transfer: all slabs at the upload rate of this run"),
            (1e3 * bytes / rates.copy, "memory: all slabs once at the copy rate"),
            (1e3 * flop / rates.gemm, "arithmetic: half of YᵀY and p³/3 at the GEMM rate"),
        ];
        bounds.into_iter().fold((0.0, ""), |most, next| if next.0 > most.0 { next } else { most })
    }
}

fn fit_all(pool: &[Mutex<Lane>], cells: &[Cell], border: &[f64]) -> Result<Vec<Vector>, FrameError> {
    let fit = |lane: &mut usize, cell: &Cell| {
        let mut lane = pool[*lane].lock().unwrap_or_else(PoisonError::into_inner);
        let frame = lane.frame(&cell.layout)?;
        let slabs = HostSlabs::dense(&cell.row_hessian, &cell.cross, border);
        frame.factor(Slabs::Host(slabs), Ridge::None)?;
        frame.solve(&cell.rhs)
    };
    let lanes = NonZero::new(pool.len()).unwrap_or(NonZero::<usize>::MIN);
    sweep(cells, lanes, |lane| lane, fit).results.into_iter().collect()
}
