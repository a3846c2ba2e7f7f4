use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::SweepError;
use crate::atoms::Shape;
use crate::atoms::wide::{Kind, WideParams};

/// Atoms of a race at most, and those of a row, as `explain` takes them.
const MOST_ATOMS: usize = 64;
const MOST_ACTIVE: usize = 8;

/// BATTERY.toml. Every fit that it asks for is one of files or layers x `shapes` x `atoms` x `seeds`, in this order.
///
/// ```toml
/// [rows]
/// files = ["layer7.safetensors", ["a.safetensors", "b.safetensors"]]   # the second in shards, streamed
///
/// [fits]
/// method = "wide"
/// atoms = [16, 64]
/// shapes = ["circle", "ray"]
/// seeds = [0, 1, 2]
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepFile {
    pub rows: Rows,
    pub fits: Fits,
    /// What tells it from others: itself as its file says it, with paths as they stand there.
    #[serde(skip)]
    pub identity: String,
}

/// What is explained: `files`, or `layers` of a `model` on a `text`. Paths are relative to the battery's folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    #[serde(default)]
    pub files: Vec<Files>,
    /// The tensor of safetensors files that hold several
    pub tensor: Option<String>,
    pub model: Option<PathBuf>,
    pub text: Option<PathBuf>,
    /// Blocks whose output is explained, counted from 1
    #[serde(default)]
    pub layers: Vec<usize>,
    /// Tokens of the text; 4,096 where nothing is said
    pub tokens: Option<usize>,
    /// Share of the rows, the last ones, that no fit sees
    #[serde(default = "held_out")]
    pub held_out: f64,
}

/// One file, or the shards of one tensor in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Files {
    One(PathBuf),
    Shards(Vec<PathBuf>),
}

impl Files {
    /// The files in their order.
    pub fn paths(&self) -> &[PathBuf] {
        match self {
            Self::One(file) => std::slice::from_ref(file),
            Self::Shards(shards) => shards,
        }
    }
}

/// How fits are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// A race between shapes, as `explain` does it, on the host's threads. A shape may be several: "circle+line".
    #[default]
    Race,
    /// Many atoms of one shape, ray or circle, over a linear bulk, many fits in a launch.
    Wide,
}

/// What is fitted. `seconds` ends a fit early, and what it then has depends on the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fits {
    #[serde(default)]
    pub method: Method,
    pub atoms: Vec<usize>,
    pub shapes: Vec<String>,
    #[serde(default = "seeds")]
    pub seeds: Vec<u64>,
    #[serde(default = "active")]
    pub active: usize,
    pub seconds: Option<f64>,
    /// Of wide fits, as in [`WideParams`]
    pub bulk: Option<usize>,
    pub rank: Option<usize>,
    pub rounds: Option<usize>,
    pub stages: Option<usize>,
    /// Whether dictionaries are kept, not only what they are worth
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dictionaries: bool,
}

fn held_out() -> f64 {
    0.2
}

fn seeds() -> Vec<u64> {
    vec![0]
}

fn active() -> usize {
    3
}

/// One fit of a battery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Which of the battery's rows
    pub source: usize,
    /// Their name in the table
    pub rows: String,
    pub shapes: String,
    pub atoms: usize,
    pub seed: u64,
}

impl SweepFile {
    /// Reads and checks a battery.
    ///
    /// # Errors
    /// The file, and what about it.
    pub fn read(file: &Path) -> Result<Self, SweepError> {
        let text = std::fs::read_to_string(file)
            .map_err(|e| SweepError::File { file: file.into(), what: format!("cannot be read: {e}") })?;
        let refuse = |what: String| SweepError::Battery { file: file.into(), what };
        let mut battery: Self = toml::from_str(&text).map_err(|e| refuse(e.to_string()))?;
        battery.check().map_err(refuse)?;
        battery.identity = serde_json::to_string_pretty(&battery).map_err(|e| refuse(e.to_string()))?;
        battery.place(file.parent().unwrap_or(Path::new("")));
        Ok(battery)
    }

    fn check(&self) -> Result<(), String> {
        let Self { rows, fits, .. } = self;
        let model = rows.model.is_some();
        match () {
            () if model != rows.files.is_empty() => {
                return Err(
                    "[rows] names `files`, or a `model` with `text` and `layers`: one of the two".into()
                );
            }
            () if model && (rows.text.is_none() || rows.layers.is_empty() || rows.layers.contains(&0)) => {
                return Err("a `model` takes a `text` and `layers`, counted from 1".into());
            }
            () if rows.tokens == Some(0) => return Err("tokens = 0; one at least is needed".into()),
            () if !(0.0..1.0).contains(&rows.held_out) => {
                return Err(format!("held_out = {}; 0 to below 1 is possible", rows.held_out));
            }
            () if fits.seconds.is_some_and(|s| !(0.0..=1e9).contains(&s)) => {
                return Err(format!("seconds = {:?}; a number from 0 to 1e9 is possible", fits.seconds));
            }
            () if fits.atoms.is_empty() || fits.shapes.is_empty() || fits.seeds.is_empty() => {
                return Err("`atoms`, `shapes` and `seeds` hold one value at least".into());
            }
            () => {}
        }
        for name in &fits.shapes {
            match fits.method {
                Method::Race => drop(race_shapes(name)?),
                Method::Wide => drop(wide_kind(name)?),
            }
        }
        self.check_idle()?;
        match fits.method {
            Method::Race => self.check_race(),
            Method::Wide => self.check_wide(),
        }
    }

