use std::ops::Range;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};

use super::super::AtomsError;
use crate::device::arena::{Arena, Layout, View};

/// Rows that a fit reads batch by batch, in any order and as often as it likes.
pub trait Source: Sync {
    /// All rows, those that are held out too.
    fn rows(&self) -> usize;

    /// p
    fn width(&self) -> usize;

    /// Takes the room that it needs in an arena for batches of so many rows: nothing, by default.
    fn place(&self, _layout: &mut Layout, _batch: usize) {}

    /// Fills the room that [`Self::place`] took at this mark.
    fn prepare(&self, _arena: &mut Arena, _at: usize, _batch: usize) {}

    /// Puts rows `first..first + into.rows` into the arena; `at` is the mark of [`Self::prepare`].
    ///
    /// # Errors
    /// Rows that cannot be read.
    fn load(&self, arena: &mut Arena, at: (usize, usize), first: usize, into: View)
    -> Result<(), AtomsError>;
}

/// Rows on the heap.
#[derive(Clone, Debug)]
pub struct Heap {
    width: usize,
    x: Vec<f32>,
}

impl Heap {
    /// # Errors
    /// Numbers that are no whole rows.
    pub fn new(x: Vec<f32>, width: usize) -> Result<Self, AtomsError> {
        if width == 0 || !x.len().is_multiple_of(width) {
            return Err(AtomsError::Length { got: x.len(), width });
        }
        Ok(Self { width, x })
    }
}

impl Source for Heap {
    fn rows(&self) -> usize {
        self.x.len() / self.width
    }

    fn width(&self) -> usize {
        self.width
    }

    fn load(&self, arena: &mut Arena, _: (usize, usize), first: usize, into: View) -> Result<(), AtomsError> {
        arena.write(into.at, &self.x[first * self.width..(first + into.rows) * self.width]);
        Ok(())
    }
}

/// Rows of one tensor in several safetensors files, one behind another, mapped and never read whole. F16, BF16 and F32.
pub struct Sharded {
    width: usize,
    shards: Vec<Shard>,
}

struct Shard {
    file: PathBuf,
    map: Mmap,
    /// Bytes of the tensor within the map
    data: Range<usize>,
    dtype: Dtype,
    /// Numbers of the first and behind the last row
    rows: Range<usize>,
}

impl Sharded {
    /// Opens the shards in the order given; `tensor` may be left out where each holds one alone.
    ///
    /// # Errors
    /// The file, and what about it.
    pub fn open(files: &[PathBuf], tensor: Option<&str>) -> Result<Self, AtomsError> {
        let mut source = Self { width: 0, shards: Vec::new() };
        for file in files {
            let from = source.rows();
            let (shard, width) =
                shard(file, tensor, from).map_err(|what| AtomsError::File { file: file.clone(), what })?;
            if source.width != 0 && width != source.width {
                return Err(AtomsError::Width { got: width, expected: source.width });
            }
            source.width = width;
            source.shards.push(shard);
        }
        if source.rows() == 0 { Err(AtomsError::Empty) } else { Ok(source) }
    }
}

fn shard(file: &Path, tensor: Option<&str>, from: usize) -> Result<(Shard, usize), String> {
    let opened = std::fs::File::open(file).map_err(|e| format!("cannot be opened: {e}"))?;
    // SAFETY: a file that others change while it is mapped is outside of what a program can defend itself against.
    let map = unsafe { Mmap::map(&opened) }.map_err(|e| format!("cannot be mapped: {e}"))?;
    let tensors = SafeTensors::deserialize(&map).map_err(|e| format!("is no safetensors file: {e}"))?;
    let mut names = tensors.names();
    names.sort_unstable();
    let name = match (tensor, names.as_slice()) {
        (Some(name), _) => name.to_owned(),
        (None, [only]) => (*only).to_owned(),
        (None, _) => return Err(format!("holds {} tensors; name one: {}", names.len(), names.join(", "))),
    };
    let view = tensors.tensor(&name).map_err(|_| format!("has no tensor `{name}`: {}", names.join(", ")))?;
    let dtype = view.dtype();
    if !matches!(dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32) {
        return Err(format!("stores `{name}` as {dtype:?}; F16, BF16 and F32 are streamed"));
    }
    let width = match view.shape() {
        [.., width] if view.shape().len() >= 2 && *width > 0 => *width,
        other => return Err(format!("`{name}` has the shape {other:?}; rows of numbers are expected")),
    };
    let rows = view.shape().iter().product::<usize>() / width;
    let at = view.data().as_ptr() as usize - map.as_ptr() as usize;
    let data = at..at + view.data().len();
    Ok((Shard { file: file.into(), map, data, dtype, rows: from..from + rows }, width))
}

impl Source for Sharded {
    fn rows(&self) -> usize {
        self.shards.last().map_or(0, |shard| shard.rows.end)
    }

    fn width(&self) -> usize {
        self.width
    }

    fn load(&self, arena: &mut Arena, _: (usize, usize), first: usize, into: View) -> Result<(), AtomsError> {
        for shard in &self.shards {
            let rows = first.max(shard.rows.start)..(first + into.rows).min(shard.rows.end);
            if rows.start >= rows.end {
                continue;
            }
            let bytes = shard.data.len() / shard.rows.len();
            let from = shard.data.start + (rows.start - shard.rows.start) * bytes;
            let data = shard.map.get(from..from + rows.len() * bytes).ok_or_else(|| AtomsError::File {
                file: shard.file.clone(),
                what: "ends inside its tensor".into(),
            })?;
            let values: Vec<f32> = match shard.dtype {
                Dtype::F16 => data.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
                Dtype::BF16 => data.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
                _ => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            };
            arena.write(into.at + (rows.start - first) * into.stride, &values);
        }
        Ok(())
    }
}
