use std::sync::Arc;

use super::{Card, SHORT, time};
use crate::arrow::bench::{BenchError, WIDE};
use crate::arrow::cuda::{CudaFrame, DeviceSlabs, HostSlabs, Layout, Slabs, Tuning};
use crate::arrow::fixtures;
use crate::arrow::{Budget, Elimination, OuterSequence, Ridge, System, Vector};
use crate::device::cuda::{Registered, Stream};

impl Card<'_> {
    /// Frame, resident solves, re-upload, wide solve and outer sequence of one fixture.
    pub(super) fn fixture(&mut self, case: &str, system: System) -> Result<(), BenchError> {
        let system = Arc::new(system);
        self.beside_host(case, &system)?;
        let (host, layout) = (HostSlabs::of(&system), Layout::of(&system));
        let slabs = [host.row_hessian, host.cross, host.basis, host.border];
        let filled = slabs.into_iter().filter(|slab| !slab.is_empty());
        let pinned: Vec<Registered<'_>> =
            filled.map(|slab| Registered::new(&self.cuda, slab)).collect::<Result<_, _>>()?;
        let stream = Stream::new(&self.cuda)?;
        let slabs = DeviceSlabs::from_host(&stream, &layout, host)?;
        let floors = Floors::of(&layout, self);
        let mut frame = CudaFrame::new(&self.cuda, layout, Tuning::default(), Budget::Available)?;
        let rhs: Vec<Vector> =
            (0..WIDE as u64).map(|k| system.apply(&fixtures::random_vector(&system, k))).collect();
        let on_host = Slabs::Host(host);
        let residuals = self.residuals(case, &system, &mut frame, [Slabs::Device(&slabs), on_host], &rhs)?;

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
        let (floor, what) = floors.resident;
        self.bench.push(&format!("{case}.floor_ms"), floor, "ms").note = Some(what.into());
        self.bench.push(&format!("{case}.floor_whole_ms"), floors.whole, "ms").note =
            Some("the same with the inverse read whole".into());
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
    fn of(layout: &Layout, card: &Card<'_>) -> Self {
        let (m, p) = (layout.unknowns() as f64, layout.border() as f64);
        let rates = card.bench.rates;
        let read = |numbers: f64| 8e3 * numbers / rates.copy;
        let work = |flop: f64| 1e3 * flop / rates.gemm;
        // Order of what is inverted, numbers of the coupling that a solve reads twice, products of a frame.
        let (q, coupling, products) = match (layout.elimination(), layout.keeps_factors()) {
            (Elimination::Rows, _) => (p, m * p, p * p * m),
            (Elimination::Border, None) => (m, m * p, m * m * p),
            (Elimination::Border, Some((basis, r))) => {
                let (n, basis, r) = (layout.rows().count() as f64, basis as f64, r as f64);
                (m, n * basis + m * r, m * m * r + n * n * basis)
            }
        };
        let half = q * (q + 1.0) / 2.0;
        let slabs = layout.slab_lengths().iter().sum::<usize>() as f64;
        let count = WIDE as f64;
        let wide = [
            (work(2.0 * count * (q * q + 2.0 * coupling)), "the products at the GEMM rate"),
            (read(2.0 * half + 2.0 * coupling), "inverse and coupling twice at the copy rate"),
            (1e3 * 8.0 * count * (m + p) / card.upload, "the right-hand sides at the upload rate"),
        ];
        Self {
            resident: (
                read(half + 2.0 * coupling),
                "the inverse by half and the coupling twice at the copy rate",
            ),
            whole: read(2.0 * half + 2.0 * coupling),
            frame: (work(products + q.powi(3)), "half of its product and an inverse (q³) at the GEMM rate"),
            reupload: (8e3 * slabs / card.upload, "the slabs at the upload rate"),
            wide: wide.into_iter().fold((0.0, ""), |most, next| if next.0 > most.0 { next } else { most }),
        }
    }
}