    /// Refuses keys that would do nothing.
    fn check_idle(&self) -> Result<(), String> {
        let Self { rows, fits, .. } = self;
        let (files, race) = (rows.model.is_none(), fits.method == Method::Race);
        let idle = [
            ("text", files && rows.text.is_some(), "beside `files`"),
            ("layers", files && !rows.layers.is_empty(), "beside `files`"),
            ("tokens", files && rows.tokens.is_some(), "beside `files`"),
            ("tensor", !files && rows.tensor.is_some(), "beside a `model`"),
            ("bulk", race && fits.bulk.is_some(), "in a race"),
            ("rank", race && fits.rank.is_some(), "in a race"),
            ("rounds", race && fits.rounds.is_some(), "in a race"),
            ("stages", race && fits.stages.is_some(), "in a race"),
        ];
        match idle.into_iter().find(|(_, there, _)| *there) {
            Some((key, _, place)) => Err(format!("`{key}` does nothing {place}; leave it out")),
            None => Ok(()),
        }
    }

    /// That `explain` would take it.
    fn check_race(&self) -> Result<(), String> {
        let Fits { atoms, active, .. } = &self.fits;
        if !(1..=MOST_ACTIVE).contains(active) {
            return Err(format!("active = {active}; 1 to {MOST_ACTIVE} are possible in a race"));
        }
        match atoms.iter().find(|atoms| !(1..=MOST_ATOMS).contains(*atoms)) {
            Some(atoms) => Err(format!("atoms = {atoms}; 1 to {MOST_ATOMS} are possible in a race")),
            None => Ok(()),
        }
    }

    /// That one of the fits is possible, whatever its rows.
    fn check_wide(&self) -> Result<(), String> {
        if self.fits.atoms.contains(&0) {
            return Err("atoms = 0; one at least is needed".into());
        }
        let mut refused = None;
        for cell in self.cells() {
            match self.wide_params(&cell).check(usize::MAX, usize::MAX) {
                Ok(()) => return Ok(()),
                Err(error) => drop(refused.get_or_insert(error.to_string())),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// What one of its sources is read from: files, or the model and its text.
    pub(super) fn paths(&self, source: usize) -> Vec<&Path> {
        let Rows { files, model, text, .. } = &self.rows;
        match files.get(source) {
            Some(files) => files.paths().iter().map(PathBuf::as_path).collect(),
            None => model.iter().chain(text).map(PathBuf::as_path).collect(),
        }
    }

    fn place(&mut self, folder: &Path) {
        let join = |path: &mut PathBuf| *path = folder.join(&*path);
        self.rows.model.iter_mut().for_each(join);
        self.rows.text.iter_mut().for_each(join);
        for files in &mut self.rows.files {
            match files {
                Files::One(file) => join(file),
                Files::Shards(shards) => shards.iter_mut().for_each(join),
            }
        }
    }

    /// All fits, in the order of the table.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for (source, rows) in self.names().into_iter().enumerate() {
            for shapes in &self.fits.shapes {
                for atoms in &self.fits.atoms {
                    for seed in &self.fits.seeds {
                        let (rows, shapes) = (rows.clone(), shapes.clone());
                        cells.push(Cell { source, rows, shapes, atoms: *atoms, seed: *seed });
                    }
                }
            }
        }
        cells
    }

    fn names(&self) -> Vec<String> {
        let name =
            |file: &PathBuf| file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        if self.rows.model.is_some() {
            return self.rows.layers.iter().map(|layer| format!("block {layer}")).collect();
        }
        let of = |files: &Files| match files {
            Files::One(file) => name(file),
            Files::Shards(shards) => {
                format!(
                    "{} and {} more",
                    shards.first().map(name).unwrap_or_default(),
                    shards.len().saturating_sub(1)
                )
            }
        };
        self.rows.files.iter().map(of).collect()
    }

    /// What a wide fit of this battery is asked for.
    pub fn wide_params(&self, cell: &Cell) -> WideParams {
        let Fits { active, bulk, rank, rounds, stages, seconds, .. } = self.fits;
        let base = WideParams::default();
        WideParams {
            kind: wide_kind(&cell.shapes).unwrap_or_default(),
            atoms: cell.atoms,
            active,
            bulk: bulk.unwrap_or(base.bulk),
            rank: rank.unwrap_or(base.rank),
            stages: stages.unwrap_or(base.stages.min(active)),
            rounds: rounds.unwrap_or(base.rounds),
            seed: cell.seed,
            seconds,
            ..base
        }
    }
}

/// The shapes that race, by their names with + between them.
pub(super) fn race_shapes(names: &str) -> Result<Vec<Shape>, String> {
    let all = || Shape::ALL.iter().map(|shape| shape.name()).collect::<Vec<_>>().join(", ");
    let shape = |name: &str| {
        Shape::of_name(name.trim()).ok_or_else(|| format!("there is no shape `{name}`; there are: {}", all()))
    };
    names.split('+').map(shape).collect()
}

fn wide_kind(name: &str) -> Result<Kind, String> {
    let kinds = [Kind::Ray, Kind::Circle];
    let found = kinds.into_iter().find(|kind| kind.name() == name);
    found.ok_or_else(|| format!("wide dictionaries have no shape `{name}`; there are: ray, circle"))
}
