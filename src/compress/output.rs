use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::{Dtype as StoredDtype, View};
use serde_json::{Value, json};

use super::journal::{Identity, Journal, JournalError, Record};
use super::packing::{Packing, PackingError, TensorEntry, checksum};
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
    #[error("tensor `{tensor}` stays dense, but its value {value} at number {index} does not fit {dtype}")]
    Overflow { tensor: String, index: usize, value: f32, dtype: Dtype },
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
        tensor.check(checkpoint.half_dtype())?;
    }
    let sizes = stored.values().map(|tensor| (tensor.numbers, tensor.bytes_len())).collect::<Vec<_>>();
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize_to_file(&stored, Some(metadata), &folder.join("model.safetensors"))?;

    let write_json = |name: &str, value: &Value| {
        let file = folder.join(name);
        fs::write(&file, format!("{value:#}\n")).map_err(io_error(&file))
    };
    write_json("config.json", &config_json(checkpoint, &entries))?;
    if checkpoint.extra_files().is_empty() {
        let file = folder.join("tokenizer.json");
        fs::write(&file, tokenizer.to_json()?).map_err(io_error(&file))?;
        write_json("tokenizer_config.json", &tokenizer_config(checkpoint, tokenizer))?;
    }
    for source in checkpoint.extra_files() {
        let target = folder.join(source.file_name().unwrap_or_default());
        fs::copy(source, &target).map_err(io_error(source))?;
    }
    let mut packing = Packing::new(checkpoint, identity, entries, &sizes);
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

    /// That every dense number is finite in the 16-bit type.
    fn check(&self, dtype: Dtype) -> Result<(), OutputError> {
        let Data::Dense { tensor, .. } = &self.data else { return Ok(()) };
        let mut row = vec![0.0; tensor.cols()];
        for i in 0..tensor.rows() {
            tensor.read_row(i, &mut row);
            let fits = |v: &f32| {
                if dtype == Dtype::Bf16 {
                    bf16::from_f32(*v).is_finite()
                } else {
                    f16::from_f32(*v).is_finite()
                }
            };
            if let Some(j) = row.iter().position(|v| !fits(v)) {
                let index = i * row.len() + j;
                return Err(OutputError::Overflow {
                    tensor: tensor.name.clone(),
                    index,
                    value: row[j],
                    dtype,
                });
            }
        }
        Ok(())
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
