use std::collections::BTreeMap;
use std::ops::Range;

use super::error::{Fault, shortened};
use crate::device::Bytes;
use crate::ops::Dtype;

/// A tensor as its container declares it: the container's own name, shape slowest first.
#[derive(Debug)]
pub(crate) struct Stored {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Bytes,
}

/// What a container's header says about one tensor, before any of it is believed.
pub(crate) struct Declared {
    pub name: String,
    pub dtype: Dtype,
    /// Slowest first.
    pub shape: Vec<u64>,
    /// In bytes from the start of the data part.
    pub start: u64,
    /// Where the container says that the tensor ends, if it says so.
    pub end: Option<u64>,
}

/// Whether bytes between tensors, and after the last, are padding or an error.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Gaps {
    Padding,
    Refused,
}

/// The declared tensors by name, once every one is known to lie inside `data`, apart from all others, and to have
/// the length that its shape and type give.
pub(crate) fn located(
    mut declared: Vec<Declared>,
    data: &Bytes,
    gaps: Gaps,
) -> Result<BTreeMap<String, Stored>, Fault> {
    declared.sort_by(|a, b| (a.start, &a.name).cmp(&(b.start, &b.name)));
    let mut tensors = BTreeMap::new();
    let (mut at, mut previous) = (0, String::new());
    for tensor in declared {
        let (shape, range) = extent(&tensor)?;
        let bytes = data.slice(range.clone()).ok_or_else(|| {
            let problem = format!("bytes {range:?} lie past the end of the file's {} data bytes: it is damaged or incomplete, fetch it again", data.len());
            Fault::tensor(&tensor.name, problem)
        })?;
        if range.start < at {
            return Err(Fault::tensor(&tensor.name, format!("overlaps tensor `{}`", shortened(&previous))));
        }
        if gaps == Gaps::Refused && range.start != at {
            return Err(Fault::tensor(
                &tensor.name,
                format!("bytes {at}..{} before it belong to no tensor", range.start),
            ));
        }
        at = range.end;
        previous.clone_from(&tensor.name);
        if tensors.insert(tensor.name, Stored { dtype: tensor.dtype, shape, bytes }).is_some() {
            return Err(Fault::tensor(&previous, "is in the file twice"));
        }
    }
    if gaps == Gaps::Refused && at != data.len() {
        return Err(Fault::File(format!(
            "{} bytes after the last tensor belong to no tensor",
            data.len() - at
        )));
    }
    Ok(tensors)
}

/// Shape and byte range of a tensor, in sizes of this machine.
fn extent(tensor: &Declared) -> Result<(Vec<usize>, Range<usize>), Fault> {
    let impossible = |problem: String| Fault::tensor(&tensor.name, problem);
    let overflow =
        || impossible(format!("its size overflows: shape {:?}, offset {}", tensor.shape, tensor.start));
    let shape: Option<Vec<usize>> = tensor.shape.iter().map(|size| usize::try_from(*size).ok()).collect();
    let shape = shape.ok_or_else(overflow)?;
    let cols = shape.last().copied().unwrap_or(1);
    let block = tensor.dtype.block_len();
    if !cols.is_multiple_of(block) {
        return Err(impossible(format!(
            "rows of {cols} numbers are not whole {} blocks of {block}",
            tensor.dtype
        )));
    }
    let rows =
        shape[..shape.len().saturating_sub(1)].iter().try_fold(1usize, |rows, size| rows.checked_mul(*size));
    let len = rows.zip(tensor.dtype.row_bytes(cols)).and_then(|(rows, row)| rows.checked_mul(row));
    let start = usize::try_from(tensor.start).ok();
    let (len, start) = len.zip(start).ok_or_else(overflow)?;
    let end = start.checked_add(len).ok_or_else(overflow)?;
    if let Some(said) = tensor.end
        && said != end as u64
    {
        let problem = format!(
            "offsets {}..{said} do not fit the {len} bytes of {} numbers of shape {shape:?}",
            tensor.start, tensor.dtype
        );
        return Err(impossible(problem));
    }
    Ok((shape, start..end))
}
