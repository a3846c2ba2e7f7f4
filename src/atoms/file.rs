//! Activations and dictionaries on disk.
//!
//! A dictionary is a safetensors file in f64:
//!
//! | tensor | shape | |
//! |---|---|---|
//! | `mean` | p | μ |
//! | `axes` | r x p | V |
//! | `base` | r | b |
//! | `atom.K.decoder` | M x r | B of atom K, from 0 |
//!
//! with one metadata entry `dictionary`, a JSON object: scale, share, noise, most_active, centre, and for each atom shape,
//! spread, activity and smoothing; and `certificate`, how it came about. Codes are a safetensors file of one row an
//! active atom: `row` and `atom` (I64), `at` (x 2) and `amplitude` (F64).

use std::collections::HashMap;
use std::path::Path;

use faer::MatRef;
use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use super::model::{Atom, Centre, Code, Dictionary};
use super::wide::WideDictionary;
use super::{AtomsError, Certificate, Shape, Space};
use crate::device::write_durably;

/// Rows of numbers, n x width.
#[derive(Clone, Debug, PartialEq)]
pub struct Activations {
    pub width: usize,
    pub x: Vec<f64>,
}

fn error(file: &Path, what: impl Into<String>) -> AtomsError {
    AtomsError::File { file: file.into(), what: what.into() }
}

/// Activations of a `.npy` file (f2, f4, f8, little-endian, C order) or of a safetensors file (`tensor`, or its only
/// one; F16, BF16, F32, F64). More than two dimensions: all but the last count rows.
///
/// # Errors
/// The file, and what about it.
pub fn read_activations(file: &Path, tensor: Option<&str>) -> Result<Activations, AtomsError> {
    let bytes = std::fs::read(file).map_err(|e| error(file, format!("cannot be read: {e}")))?;
    if bytes.starts_with(b"\x93NUMPY") {
        if let Some(name) = tensor {
            return Err(error(
                file,
                format!("is .npy and holds one tensor without a name: leave `{name}` out"),
            ));
        }
        return npy(&bytes).map_err(|what| error(file, what));
    }
    let tensors = SafeTensors::deserialize(&bytes)
        .map_err(|e| error(file, format!("is neither .npy nor safetensors: {e}")))?;
    let names = tensors.names();
    let name = match (tensor, names.as_slice()) {
        (_, []) => return Err(error(file, "holds no tensors")),
        (Some(name), _) => name,
        (None, [only]) => only,
        (None, several) => {
            let mut several = several.to_vec();
            several.sort_unstable();
            return Err(error(
                file,
                format!("holds {} tensors; name one with --tensor: {}", several.len(), several.join(", ")),
            ));
        }
    };
    let view = tensors.tensor(name).map_err(|_| {
        error(file, format!("has no tensor `{name}`; there are: {}", tensors.names().join(", ")))
    })?;
    let x = decode(view.dtype(), view.data()).ok_or_else(|| {
        error(file, format!("`{name}` is stored as {:?}; F16, BF16, F32 and F64 are read", view.dtype()))
    })?;
    rows(view.shape(), x).map_err(|what| error(file, format!("`{name}` {what}")))
}

fn rows(shape: &[usize], x: Vec<f64>) -> Result<Activations, String> {
    match shape {
        [.., width] if shape.len() >= 2 && *width > 0 => Ok(Activations { width: *width, x }),
        _ => Err(format!("has the shape {shape:?}; rows of numbers are expected, n x width")),
    }
}

fn decode(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f64>> {
    Some(match dtype {
        Dtype::F64 => bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
        Dtype::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b).into()).collect(),
        Dtype::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f64()).collect(),
        Dtype::BF16 => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f64()).collect(),
        _ => return None,
    })
}

/// NumPy's format, versions 1 to 3: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.
fn npy(bytes: &[u8]) -> Result<Activations, String> {
    let short = || "ends inside its header".to_owned();
    let major = *bytes.get(6).ok_or_else(short)?;
    let (len, start): (usize, usize) = match major {
        1 => (
            usize::from(u16::from_le_bytes(
                bytes.get(8..10).ok_or_else(short)?.try_into().map_err(|_| short())?,
            )),
            10,
        ),
        2 | 3 => (
            u32::from_le_bytes(bytes.get(8..12).ok_or_else(short)?.try_into().map_err(|_| short())?) as usize,
            12,
        ),
        other => return Err(format!("is of .npy version {other}; 1 to 3 are read")),
    };
    let header = bytes.get(start..start.saturating_add(len)).ok_or_else(short)?;
    let header = std::str::from_utf8(header).map_err(|_| "has a header that is not text".to_owned())?;
    let field = |name: &str| {
        let at = header.find(&format!("'{name}'")).ok_or(format!("has no `{name}` in its header"))?;
        let rest = &header[at + name.len() + 2..];
        Ok::<_, String>(rest.trim_start_matches([':', ' ']))
    };
    if !field("fortran_order")?.starts_with("False") {
        return Err("is in Fortran order; save it with numpy.ascontiguousarray".into());
    }
    let descr = field("descr")?.trim_start_matches('\'').split('\'').next().unwrap_or_default().to_owned();
    let dtype = match descr.as_str() {
        "<f8" => Dtype::F64,
        "<f4" => Dtype::F32,
        "<f2" => Dtype::F16,
        other => return Err(format!("holds `{other}`; <f2, <f4 and <f8 are read")),
    };
    let shape = field("shape")?.trim_start_matches('(').split(')').next().unwrap_or_default();
    let shape = shape.split(',').map(str::trim).filter(|part| !part.is_empty());
    let shape: Vec<usize> = shape
        .map(|part| part.parse().map_err(|_| format!("has `{part}` in its shape")))
        .collect::<Result<_, _>>()?;
    let data = &bytes[start + len..];
    let x = decode(dtype, data).ok_or("cannot be decoded")?;
    let expected = shape.iter().try_fold(1usize, |all, part| all.checked_mul(*part)).ok_or("is too large")?;
    if x.len() != expected {
        return Err(format!("has {} numbers where its shape {shape:?} says {expected}", x.len()));
    }
    rows(&shape, x)
}

