use std::sync::Arc;

use super::{Card, SHORT, time};
use crate::arrow::bench::{BenchError, WIDE};
use crate::arrow::cuda::{CudaFrame, DeviceSlabs, Layout, Slabs, Tuning};
use crate::arrow::fixtures::{self, Shape};
use crate::arrow::{Border, Budget, Cross, OuterSequence, Ridge, System, Vector};
use crate::device::cuda::{Registered, Stream};

impl Card<'_> {
    /// Frame, resident solves, re-upload, wide solve and outer sequence of one fixture.
    pub(super) fn fixture(&mut self, case: &str, shape: Shape) -> Result<(), BenchError> {
        let system = Arc::new(fixtures::well_conditioned(shape)?);
        self.beside_host(case, &system)?;
        let (Cross::Dense(cross), Border::Dense(border)) = (system.cross(), system.border_hessian()) else {
            return Err(Self::wrong(case, "the fixture is not dense"));
        };
        let row_hessian = system.row_hessian();
        let pinned = [
            Registered::new(&self.cuda, row_hessian)?,
            Registered::new(&self.cuda, cross)?,
            Registered::new(&self.cuda, border)?,
        ];
        let stream = Stream::new(&self.cuda)?;
        let slabs = DeviceSlabs::from_host(&stream, row_hessian, cross, border)?;
        let layout = Layout::new(system.offsets().to_vec(), system.border());
        let mut frame = CudaFrame::new(&self.cuda, layout, Tuning::default(), Budget::Available)?;
        let rhs: Vec<Vector> =
            (0..WIDE as u64).map(|k| system.apply(&fixtures::random_vector(&system, k))).collect();
        let on_host = Slabs::Host { row_hessian, cross, border };
        let residuals = self.residuals(case, &system, &mut frame, [Slabs::Device(&slabs), on_host], &rhs)?;
        let floors = Floors::of(&system, self);

        let reupload = time(self.runs(), || {
            frame.factor(on_host, Ridge::None)?;
            frame.solve(&rhs[0]).map(drop)
        })?;
        let build = time(self.runs(), || frame.factor(Slabs::Device(&slabs), Ridge::None))?;
        let vectors = time(SHORT * self.runs(), || frame.solve(&rhs[0]).map(drop))?;
        let resident = time(SHORT * self.runs(), || frame.solve_in_place().map(drop))?;
        frame.solve_many(&rhs)?;
        let many = time(2 * self.runs(), || frame.solve_wide().map(drop))?;
        drop((pinned, frame));

        let mut push = |name: &str, value: f64, floor: (f64, &'static str), residual: f64| {
            let figure = self.bench.push(&format!("{case}.{name}"), value, "ms");
            (figure.floor, figure.residual) = (Some(floor), Some(residual));
        };
        push("resident_ms", resident, floors.resident, residuals.resident);
        push("resident_vector_ms", vectors, floors.resident, residuals.resident);
        push("frame_ms", build, floors.frame, residuals.resident);
        push("reupload_ms", reupload, floors.reupload, residuals.reupload);
        push("many64_ms", many, floors.wide, residuals.wide);
        self.bench.push(&format!("{case}.floor_ms"), floors.resident.0, "ms").note =
            Some("S⁻¹ by half and Y twice at the copy rate".into());
        self.bench.push(&format!("{case}.floor_whole_ms"), floors.whole, "ms").note =
            Some("S⁻¹ whole and Y twice at the copy rate".into());
        self.bench.push(&format!("{case}.reupload_ratio"), reupload / resident, "1");
        self.outer_sequence(case, &system, &rhs)
    }

    /// Every answer that is timed later, checked.
    fn residuals(
        &mut self,
        case: &str,
        system: &System,
        frame: &mut CudaFrame,
        [on_device, on_host]: [Slabs<'_>; 2],
        rhs: &[Vector],
    ) -> Result<Residuals, BenchError> {
        let norm = system.norm2(Ridge::None);
        let of = |step: &Vector, rhs: &Vector| system.residual(Ridge::None, norm, step, rhs);
        frame.factor(on_host, Ridge::None)?;
        let reupload = of(&frame.solve(&rhs[0])?, &rhs[0]);
        frame.factor(on_device, Ridge::None)?;
        let vector = frame.solve(&rhs[0])?;
        let resident = of(&vector, &rhs[0]);
        let (row, border) = frame.solve_in_place()?.split_at(system.unknowns());
        if row != vector.row || border != vector.border {
            return Err(Self::wrong(case, "the same right-hand side gave other bits"));
        }
        if frame.about().corrections > 0 {
            return Err(Self::wrong(case, "a fixture that needs corrections has no wide solve"));
        }
        let steps = frame.solve_many(rhs)?;
        let wide = steps.iter().zip(rhs).map(|(step, rhs)| of(step, rhs)).fold(0.0, f64::max);
        for (what, residual) in [("re-upload", reupload), ("resident", resident), ("wide", wide)] {
            self.bench.check(&format!("{case}, {what}"), residual)?;
        }
        Ok(Residuals { resident, reupload, wide })
    }

    /// 64 gradients, one after another, over one frame.
    fn outer_sequence(&mut self, case: &str, system: &Arc<System>, rhs: &[Vector]) -> Result<(), BenchError> {
        let mut sequence = OuterSequence::begin(system, &self.params())?;
        let norm = system.norm2(Ridge::None);
        let mut worst: f64 = 0.0;
        for rhs in rhs {
            worst = worst.max(system.residual(Ridge::None, norm, &sequence.next(rhs)?.step, rhs));
        }
        self.bench.check(&format!("{case}, outer sequence"), worst)?;
        let frames = sequence.telemetry().frames;
        if frames != 1 {
            return Err(Self::wrong(case, format!("an outer sequence built {frames} frames")));
        }
        let took = time(self.runs(), || rhs.iter().try_for_each(|rhs| sequence.next(rhs).map(drop)))?;
        let figure = self.bench.push(&format!("{case}.outer64_ms"), took, "ms");
        (figure.residual, figure.note) = (Some(worst), Some("64 solves one after another".into()));
        self.bench.push(&format!("{case}.outer64_frames"), frames as f64, "count");
        Ok(())
    }
}

