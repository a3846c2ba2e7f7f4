use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::{Dtype as StoredDtype, View};
use serde_json::{Value, json};

use super::journal::{Identity, Journal, JournalError, Phase, Record};
use super::packing::{Packing, PackingError, TensorEntry, checksum};
use super::plan::Assignment;
use crate::blr::Payload;
use crate::device::sync_folder;
use crate::model::{Checkpoint, CheckpointError, LinearName, Tensor, Tokenizer, TokenizerError};
use crate::ops::Dtype;

#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error(
        "{file}: {source}; the packed tensors are safe in the journal, mend this and run again with --resume"
    )]
    Io { file: PathBuf, source: io::Error },
    #[error(
        "model.safetensors: {0}; the packed tensors are safe in the journal, mend this and run again with --resume"
    )]
    Safetensors(#[from] safetensors::SafeTensorError),
    #[error(
        "tensor `{tensor}` holds {value} at row {row}, column {col}; the weights are damaged, fetch the model again"
    )]
    NotFinite { tensor: String, row: usize, col: usize, value: f32 },
    #[error(
        "tensor `{tensor}` would be stored in {dtype}, but holds {value:?} at row {row}, column {col}; convert the model to \
         BF16, which has the range of F32"
    )]
    Overflow { tensor: String, row: usize, col: usize, value: f32, dtype: Dtype },
    #[error("tensor `{0}` is missing in the journal")]
    NoRecord(String),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Packing(#[from] PackingError),
}

/// Writes the packed model as a Hugging Face folder: first whole into the journal, synced, then renamed to `output`.
///
/// | file | content |
/// |---|---|
/// | config.json | the source's, with `quantization_config` |
/// | model.safetensors | a U8 tensor `<layer>.blr` for each payload, the rest in the source's 16-bit type |
/// | packing.json | [`Packing`] |
/// | tokenizer and chat template | copied, or built from GGUF metadata |
pub fn write(
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    identity: &Identity,
    journal: &Journal,
    output: &Path,
) -> Result<Packing, OutputError> {
    let folder = journal.folder().join("model");
    let io_error = |file: &Path| {
        let file = file.to_owned();
        move |source| OutputError::Io { file, source }
    };
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(io_error(&folder))?;
    }
    fs::create_dir_all(&folder).map_err(io_error(&folder))?;

    let (entries, stored) = collect(checkpoint, journal)?;
    for tensor in stored.values() {
        if let Data::Dense { tensor, dtype } = &tensor.data {
            check_stored(tensor, *dtype)?;
        }
    }
    let sizes = stored.values().map(|tensor| (tensor.numbers, tensor.bytes_len())).collect::<Vec<_>>();
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let model = folder.join("model.safetensors");
    safetensors::serialize_to_file(&stored, Some(metadata), &model)?;

    let write_json = |name: &str, value: &Value| {
        let file = folder.join(name);
        fs::write(&file, format!("{value:#}\n")).map_err(io_error(&file))
    };
    write_json("config.json", &config_json(checkpoint, &entries))?;
    // The safetensors crate writes through a temporary file that only its owner may read.
    let usual = fs::metadata(folder.join("config.json")).map_err(io_error(&folder))?.permissions();
    fs::set_permissions(&model, usual).map_err(io_error(&model))?;
    if checkpoint.extra_files().is_empty() {
        let file = folder.join("tokenizer.json");
        fs::write(&file, tokenizer.to_json()?).map_err(io_error(&file))?;
        write_json("tokenizer_config.json", &tokenizer_config(checkpoint, tokenizer))?;
    }
    for source in checkpoint.extra_files() {
        let target = folder.join(source.file_name().unwrap_or_default());
        fs::copy(source, &target).map_err(io_error(source))?;
    }
    let layers = 0..checkpoint.config().layers;
    let read = |phase| journal.read_tuned(phase).transpose();
    let mitigated = layers.clone().map(Phase::Before).filter_map(read).collect::<Result<_, _>>()?;
    let phases = layers.map(Phase::Block).chain([Phase::Model]);
    let tuned = phases.filter_map(read).collect::<Result<_, _>>()?;
    let mut packing = Packing::new(checkpoint, identity, entries, tuned, &sizes);
    packing.mitigated = mitigated;
    packing.files = checksums(&folder)?;
    let value = serde_json::to_value(&packing).map_err(|e| io_error(&folder)(io::Error::other(e)))?;
    write_json("packing.json", &value)?;

    for entry in fs::read_dir(&folder).map_err(io_error(&folder))? {
        let file = entry.map_err(io_error(&folder))?.path();
        File::open(&file).and_then(|f| f.sync_all()).map_err(io_error(&file))?;
    }
    sync_folder(&folder).map_err(io_error(&folder))?;
    fs::rename(&folder, output).map_err(io_error(output))?;
    sync_folder(output.parent().unwrap_or(Path::new("."))).map_err(io_error(output))?;
    Ok(packing)
}

