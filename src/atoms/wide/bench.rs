//! Wide dictionaries on planted circles, at three sizes, with the constants of their generator.

use std::time::Instant;

use super::super::AtomsError;
use super::{
    Battery, Job, Kind, Planted, Usage, WideFit, WideParams, fit_battery, predicted_bytes, recoveries,
};
use crate::arrow::bench::Figure;
use crate::device::Device;

/// A planted circle counts as found from this recovery on.
pub const FOUND: f64 = 0.95;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 64 circles in 24,576 rows of 2,048, beside a linear dictionary of the same decoder rows and coefficients a row.
    Large64,
    /// 256 fits of 8 circles in 2,048 rows of 64: side by side, and one after another.
    Battery256,
    /// 16,384 circles in 262,144 rows of 1,024, beside a linear dictionary of the same width and budget.
    Wide16k,
    /// A sixteenth of that, for a host: 1,024 circles in 65,536 rows of 256.
    Wide1k,
}

impl Size {
    pub const ALL: [Self; 4] = [Self::Large64, Self::Battery256, Self::Wide16k, Self::Wide1k];

    /// As it stands in figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Large64 => "large64",
            Self::Battery256 => "battery256",
            Self::Wide16k => "wide16k",
            Self::Wide1k => "wide1k",
        }
    }

    /// Rows to fit, rows held out, their width; circles, those on in a row, directions of the bulk.
    const fn sizes(self) -> [usize; 6] {
        match self {
            Self::Large64 => [24_576, 4096, 2048, 64, 3, 256],
            Self::Battery256 => [2048, 512, 64, 8, 2, 16],
            Self::Wide16k => [262_144, 16_384, 1024, 16_384, 16, 256],
            Self::Wide1k => [65_536, 4096, 256, 1024, 4, 64],
        }
    }

    /// What is planted.
    pub fn planted(self, seed: u64) -> Planted {
        let [fit, heldout, width, atoms, active, bulk] = self.sizes();
        Planted { rows: fit + heldout, width, atoms, active, bulk, bulk_share: 0.5, noise_share: 0.05, seed }
    }

    /// Name of a figure; the host's stand apart.
    fn figure(self, device: &Device, what: &str) -> String {
        let place = if matches!(device, Device::Host) { "atoms.host" } else { "atoms" };
        format!("{place}.{}_{what}", self.name())
    }

    /// Rows to fit; the others are held out.
    pub const fn fit_rows(self) -> usize {
        self.sizes()[0]
    }

    fn params(self, seconds: f64) -> WideParams {
        let Planted { atoms, active, bulk, .. } = self.planted(0);
        let common = WideParams { atoms, active, bulk, seed: 0, ..WideParams::default() };
        match self {
            Self::Large64 => WideParams { rank: 512, stages: 3, rounds: 20, ..common },
            Self::Battery256 => WideParams { rank: 32, stages: 2, rounds: 10, settled: 0.0, ..common },
            Self::Wide16k | Self::Wide1k => {
                WideParams { rank: 1024, stages: 4, rounds: 1000, seconds: Some(seconds), ..common }
            }
        }
    }

    /// The linear dictionary that stands beside it: rays over a bulk of the same rank, as many coefficients a row.
    fn linear(self, seconds: f64) -> WideParams {
        let params = self.params(seconds);
        let atoms = match self {
            Self::Wide16k | Self::Wide1k => params.atoms,
            _ => 2 * params.atoms,
        };
        WideParams { kind: Kind::Ray, atoms, ..params }
    }

    /// Measures it on a device; a budget in seconds is for the wide ones, each of their two fits.
    ///
    /// # Errors
    /// As the fits'.
    pub fn measure(self, device: &Device, seconds: f64) -> Result<Vec<Figure>, AtomsError> {
        match self {
            Self::Battery256 => self.battery(device),
            _ => self.single(device, seconds),
        }
    }

    fn single(self, device: &Device, seconds: f64) -> Result<Vec<Figure>, AtomsError> {
        let planted = self.planted(0);
        let params = self.params(seconds);
        let room = crate::device::arena::Arena::largest(device)?;
        let job = Job { source: &planted, fit: self.fit_rows(), params };
        let predicted = predicted_bytes(&job, device, room)?;
        warm(device)?;
        let (fitted, peak) = peak(device, || one(device, &job));
        let (fit, usage) = fitted?;
        let truth = planted.truth(self.fit_rows(), planted.rows - self.fit_rows())?;
        let recovered = recoveries(&truth, &fit.codes, planted.atoms);
        let found = recovered.iter().filter(|r| **r >= FOUND).count();
        let (linear, linear_usage) = one(device, &Job { params: self.linear(seconds), ..job })?;
        let mut figures = Vec::new();
        let mut put = |what: &str, value: f64, unit: &'static str, note: String| {
            let name = self.figure(device, what);
            let note = (!note.is_empty()).then_some(note);
            figures.push(Figure::new(name, value, unit, note));
        };
        put("s", usage.seconds, "s", told(&fit));
        put("found", found as f64, "circles", format!("of {}, recovery from {FOUND}", planted.atoms));
        put("ev", fit.heldout.unwrap_or(0.0), "1", "held out".into());
        put("linear_ev", linear.heldout.unwrap_or(0.0), "1", format!("held out; {}", told(&linear)));
        put("linear_s", linear_usage.seconds, "s", String::new());
        put("ceiling", 1.0 - planted.noise_share, "1", "all but the noise".into());
        put("dead_share", fit.dead, "1", format!("{} began anew", fit.revived));
        put("linear_dead_share", linear.dead, "1", format!("{} began anew", linear.revived));
        put("predicted_mib", mib(predicted), "MiB", "before anything was allocated".into());
        if !matches!(device, Device::Host) {
            put("busy_share", usage.busy / usage.seconds, "1", "of the wall time with work queued".into());
            put("sent_mib", mib(usage.telemetry.bytes_up), "MiB", "to the device".into());
            put("received_mib", mib(usage.telemetry.bytes_down), "MiB", "with the dictionary itself".into());
        }
        if let Some(peak) = peak {
            put("peak_mib", mib(peak), "MiB", "by the driver, sampled".into());
        }
        Ok(figures)
    }

    fn battery(self, device: &Device) -> Result<Vec<Figure>, AtomsError> {
        let planted: Vec<Planted> = (0..256).map(|seed| self.planted(seed)).collect();
        let params = self.params(0.0);
        let jobs: Vec<Job<'_>> =
            planted.iter().map(|planted| Job { source: planted, fit: self.fit_rows(), params }).collect();
        warm(device)?;
        let together = fit_battery(device, &jobs, None, &|_, _| ());
        let began = Instant::now();
        let alone: Vec<Battery> =
            (0..jobs.len()).map(|k| fit_battery(device, &jobs[k..k + 1], None, &|_, _| ())).collect();
        let seconds = began.elapsed().as_secs_f64();
        let (mut same, mut found, mut circles) = (0, 0, 0);
        for ((planted, fit), alone) in planted.iter().zip(&together.fits).zip(&alone) {
            let (Ok(fit), Ok(other)) = (fit, &alone.fits[0]) else { continue };
            same += usize::from(fit == other);
            let truth = planted.truth(self.fit_rows(), planted.rows - self.fit_rows())?;
            let recovered = recoveries(&truth, &fit.codes, planted.atoms);
            found += recovered.iter().filter(|r| **r >= FOUND).count();
            circles += planted.atoms;
        }
        let put = |what: &str, value: f64, unit: &'static str, note: &str| {
            Figure::new(self.figure(device, what), value, unit, Some(note.into()))
        };
        Ok(vec![
            put("speedup", seconds / together.usage.seconds, "1", "over one after another"),
            put("s", together.usage.seconds, "s", "256 fits side by side"),
            put("alone_s", seconds, "s", "256 fits one after another"),
            put("identical", f64::from(same as u32), "fits", "bit for bit, of 256"),
            put("found", found as f64, "circles", &format!("of {circles}")),
        ])
    }
}

