use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::super::error::{CheckpointError, Fault};
use super::{Gguf, Value};
use crate::device::Bytes;

const COUNT: &str = "split.count";
const NUMBER: &str = "split.no";
const TENSORS: &str = "split.tensors.count";

/// A GGUF file with all parts that it is cut into (`-00001-of-00003.gguf`), as one; `read` maps a name beside `path` to
/// bytes. Metadata is the first part's. Also the files by the names that they have in a fingerprint.
pub(crate) fn open(
    path: &Path,
    read: &dyn Fn(&str) -> io::Result<Bytes>,
) -> Result<(Gguf, BTreeMap<String, Bytes>), CheckpointError> {
    let name = file_name(path);
    let (bytes, mut whole) = part(path.into(), &name, read)?;
    let count = number(&whole, COUNT).unwrap_or(1);
    if count <= 1 {
        return Ok((whole, BTreeMap::from([("model.gguf".to_owned(), bytes)])));
    }
    let wrong = |problem: String| CheckpointError::Parts { file: path.into(), problem };
    if let Some(at @ 1..) = number(&whole, NUMBER) {
        let at = at.saturating_add(1);
        return Err(wrong(format!("it is part {at} of {count}: give the first, `...{}`", suffix(1, count))));
    }
    let base = name.strip_suffix(&suffix(1, count)).ok_or_else(|| {
        let suffix = suffix(1, count);
        wrong(format!("it is the first of {count} parts, which are found by name: it must end in `{suffix}`"))
    })?;
    let mut files = BTreeMap::from([(format!("model{}", suffix(1, count)), bytes)]);
    for at in 2..=count {
        let suffix = suffix(at, count);
        let name = format!("{base}{suffix}");
        let file = path.with_file_name(&name);
        let (bytes, held) = part(file.clone(), &name, read)?;
        if (number(&held, NUMBER), number(&held, COUNT)) != (Some(at - 1), Some(count)) {
            let problem = format!("its `{NUMBER}` and `{COUNT}` do not say that it is part {at} of {count}");
            return Err(CheckpointError::Parts { file, problem });
        }
        for (tensor, stored) in held.tensors {
            if whole.tensors.insert(tensor.clone(), stored).is_some() {
                return Err(Fault::tensor(&tensor, "is in an earlier part too").in_file(&file));
            }
        }
        files.insert(format!("model{suffix}"), bytes);
    }
    match number(&whole, TENSORS) {
        Some(said) if said != whole.tensors.len() as u64 => {
            let held = whole.tensors.len();
            Err(wrong(format!("it says {said} tensors, but its {count} parts hold {held}")))
        }
        _ => Ok((whole, files)),
    }
}

/// The name that [`open`] asks for where it means `path` itself.
pub(crate) fn file_name(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

fn part(
    file: PathBuf,
    name: &str,
    read: &dyn Fn(&str) -> io::Result<Bytes>,
) -> Result<(Bytes, Gguf), CheckpointError> {
    let bytes = match read(name) {
        Ok(bytes) => bytes,
        Err(source) => return Err(CheckpointError::Unreadable { file, source }),
    };
    let gguf = Gguf::parse(&bytes).map_err(|fault| fault.in_file(&file))?;
    Ok((bytes, gguf))
}

fn number(gguf: &Gguf, key: &str) -> Option<u64> {
    gguf.metadata.get(key).and_then(Value::unsigned)
}

fn suffix(at: u64, count: u64) -> String {
    format!("-{at:05}-of-{count:05}.gguf")
}