/// That every number of the model is finite, and fits the 16-bit type where it is known to stay dense; asked before
/// hours are spent on the rest.
pub fn check_numbers(checkpoint: &Checkpoint, assignments: &[[Assignment; 7]]) -> Result<(), OutputError> {
    let mut to_pack = BTreeSet::new();
    for (layer, block) in assignments.iter().enumerate() {
        for (name, assignment) in LinearName::ALL.into_iter().zip(block) {
            if matches!(assignment, Assignment::Pack(_)) {
                to_pack.insert(format!("{}.weight", name.prefix(layer)));
            }
        }
    }
    for name in checkpoint.names() {
        let tensor = checkpoint.tensor(name)?;
        check_finite(&tensor)?;
        if !to_pack.contains(name) {
            check_stored(&tensor, checkpoint.half_dtype())?;
        }
    }
    Ok(())
}

fn check_finite(tensor: &Tensor) -> Result<(), OutputError> {
    match find(tensor, |value| !value.is_finite()) {
        Some((row, col, value)) => {
            Err(OutputError::NotFinite { tensor: tensor.name.clone(), row, col, value })
        }
        None => Ok(()),
    }
}

/// That the tensor's numbers are finite in the 16-bit type.
fn check_stored(tensor: &Tensor, dtype: Dtype) -> Result<(), OutputError> {
    let most = if dtype == Dtype::Bf16 { bf16::MAX.to_f32() } else { f16::MAX.to_f32() };
    match find(tensor, |value| value.abs() > most) {
        Some((row, col, value)) => {
            Err(OutputError::Overflow { tensor: tensor.name.clone(), row, col, value, dtype })
        }
        None => Ok(()),
    }
}

/// Rows that one thread looks through at a time.
const ROWS: usize = 256;

/// Row, column and value of the first number that is like this.
fn find(tensor: &Tensor, like: impl Fn(f32) -> bool + Sync) -> Option<(usize, usize, f32)> {
    let in_rows = |part: usize| {
        let mut numbers = vec![0.0; tensor.cols()];
        (part * ROWS..tensor.rows().min((part + 1) * ROWS)).find_map(|row| {
            tensor.read_row(row, &mut numbers);
            numbers.iter().position(|v| like(*v)).map(|col| (row, col, numbers[col]))
        })
    };
    (0..tensor.rows().div_ceil(ROWS)).into_par_iter().find_map_first(in_rows)
}

/// What every linear layer became, and every tensor to store, by name.
fn collect(
    checkpoint: &Checkpoint,
    journal: &Journal,
) -> Result<(Vec<TensorEntry>, BTreeMap<String, Stored>), OutputError> {
    let dtype = checkpoint.half_dtype();
    let (mut entries, mut stored) = (Vec::new(), BTreeMap::new());
    for layer in 0..checkpoint.config().layers {
        for name in LinearName::ALL {
            let prefix = name.prefix(layer);
            let Some((record, payload)) = journal.read_tensor(&prefix)? else {
                return Err(OutputError::NoRecord(prefix));
            };
            let [rows, cols] = name.shape(checkpoint.config());
            if let Some(payload) = payload {
                let shape = vec![payload.bytes().len()];
                let data = Data::Payload(payload);
                stored.insert(format!("{prefix}.blr"), Stored { numbers: rows * cols, shape, data });
            }
            entries.push(TensorEntry { name: prefix, shape: [rows, cols], record });
        }
    }
    let packed: Vec<String> = (entries.iter())
        .filter(|entry| matches!(entry.record, Record::Packed { .. }))
        .map(|entry| format!("{}.weight", entry.name))
        .collect();
    for name in checkpoint.names().filter(|name| !packed.iter().any(|packed| packed == name)) {
        let tensor = checkpoint.tensor(name)?;
        let (numbers, shape) = (tensor.shape.iter().product(), tensor.shape.clone());
        stored.insert(name.to_owned(), Stored { numbers, shape, data: Data::Dense { tensor, dtype } });
    }
    Ok((entries, stored))
}

