use std::path::Path;

use rayon::prelude::*;

use super::journal::Origins;
use super::origins::Seen;
use super::{Files, Method, Origin, SweepError, SweepFile};
use crate::atoms::AtomsError;
use crate::atoms::file::read_activations;
use crate::atoms::wide::{Heap, Sharded, Source};
use crate::explain::read_stream;
use crate::model::text::{Text, Windows};
use crate::model::{Checkpoint, Decoder};

/// Tokens of a window of text.
const WINDOW: usize = 128;

/// Tokens where a battery does not say how many.
const TOKENS: usize = 4096;

/// One source of rows, read.
pub enum Loaded {
    /// For races, in f64
    Rows { x: Vec<f64>, width: usize },
    /// For wide fits
    Source(Box<dyn Source>),
}

/// The sources of a battery; a model is opened once.
pub struct Reader<'a> {
    battery: &'a SweepFile,
    model: Option<Model>,
    /// By source; why a file cannot be read is the failure of its fits
    files: Vec<Vec<Result<Seen, String>>>,
}

struct Model {
    decoder: Decoder,
    windows: Windows,
    /// Of the model and of its text
    origins: [Origin; 2],
}

impl<'a> Reader<'a> {
    /// Opens the model, and reads all files once for what they are.
    ///
    /// # Errors
    /// A model or a text that cannot be read; a tensor to be picked from files that hold none.
    pub fn open(battery: &'a SweepFile) -> Result<Self, SweepError> {
        let model = match (&battery.rows.model, &battery.rows.text) {
            (Some(model), Some(text)) => Some(opened(battery, model, text)?),
            _ => None,
        };
        let files = &battery.rows.files;
        let all = |files: &Files| files.paths().par_iter().map(|file| Seen::of(file)).collect();
        let seen: Vec<Vec<Result<Seen, String>>> = files.par_iter().map(all).collect();
        let mut known = files
            .iter()
            .flat_map(Files::paths)
            .zip(seen.iter().flatten())
            .filter_map(|(file, seen)| Some((file, seen.as_ref().ok()?.npy)));
        if let (Some(_), Some((file, true))) = (&battery.rows.tensor, known.next())
            && known.all(|(_, npy)| npy)
        {
            let what = "is a .npy file, which holds one array: `tensor` does nothing; leave it out".into();
            return Err(SweepError::File { file: file.clone(), what });
        }
        Ok(Self { battery, model, files: seen })
    }

    /// What the sources are.
    pub fn origins(&self) -> Origins {
        if let Some(Model { origins, .. }) = &self.model {
            return vec![origins.clone().map(Some).into(); self.battery.rows.layers.len()];
        }
        let origin = |seen: &Result<Seen, String>| seen.as_ref().ok().map(|seen| seen.origin.clone());
        self.files.iter().map(|files| files.iter().map(origin).collect()).collect()
    }

    /// That one source at least can be read.
    ///
    /// # Errors
    /// Why the first cannot.
    pub fn any_readable(&self) -> Result<(), SweepError> {
        let mut checks = (0..self.files.len()).map(|source| self.check(source, |_, _| Ok(())));
        match checks.next() {
            Some(Err(error)) if checks.all(|check| check.is_err()) => Err(error),
            _ => Ok(()),
        }
    }

    /// That all files of a source could be read, and more about each.
    fn check(
        &self,
        source: usize,
        more: impl Fn(&Seen, &Path) -> Result<(), String>,
    ) -> Result<(), SweepError> {
        for (seen, file) in self.files.get(source).into_iter().flatten().zip(self.battery.paths(source)) {
            let checked = seen.as_ref().map_err(String::clone).and_then(|seen| more(seen, file));
            checked.map_err(|what| SweepError::File { file: file.into(), what })?;
        }
        Ok(())
    }

    /// Reads one source.
    ///
    /// # Errors
    /// What about the file or the model.
    pub fn load(&self, source: usize) -> Result<Loaded, SweepError> {
        self.check(source, |_, _| Ok(()))?;
        let loaded = self.loaded(source)?;
        self.check(source, Seen::still)?;
        Ok(loaded)
    }

