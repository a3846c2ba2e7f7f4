use std::path::Path;

use super::{Files, Method, SweepError, SweepFile};
use crate::atoms::AtomsError;
use crate::atoms::file::read_activations;
use crate::atoms::wide::{Heap, Sharded, Source};
use crate::explain::read_stream;
use crate::model::text::{Text, Windows};
use crate::model::{Checkpoint, Decoder};

/// Tokens of a window of text.
const WINDOW: usize = 128;

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
    model: Option<(Decoder, Windows)>,
}

impl<'a> Reader<'a> {
    /// # Errors
    /// A model or a text that cannot be read.
    pub fn open(battery: &'a SweepFile) -> Result<Self, SweepError> {
        let model = match (&battery.rows.model, &battery.rows.text) {
            (Some(model), Some(text)) => Some(opened(battery, model, text)?),
            _ => None,
        };
        Ok(Self { battery, model })
    }

    /// Reads one source.
    ///
    /// # Errors
    /// What about the file or the model.
    pub fn load(&self, source: usize) -> Result<Loaded, SweepError> {
        let (rows, method) = (&self.battery.rows, self.battery.fits.method);
        let (x, width) = match (&self.model, rows.files.get(source)) {
            (Some((decoder, windows)), _) => {
                let x = read_stream(decoder, windows, rows.layers[source] - 1)?;
                (x, decoder.config().hidden)
            }
            (None, Some(Files::Shards(shards))) if method == Method::Wide => {
                return Ok(Loaded::Source(Box::new(Sharded::open(shards, rows.tensor.as_deref())?)));
            }
            (None, Some(files)) => {
                let one = |file: &Path| read_activations(file, rows.tensor.as_deref());
                let parts = match files {
                    Files::One(file) => vec![one(file)?],
                    Files::Shards(shards) => shards.iter().map(|file| one(file)).collect::<Result<_, _>>()?,
                };
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
            Method::Wide => {
                Loaded::Source(Box::new(Heap::new(x.iter().map(|v| *v as f32).collect(), width)?))
            }
        })
    }
}

fn opened(battery: &SweepFile, model: &Path, text: &Path) -> Result<(Decoder, Windows), SweepError> {
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
    windows.truncate((battery.rows.tokens / window).max(1));
    Ok((decoder, windows))
}