/// A tensor on its way to disk; dense ones are converted when they are written.
struct Stored {
    /// Weights it stands for.
    numbers: usize,
    /// As it is stored.
    shape: Vec<usize>,
    data: Data,
}

enum Data {
    Payload(Payload),
    Dense { tensor: Tensor, dtype: Dtype },
}

impl Stored {
    fn bytes_len(&self) -> usize {
        match &self.data {
            Data::Payload(payload) => payload.bytes().len(),
            Data::Dense { .. } => 2 * self.numbers,
        }
    }
}

impl View for &Stored {
    fn dtype(&self) -> StoredDtype {
        match &self.data {
            Data::Payload(_) => StoredDtype::U8,
            Data::Dense { dtype: Dtype::Bf16, .. } => StoredDtype::BF16,
            Data::Dense { .. } => StoredDtype::F16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match &self.data {
            Data::Payload(payload) => Cow::Borrowed(payload.bytes().as_slice()),
            Data::Dense { tensor, dtype } => Cow::Owned(to_half(tensor, *dtype)),
        }
    }

    fn data_len(&self) -> usize {
        self.bytes_len()
    }
}

fn to_half(tensor: &Tensor, dtype: Dtype) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 * tensor.rows() * tensor.cols());
    let mut row = vec![0.0; tensor.cols()];
    for i in 0..tensor.rows() {
        tensor.read_row(i, &mut row);
        match dtype {
            Dtype::Bf16 => out.extend(row.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes())),
            _ => out.extend(row.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes())),
        }
    }
    out
}

fn config_json(checkpoint: &Checkpoint, entries: &[TensorEntry]) -> Value {
    let mut config = checkpoint
        .raw_config()
        .cloned()
        .unwrap_or_else(|| checkpoint.config().to_hf_json(checkpoint.half_dtype()));
    let stored = if checkpoint.half_dtype() == Dtype::Bf16 { "bfloat16" } else { "float16" };
    let key = if config.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    config[key] = stored.into();
    let dense: Vec<&str> = (entries.iter())
        .filter(|entry| matches!(entry.record, Record::Dense { .. }))
        .map(|entry| entry.name.as_str())
        .chain((!checkpoint.config().tied).then_some("lm_head"))
        .collect();
    config["quantization_config"] = json!({
        "quant_method": "lapidary",
        "format": "blr",
        "format_version": 1,
        "modules_to_not_convert": dense,
    });
    config
}

fn tokenizer_config(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Value {
    let config = checkpoint.config();
    let name = |id: Option<u32>| id.and_then(|id| tokenizer.token(id));
    let mut value = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": config.add_bos,
        "add_prefix_space": false,
        "bos_token": name(config.bos),
        "eos_token": name(config.eos.first().copied()),
        "model_max_length": config.max_positions,
    });
    if let Some(template) = checkpoint.chat_template() {
        value["chat_template"] = template.into();
    }
    value
}

fn checksums(folder: &Path) -> Result<BTreeMap<String, String>, OutputError> {
    let mut sums = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(|source| OutputError::Io { file: folder.into(), source })? {
        let entry = entry.map_err(|source| OutputError::Io { file: folder.into(), source })?;
        let sum = checksum(&entry.path()).map_err(|source| OutputError::Io { file: entry.path(), source })?;
        sums.insert(entry.file_name().to_string_lossy().into_owned(), sum);
    }
    Ok(sums)
}