    fn loaded(&self, source: usize) -> Result<Loaded, SweepError> {
        let (rows, method) = (&self.battery.rows, self.battery.fits.method);
        let (x, width) = match (&self.model, rows.files.get(source)) {
            (Some(Model { decoder, windows, .. }), _) => {
                let x = read_stream(decoder, windows, rows.layers[source] - 1)?;
                (x, decoder.config().hidden)
            }
            (None, Some(Files::Shards(shards))) if method == Method::Wide => {
                return Ok(Loaded::Source(Box::new(Sharded::open(shards, rows.tensor.as_deref())?)));
            }
            (None, Some(files)) => {
                let one = |file: &Path| read_activations(file, rows.tensor.as_deref());
                let parts = files.paths().iter().map(|file| one(file)).collect::<Result<Vec<_>, _>>()?;
                let width = parts.first().map_or(0, |part| part.width);
                if let Some(other) = parts.iter().find(|part| part.width != width) {
                    return Err(AtomsError::Width { got: other.width, expected: width }.into());
                }
                (parts.into_iter().flat_map(|part| part.x).collect(), width)
            }
            (None, None) => return Err(AtomsError::Empty.into()),
        };
        Ok(match method {
            Method::Race => Loaded::Rows { x, width },
            Method::Wide => Loaded::Source(Box::new(Heap::new(self.narrowed(source, &x, width)?, width)?)),
        })
    }

    /// Rows in f32, which holds less than f64.
    fn narrowed(&self, source: usize, x: &[f64], width: usize) -> Result<Vec<f32>, SweepError> {
        let narrow: Vec<f32> = x.iter().map(|v| *v as f32).collect();
        match x.iter().zip(&narrow).position(|(v, narrow)| v.is_finite() && !narrow.is_finite()) {
            Some(at) => Err(SweepError::File {
                file: self.battery.paths(source).first().copied().unwrap_or(Path::new("")).into(),
                what: format!(
                    "row {}, column {} holds {:e}, which is too large for f32, in which wide fits are made ({:e} at \
                     most); scale the rows down",
                    at / width,
                    at % width,
                    x[at],
                    f32::MAX
                ),
            }),
            None => Ok(narrow),
        }
    }
}

fn opened(battery: &SweepFile, model: &Path, text: &Path) -> Result<Model, SweepError> {
    let failed = |what: String| SweepError::Model { model: model.into(), what };
    let checkpoint = Checkpoint::open(model).map_err(|e| failed(e.to_string()))?;
    let decoder = Decoder::load(&checkpoint).map_err(|e| failed(e.to_string()))?;
    let layers = decoder.config().layers;
    if let Some(layer) = battery.rows.layers.iter().find(|layer| **layer > layers) {
        return Err(failed(format!("there is no block {layer}; there are {layers}")));
    }
    let tokenizer = checkpoint.tokenizer().map_err(|e| failed(e.to_string()))?;
    let text = Text::read(&[text.to_owned()]).map_err(|e| failed(e.to_string()))?;
    let start = checkpoint.config().start_token();
    let window = WINDOW.min(decoder.config().max_positions - usize::from(start.is_some()));
    let mut windows = Windows::cut(&text, &tokenizer, window, start).map_err(|e| failed(e.to_string()))?;
    windows.truncate((battery.rows.tokens.unwrap_or(TOKENS) / window).max(1));
    if windows.count() == 0 {
        return Err(failed(format!(
            "the text has {} tokens; give it {window} at least",
            windows.text_tokens
        )));
    }
    let of_text = text.files.into_iter().next().map(|text| (text.bytes, text.sha256)).unwrap_or_default();
    let origins = [
        Origin { bytes: None, sha256: checkpoint.fingerprint() },
        Origin { bytes: Some(of_text.0), sha256: of_text.1 },
    ];
    Ok(Model { decoder, windows, origins })
}
