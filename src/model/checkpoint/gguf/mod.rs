//! The GGUF container, versions 2 and 3 (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).

mod config;
mod parts;
mod rope;
mod value;

use std::collections::BTreeMap;

pub(crate) use config::config;
pub(crate) use parts::{file_name, open};
pub use value::{Array, Value};

use self::value::Cursor;
use super::error::{Fault, shortened};
use super::stored::{Declared, Gaps, Stored, located};
use crate::device::Bytes;
use crate::ops::Dtype;

const SUPPORTED: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and Q2_K to Q6_K";

/// A parsed header. Names and shapes of tensors are GGUF's, the order of the shapes is slowest first.
#[derive(Debug)]
pub(crate) struct Gguf {
    pub metadata: BTreeMap<String, Value>,
    pub tensors: BTreeMap<String, Stored>,
}

/// Fewest bytes of a metadata entry: an empty key, a type, a one-byte value.
const LEAST_ENTRY: usize = 8 + 4 + 1;
/// Fewest bytes of a tensor's entry: an empty name, no dimension, a type, an offset.
const LEAST_TENSOR: usize = 8 + 4 + 4 + 8;
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_DIMENSIONS: u32 = 4;

impl Gguf {
    /// Reads the header and locates every tensor; copies no tensor data.
    pub fn parse(file: &Bytes) -> Result<Self, Fault> {
        let mut cursor = Cursor::new(file);
        check_magic(&mut cursor)?;
        let tensor_count = cursor.count("tensors", LEAST_TENSOR)?;
        let entry_count = cursor.count("metadata entries", LEAST_ENTRY)?;
        let mut metadata = BTreeMap::new();
        for _ in 0..entry_count {
            let key = cursor.str()?;
            let kind = cursor.u32()?;
            let value = cursor
                .value(kind, 0)
                .map_err(|problem| format!("metadata `{}`: {problem}", shortened(key)))?;
            if metadata.insert(key.to_owned(), value).is_some() {
                return Err(Fault::File(format!("metadata `{}` is there twice", shortened(key))));
            }
        }
        let alignment = alignment(&metadata)?;
        let mut declared = Vec::new();
        for _ in 0..tensor_count {
            declared.push(declare(&mut cursor, alignment)?);
        }
        let start = (cursor.at as u64).next_multiple_of(alignment);
        let data = usize::try_from(start).ok().and_then(|start| file.slice(start..file.len()));
        let data = match data {
            Some(data) => data,
            None if declared.is_empty() => file.slice(0..0).expect("an empty part of the file"),
            None => {
                return Err(Fault::File(format!(
                    "it ends before its tensor data, which starts at byte {start}"
                )));
            }
        };
        Ok(Self { metadata, tensors: located(declared, &data, Gaps::Padding)? })
    }
}

fn check_magic(cursor: &mut Cursor) -> Result<(), Fault> {
    let (magic, version) = (cursor.u32()?, cursor.u32()?);
    if magic.to_le_bytes() != *b"GGUF" {
        return Err(Fault::File("it does not start with the letters GGUF".into()));
    }
    match version {
        2 | 3 => Ok(()),
        _ if matches!(version.swap_bytes(), 1..=3) => {
            Err(Fault::File("its numbers are big-endian; only little-endian GGUF is read".into()))
        }
        other => Err(Fault::File(format!("it is GGUF version {other}; versions 2 and 3 are read"))),
    }
}

fn alignment(metadata: &BTreeMap<String, Value>) -> Result<u64, Fault> {
    const KEY: &str = "general.alignment";
    const MOST: u64 = 1 << 20;
    let Some(value) = metadata.get(KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    match value.unsigned() {
        Some(bytes) if bytes.is_power_of_two() && (8..=MOST).contains(&bytes) => Ok(bytes),
        Some(bytes) => Err(Fault::File(format!("`{KEY}` is {bytes}, not a power of two from 8 to {MOST}"))),
        None => Err(Fault::File(format!("`{KEY}` is not a whole number"))),
    }
}

fn declare(cursor: &mut Cursor, alignment: u64) -> Result<Declared, Fault> {
    let name = cursor.str()?.to_owned();
    let dimensions = cursor.u32()?;
    if dimensions > MAX_DIMENSIONS {
        return Err(Fault::tensor(&name, format!("has {dimensions} dimensions, more than {MAX_DIMENSIONS}")));
    }
    let mut shape = (0..dimensions).map(|_| cursor.u64()).collect::<Result<Vec<_>, _>>()?;
    shape.reverse();
    let kind = cursor.u32()?;
    let dtype = dtype(kind).ok_or_else(|| Fault::dtype(&name, &type_name(kind), SUPPORTED))?;
    let start = cursor.u64()?;
    if !start.is_multiple_of(alignment) {
        return Err(Fault::tensor(
            &name,
            format!("its offset {start} is not a multiple of the alignment {alignment}"),
        ));
    }
    Ok(Declared { name, dtype, shape, start, end: None })
}

fn dtype(kind: u32) -> Option<Dtype> {
    Some(match kind {
        0 => Dtype::F32,
        1 => Dtype::F16,
        2 => Dtype::Q4_0,
        3 => Dtype::Q4_1,
        6 => Dtype::Q5_0,
        7 => Dtype::Q5_1,
        8 => Dtype::Q8_0,
        10 => Dtype::Q2K,
        11 => Dtype::Q3K,
        12 => Dtype::Q4K,
        13 => Dtype::Q5K,
        14 => Dtype::Q6K,
        30 => Dtype::Bf16,
        _ => return None,
    })
}

/// The name of a ggml type, so that an error can say what a file holds.
fn type_name(kind: u32) -> String {
    let known = match kind {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("type {kind}"),
    };
    known.into()
}
