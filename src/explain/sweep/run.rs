use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use super::battery::race_shapes;
use super::held_out::HeldOut;
use super::journal::{Begin, Holds};
use super::rows::{Loaded, Reader};
use super::{Cell, Journal, Record, State, SweepError, SweepFile};
use crate::arrow::sweep;
use crate::atoms::file::{write_dictionary, write_wide_dictionary};
use crate::atoms::wide::{Battery, Job, Kind, Source, WideDictionary, WideFit};
use crate::atoms::{AtomsError, Fit, FitParams, fit};
use crate::device::Device;

/// How a battery runs.
#[derive(Clone, Debug)]
pub struct SweepParams<'a> {
    pub device: &'a Device,
    /// Bytes that wide fits may take together on the device; as it has free where nothing is given
    pub memory: Option<u64>,
    pub begin: Begin,
}

/// Hears of every fit: how many are done, of how many, and the last.
pub type Progress<'a> = &'a (dyn Fn(usize, usize, &Record) + Sync);

/// Makes the fits that a folder lacks, and returns all of them in the battery's order. Each is what it would be alone, bit
/// for bit; a fit that fails leaves the others as they are.
///
/// # Errors
/// Rows, a model or a folder that cannot be used.
pub fn run(
    battery: &SweepFile,
    folder: &Path,
    params: &SweepParams<'_>,
    told: Progress<'_>,
) -> Result<Vec<Record>, SweepError> {
    let holds = Journal::look(folder, battery, params.begin)?;
    let reader = Reader::open(battery)?;
    if holds == Holds::Nothing {
        reader.any_readable()?;
    }
    let journal = Journal::open(folder, battery, &reader.origins(), params.begin)?;
    let cells = battery.cells();
    let mut records: Vec<Option<Record>> =
        cells.iter().enumerate().map(|(k, cell)| journal.read(k, cell)).collect::<Result<_, _>>()?;
    // What failed may do better now: a file is back, a card has room.
    for record in &mut records {
        record.take_if(|record| matches!(record.state, State::Failed { .. }));
    }
    let sources = cells.last().map_or(0, |cell| cell.source + 1);
    for source in 0..sources {
        let missing: Vec<usize> =
            (0..cells.len()).filter(|k| cells[*k].source == source && records[*k].is_none()).collect();
        if missing.is_empty() {
            continue;
        }
        let done = records.iter().flatten().count();
        let dictionaries = battery.fits.dictionaries;
        let kept =
            Kept { journal: &journal, dictionaries, told, all: cells.len(), done: Mutex::new((done, None)) };
        let found = reader.load(source).and_then(|rows| match rows {
            Loaded::Rows { x, width } => Ok(races(battery, (&x, width), &cells, &missing, &kept)),
            Loaded::Source(rows) => wide(battery, &*rows, params, &cells, &missing, &kept),
        });
        // Rows that cannot be read are the failure of their fits, not of the battery.
        let found = found.unwrap_or_else(|error| {
            let failed =
                |k: &usize| kept.keep(*k, &cells[*k], State::Failed { error: error.to_string() }, None);
            missing.iter().map_while(failed).collect()
        });
        kept.failure()?;
        for (k, record) in missing.into_iter().zip(found) {
            records[k] = Some(record);
        }
    }
    Ok(records.into_iter().flatten().collect())
}

/// A dictionary that a fit found.
enum Found<'a> {
    Race(&'a Fit),
    Wide(&'a WideDictionary),
}

impl Found<'_> {
    fn write(&self, file: &Path) -> Result<(), SweepError> {
        let written = match self {
            Self::Race(fit) => write_dictionary(file, &fit.dictionary, &fit.certificate),
            Self::Wide(dictionary) => write_wide_dictionary(file, dictionary),
        };
        Ok(written?)
    }
}

/// Where finished fits go; the first that cannot be kept ends the run.
struct Kept<'a> {
    journal: &'a Journal,
    /// Whether dictionaries are kept too
    dictionaries: bool,
    told: Progress<'a>,
    all: usize,
    done: Mutex<(usize, Option<SweepError>)>,
}

impl Kept<'_> {
    /// Keeps a fit, its dictionary first: what has a line in the table has that too. Nothing where it cannot be kept.
    fn keep(
        &self,
        number: usize,
        cell: &Cell,
        state: State,
        dictionary: Option<Found<'_>>,
    ) -> Option<Record> {
        let record = Record { cell: cell.clone(), state: state.checked() };
        let fitted = matches!(record.state, State::Fitted { .. });
        let dictionary = dictionary.filter(|_| self.dictionaries && fitted);
        let written = dictionary.map_or(Ok(()), |found| found.write(&self.journal.place_dictionary(number)?));
        let written = written.and_then(|()| self.journal.write(number, &record));
        let mut done = self.done.lock().unwrap_or_else(|e| e.into_inner());
        if let Err(error) = written {
            done.1.get_or_insert(error);
            return None;
        }
        done.0 += 1;
        (self.told)(done.0, self.all, &record);
        Some(record)
    }

    /// Whether further fits are worth their while.
    fn goes_on(&self) -> bool {
        self.done.lock().unwrap_or_else(|e| e.into_inner()).1.is_none()
    }

    fn failure(self) -> Result<(), SweepError> {
        self.done.into_inner().unwrap_or_else(|e| e.into_inner()).1.map_or(Ok(()), Err)
    }
}