#[derive(Serialize, Deserialize)]
struct Head {
    scale: f64,
    share: f64,
    noise: f64,
    most_active: usize,
    centre: Centre,
    atoms: Vec<AtomHead>,
}

#[derive(Serialize, Deserialize)]
struct AtomHead {
    shape: Shape,
    spread: f64,
    activity: f64,
    smoothing: f64,
}

/// Writes a dictionary, with its certificate; the file is whole or not there.
///
/// # Errors
/// The disk's.
pub fn write_dictionary(
    file: &Path,
    dictionary: &Dictionary,
    certificate: &Certificate,
) -> Result<(), AtomsError> {
    let head = Head {
        scale: dictionary.space.scale,
        share: dictionary.space.share,
        noise: dictionary.noise,
        most_active: dictionary.most_active,
        centre: dictionary.centre,
        atoms: (dictionary.atoms.iter())
            .map(|atom| AtomHead {
                shape: atom.shape,
                spread: atom.spread,
                activity: atom.activity,
                smoothing: atom.smoothing,
            })
            .collect(),
    };
    let space = &dictionary.space;
    let mut tensors = vec![
        ("mean".to_owned(), vec![space.width], &space.mean),
        ("axes".to_owned(), vec![space.rank, space.width], &space.axes),
        ("base".to_owned(), vec![space.rank], &dictionary.base),
    ];
    for (k, atom) in dictionary.atoms.iter().enumerate() {
        tensors.push((format!("atom.{k}.decoder"), vec![atom.shape.basis(), space.rank], &atom.decoder));
    }
    let json = |value: Result<String, serde_json::Error>| value.map_err(|e| error(file, e.to_string()));
    let metadata = HashMap::from([
        ("dictionary".to_owned(), json(serde_json::to_string(&head))?),
        ("certificate".to_owned(), json(serde_json::to_string(certificate))?),
    ]);
    let bytes: Vec<_> =
        tensors.into_iter().map(|(name, shape, x)| (name, Dtype::F64, shape, to_bytes(x))).collect();
    write(file, &bytes, Some(metadata))
}

/// Writes a wide dictionary in the coordinates of its rows, f32: `decoder` (atoms · rows an atom x width; a circle has the rows of its
/// cosine and of its sine), `bulk` (directions x width), `mean` (width), `activity` (atoms); the metadata name its shape. The
/// file is whole or not there.
///
/// # Errors
/// The disk's.
pub fn write_wide_dictionary(file: &Path, dictionary: &WideDictionary) -> Result<(), AtomsError> {
    let WideDictionary { kind, width, rank, mean, axes, bulk, decoder, activity } = dictionary;
    let axes = MatRef::from_row_major_slice(axes, *rank, *width);
    let outside = |of: &[f32]| {
        let rows = of.len() / rank.max(&1);
        let product = MatRef::from_row_major_slice(of, rows, *rank) * axes;
        let numbers = (0..rows * width).map(|k| product[(k / width, k % width)]).collect::<Vec<f32>>();
        (vec![rows, *width], numbers)
    };
    let flat = |of: &[f32]| (vec![of.len()], of.to_vec());
    let tensors = [
        ("decoder", outside(decoder)),
        ("bulk", outside(bulk)),
        ("mean", flat(mean)),
        ("activity", flat(activity)),
    ];
    let bytes: Vec<Tensor> = tensors
        .into_iter()
        .map(|(name, (shape, x))| {
            (name.to_owned(), Dtype::F32, shape, x.iter().flat_map(|v| v.to_le_bytes()).collect())
        })
        .collect();
    write(file, &bytes, Some(HashMap::from([("shape".to_owned(), kind.name().to_owned())])))
}

type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