struct Residuals {
    resident: f64,
    reupload: f64,
    wide: f64,
}

/// Milliseconds that the machine would allow, and what sets them.
struct Floors {
    resident: (f64, &'static str),
    whole: f64,
    frame: (f64, &'static str),
    reupload: (f64, &'static str),
    wide: (f64, &'static str),
}

impl Floors {
    fn of(system: &System, card: &Card<'_>) -> Self {
        let (m, p) = (system.unknowns() as f64, system.border() as f64);
        let rates = card.bench.rates;
        let (y, half) = (8.0 * m * p, 4.0 * p * (p + 1.0));
        let read = |bytes: f64| 1e3 * bytes / rates.copy;
        let work = |flop: f64| 1e3 * flop / rates.gemm;
        let frame = work(p * p * m + p.powi(3));
        let slabs = 8.0 * (system.row_hessian().len() as f64 + m * p + p * p);
        let count = WIDE as f64;
        let wide = [
            (work(2.0 * count * (p * p + 2.0 * m * p)), "the products at the GEMM rate"),
            (read(2.0 * half + 2.0 * y), "S⁻¹ and Y twice at the copy rate"),
            (1e3 * 8.0 * count * (m + p) / card.upload, "the right-hand sides at the upload rate"),
        ];
        Self {
            resident: (read(half + 2.0 * y), "S⁻¹ by half and Y twice at the copy rate"),
            whole: read(2.0 * half + 2.0 * y),
            frame: (frame, "half of YᵀY and an inverse (p³) at the GEMM rate"),
            reupload: (1e3 * slabs / card.upload, "the slabs at the upload rate"),
            wide: wide.into_iter().fold((0.0, ""), |most, next| if next.0 > most.0 { next } else { most }),
        }
    }
}