/// Rows to fit, of so many.
fn fit_rows(battery: &SweepFile, rows: usize) -> usize {
    rows - (battery.rows.held_out * rows as f64) as usize
}

fn races(
    battery: &SweepFile,
    (x, width): (&[f64], usize),
    cells: &[Cell],
    missing: &[usize],
    kept: &Kept<'_>,
) -> Vec<Record> {
    let lanes = std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let one = |(): &mut (), k: &usize| {
        let cell = &cells[*k];
        if !kept.goes_on() {
            return Err(());
        }
        let record = match race(battery, (x, width), cell) {
            Ok((state, fit)) => kept.keep(*k, cell, state, Some(Found::Race(&fit))),
            Err(error) => kept.keep(*k, cell, State::Failed { error: error.to_string() }, None),
        };
        record.ok_or(())
    };
    sweep(missing, lanes, |_| (), one).results.into_iter().flatten().collect()
}

fn race(battery: &SweepFile, (x, width): (&[f64], usize), cell: &Cell) -> Result<(State, Fit), AtomsError> {
    let split = fit_rows(battery, x.len() / width.max(1)) * width;
    let params = FitParams {
        atoms: cell.atoms,
        shapes: race_shapes(&cell.shapes).map_err(|what| AtomsError::Wide { what })?,
        active: battery.fits.active,
        seed: cell.seed,
        time: battery.fits.seconds.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))),
    };
    let fitted = fit(&x[..split], width, &params)?;
    let rest = if split < x.len() { &x[split..] } else { x };
    let measures = fitted.dictionary.measure(rest, width)?;
    let mut names: Vec<String> = Vec::new();
    for shape in crate::atoms::Shape::ALL {
        let count = fitted.dictionary.atoms.iter().filter(|atom| atom.shape.name() == shape.name()).count();
        if count > 0 {
            names.push(format!("{count} {}", shape.name()));
        }
    }
    let state = State::Fitted {
        outcome: plain(&fitted.certificate.outcome),
        explained: measures.explained,
        l0: measures.l0,
        dead: if fitted.dictionary.atoms.is_empty() { 0.0 } else { 1.0 - measures.alive },
        found: names.join(", "),
    };
    Ok((state, fitted))
}

fn wide(
    battery: &SweepFile,
    source: &dyn Source,
    params: &SweepParams<'_>,
    cells: &[Cell],
    missing: &[usize],
    kept: &Kept<'_>,
) -> Result<Vec<Record>, SweepError> {
    let fit = fit_rows(battery, source.rows());
    let job = |k: &usize| Job { source, fit, params: battery.wide_params(&cells[*k]) };
    let held = HeldOut::of_source(source, fit)?;
    let jobs: Vec<Job<'_>> = missing.iter().map(job).collect();
    let records = Mutex::new(Vec::new());
    Battery::fit_while(params.device, &jobs, params.memory, &|at, result| {
        let number = missing[at];
        let (state, dictionary) = match result {
            Ok(fit) => (fitted(battery, fit, &held), Some(Found::Wide(&fit.dictionary))),
            Err(error) => (State::Failed { error: error.to_string() }, None),
        };
        let record = kept.keep(number, &cells[number], state, dictionary);
        records.lock().unwrap_or_else(|e| e.into_inner()).extend(record);
        kept.goes_on()
    });
    Ok(records.into_inner().unwrap_or_else(|e| e.into_inner()))
}

fn fitted(battery: &SweepFile, fit: &WideFit, held: &HeldOut) -> State {
    if !held.varies_around(&fit.dictionary.mean) {
        return State::Failed { error: SweepError::Flat.to_string() };
    }
    let kind = fit.dictionary.kind;
    let paired = match (kind, fit.paired) {
        (Kind::Circle, Some(paired)) => format!("{paired} circles by independent components"),
        _ => String::new(),
    };
    State::Fitted {
        outcome: plain(&fit.outcome),
        explained: fit.heldout.or(fit.explained.last().copied()).unwrap_or(0.0),
        l0: battery.fits.active as f64,
        dead: fit.dead,
        found: paired,
    }
}

/// An outcome as it stands in files.
fn plain(outcome: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(outcome).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}