fn write(
    file: &Path,
    tensors: &[Tensor],
    metadata: Option<HashMap<String, String>>,
) -> Result<(), AtomsError> {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| Ok((name.clone(), TensorView::new(*dtype, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>();
    let bytes = views.and_then(|views| safetensors::serialize(views, metadata));
    let bytes = bytes.map_err(|e| error(file, e.to_string()))?;
    write_durably(file, |out| out.write_all(&bytes))
        .map_err(|e| error(file, format!("cannot be written: {e}")))
}

fn to_bytes(x: &[f64]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Reads a dictionary.
///
/// # Errors
/// The file, and what about it.
pub fn read_dictionary(file: &Path) -> Result<Dictionary, AtomsError> {
    let bytes = std::fs::read(file).map_err(|e| error(file, format!("cannot be read: {e}")))?;
    parse(&bytes).map_err(|what| error(file, what))
}

fn parse(bytes: &[u8]) -> Result<Dictionary, String> {
    let no = |e: &dyn std::fmt::Display| format!("is no dictionary: {e}");
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| no(&e))?;
    let head = metadata.metadata().as_ref().and_then(|metadata| metadata.get("dictionary"));
    let head = head.ok_or_else(|| no(&"its metadata have no entry `dictionary`"))?;
    let head: Head = serde_json::from_str(head).map_err(|e| no(&e))?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|e| no(&e))?;
    let read = |name: &str, dims: usize| -> Result<(Vec<usize>, Vec<f64>), String> {
        let view = tensors.tensor(name).map_err(|_| format!("has no tensor `{name}`"))?;
        if view.dtype() != Dtype::F64 || view.shape().len() != dims {
            return Err(format!(
                "`{name}` is {:?} {:?}; F64 of {dims} dimensions is expected",
                view.dtype(),
                view.shape()
            ));
        }
        let x = decode(Dtype::F64, view.data()).unwrap_or_default();
        if x.iter().all(|v| v.is_finite()) {
            Ok((view.shape().to_vec(), x))
        } else {
            Err(format!("`{name}` has NaN or infinity in it"))
        }
    };
    let (shape, axes) = read("axes", 2)?;
    let (rank, width) = (shape[0], shape[1]);
    let (mean, base) = (read("mean", 1)?.1, read("base", 1)?.1);
    if rank == 0 || mean.len() != width || base.len() != rank {
        return Err(format!(
            "`axes` is {rank} x {width}, but `mean` has {} numbers and `base` {}",
            mean.len(),
            base.len()
        ));
    }
    let fine = |v: f64| v.is_finite() && v > 0.0;
    if !fine(head.scale) || !fine(head.noise) {
        return Err(format!("its scale ({}) and noise ({}) must be above zero", head.scale, head.noise));
    }
    let mut atoms = Vec::new();
    for (k, AtomHead { shape, spread, activity, smoothing }) in head.atoms.into_iter().enumerate() {
        let sound = match shape {
            Shape::Circle(h) => (1..=3).contains(&h),
            Shape::Sphere(l) => (1..=2).contains(&l),
            _ => true,
        };
        let range = activity > 0.0 && activity < 1.0 && spread >= 0.0 && smoothing >= 0.0;
        if !(sound && range) {
            return Err(format!("atom {k} is no {} that there could be", shape.name()));
        }
        let name = format!("atom.{k}.decoder");
        let (is, decoder) = read(&name, 2)?;
        if is != [shape.basis(), rank] {
            return Err(format!("`{name}` is {is:?}; a {shape} has {} x {rank}", shape.basis()));
        }
        atoms.push(Atom { shape, decoder, spread, activity, smoothing });
    }
    let space = Space { width, rank, mean, axes, scale: head.scale, share: head.share };
    Ok(Dictionary {
        space,
        base,
        atoms,
        noise: head.noise,
        most_active: head.most_active,
        centre: head.centre,
    })
}

/// Writes activations as one tensor `activations`, n x width in f64.
///
/// # Errors
/// The disk's.
pub fn write_activations(file: &Path, x: &[f64], width: usize) -> Result<(), AtomsError> {
    let shape = vec![x.len() / width.max(1), width];
    write(file, &[("activations".to_owned(), Dtype::F64, shape, to_bytes(x))], None)
}

/// Writes codes, one row an active atom.
///
/// # Errors
/// The disk's.
pub fn write_codes(file: &Path, codes: &[Code]) -> Result<(), AtomsError> {
    let all: Vec<_> =
        codes.iter().enumerate().flat_map(|(i, code)| code.iter().map(move |a| (i, a))).collect();
    let count = all.len();
    let whole = |numbers: Vec<i64>| numbers.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let row = whole(all.iter().map(|(i, _)| *i as i64).collect());
    let atom = whole(all.iter().map(|(_, a)| a.atom as i64).collect());
    let at = to_bytes(&all.iter().flat_map(|(_, a)| a.at).collect::<Vec<f64>>());
    let amplitude = to_bytes(&all.iter().map(|(_, a)| a.amplitude).collect::<Vec<f64>>());
    let tensors = [
        ("row".to_owned(), Dtype::I64, vec![count], row),
        ("atom".to_owned(), Dtype::I64, vec![count], atom),
        ("at".to_owned(), Dtype::F64, vec![count, 2], at),
        ("amplitude".to_owned(), Dtype::F64, vec![count], amplitude),
    ];
    write(file, &tensors, Some(HashMap::from([("rows".to_owned(), codes.len().to_string())])))
}