fn one(device: &Device, job: &Job<'_>) -> Result<(WideFit, Usage), AtomsError> {
    let Battery { mut fits, usage } = fit_battery(device, std::slice::from_ref(job), None, &|_, _| ());
    Ok((fits.remove(0)?, usage))
}

/// Compiles the kernels of both shapes and loads the libraries: once on a machine, and no part of a fit.
fn warm(device: &Device) -> Result<(), AtomsError> {
    let planted = Size::Battery256.planted(0);
    let fit = Size::Battery256.fit_rows();
    for params in [Size::Battery256.params(0.0), Size::Battery256.linear(0.0)] {
        one(device, &Job { source: &planted, fit, params })?;
    }
    Ok(())
}

fn told(fit: &WideFit) -> String {
    format!("{:?} after {} rounds", fit.outcome, fit.explained.len())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Does something while the free memory of the card is watched; the most that was taken meanwhile.
#[cfg(feature = "cuda")]
fn peak<T>(device: &Device, work: impl FnOnce() -> T) -> (T, Option<u64>) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let Device::Cuda(cuda) = device else { return (work(), None) };
    let Ok(before) = cuda.free_memory() else { return (work(), None) };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut least = before;
            while !done.load(Ordering::Relaxed) {
                least = cuda.free_memory().map_or(least, |free| least.min(free));
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            least
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        (result, watch.join().ok().map(|least| before - least))
    })
}

#[cfg(not(feature = "cuda"))]
fn peak<T>(_: &Device, work: impl FnOnce() -> T) -> (T, Option<u64>) {
    (work(), None)
}
