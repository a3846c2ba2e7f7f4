//! Systems on disk: one safetensors file, f64 slabs, so that other programs can have them solved.
//!
//! | tensor | shape | |
//! |---|---|---|
//! | `row_hessian` | n x d x d; ragged: flat | D |
//! | `row_offsets` | n + 1, I64 | only for ragged rows: first unknown of each block |
//! | `row_cross`, or `row_basis` and `row_jacobian` | n x d x p (ragged: Σ d_i x p), or n x M and n x d x r (ragged: Σ d_i x r) | B, or its factors |
//! | `border_hessian`, or `border_diagonal`, or `border_gram` | p x p, or p, or M x M | C, or its structure |
//! | `row_rhs`, `border_rhs` | n x d (ragged: Σ d_i), p | b |
//! | out: `delta_row`, `delta_border` | n x d, p | δ; the report is the metadata entry `report` |

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::{Border, Cross, Rows, System, SystemError, Vector};

/// Why a file holds no system.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{file}: cannot be read: {source}")]
    Unreadable { file: PathBuf, source: std::io::Error },
    #[error("{file}: cannot be written: {source}")]
    Unwritable { file: PathBuf, source: std::io::Error },
    #[error("{file}: not a safetensors file: {source}")]
    Container { file: PathBuf, source: safetensors::SafeTensorError },
    #[error("{file}: tensor `{slab}` is missing; there are: {found}")]
    Missing { file: PathBuf, slab: &'static str, found: String },
    #[error("{file}: holds both `{first}` and `{second}`, which stand in each other's place; remove one")]
    Both { file: PathBuf, first: &'static str, second: &'static str },
    #[error("{file}: tensor `{slab}` is stored as {got:?}; it must be {expected:?}")]
    Dtype { file: PathBuf, slab: &'static str, got: Dtype, expected: Dtype },
    #[error("{file}: tensor `{slab}` has the shape {got:?}; it must be {expected}")]
    Shape { file: PathBuf, slab: &'static str, got: Vec<usize>, expected: String },
    #[error("{file}: `row_offsets` holds {value} at index {index}; offsets are not below zero")]
    Offset { file: PathBuf, index: usize, value: i64 },
    #[error("{file}: {source}")]
    System { file: PathBuf, source: SystemError },
}

/// The system and the right-hand side of a file.
///
/// # Errors
/// The file, the slab and what about it.
pub fn read(file: &Path) -> Result<(System, Vector), FileError> {
    let bytes = std::fs::read(file).map_err(|source| FileError::Unreadable { file: file.into(), source })?;
    let tensors = SafeTensors::deserialize(&bytes)
        .map_err(|source| FileError::Container { file: file.into(), source })?;
    Reader { file, tensors }.read()
}

/// Writes δ, with the report as JSON in the metadata. The file is whole or not there.
///
/// # Errors
/// The disk's.
pub fn write(file: &Path, system: &System, step: &Vector, report: String) -> Result<(), FileError> {
    let row_shape = match system.uniform_dim() {
        Some(d) => vec![system.blocks(), d],
        None => vec![system.unknowns()],
    };
    let (row, border) = (to_bytes(&step.row), to_bytes(&step.border));
    let view = |shape, bytes| {
        TensorView::new(Dtype::F64, shape, bytes)
            .map_err(|source| FileError::Container { file: file.into(), source })
    };
    let tensors =
        [("delta_row", view(row_shape, &row)?), ("delta_border", view(vec![step.border.len()], &border)?)];
    let metadata = std::collections::HashMap::from([("report".to_owned(), report)]);
    let bytes = safetensors::serialize(tensors, Some(metadata))
        .map_err(|source| FileError::Container { file: file.into(), source })?;
    crate::device::write_durably(file, |out| out.write_all(&bytes))
        .map_err(|source| FileError::Unwritable { file: file.into(), source })
}

fn to_bytes(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

struct Reader<'a> {
    file: &'a Path,
    tensors: SafeTensors<'a>,
}

impl Reader<'_> {
    fn read(&self) -> Result<(System, Vector), FileError> {
        let border = ["border_hessian", "border_diagonal", "border_gram"];
        for (first, second) in [
            ("row_cross", "row_basis"),
            ("row_cross", "row_jacobian"),
            (border[0], border[1]),
            (border[0], border[2]),
            (border[1], border[2]),
        ] {
            if self.has(first) && self.has(second) {
                return Err(FileError::Both { file: self.file.into(), first, second });
            }
        }
        let rows = self.rows()?;
        let (n, m) = match &rows {
            Rows::Uniform { count, dim } => (*count, count.saturating_mul(*dim)),
            Rows::Ragged(offsets) => (offsets.len().saturating_sub(1), offsets.last().map_or(0, |m| *m)),
        };
        let rhs = Vector { row: self.numbers("row_rhs")?, border: self.numbers("border_rhs")? };
        let p = rhs.border.len();
        let row_slab = |slab, width: Option<usize>| self.row_slab(slab, n, m, width);
        self.shape("border_rhs", &[p])?;
        row_slab("row_rhs", None)?;
        let cross = if self.has("row_basis") {
            let basis = self.last_dim("row_basis", "n x M")?;
            self.shape("row_basis", &[n, basis])?;
            row_slab("row_jacobian", Some(p / basis.max(1)))?;
            let (values, jacobian) = (self.numbers("row_basis")?, self.numbers("row_jacobian")?);
            Cross::Factored { basis, values, jacobian }
        } else {
            row_slab("row_cross", Some(p))?;
            Cross::Dense(self.numbers("row_cross")?)
        };
        let border = if self.has("border_diagonal") {
            self.shape("border_diagonal", &[p])?;
            Border::Diagonal(self.numbers("border_diagonal")?)
        } else if self.has("border_gram") {
            let basis = self.last_dim("border_gram", "M x M")?;
            self.shape("border_gram", &[basis, basis])?;
            Border::Kronecker { basis, gram: self.numbers("border_gram")? }
        } else {
            self.shape("border_hessian", &[p, p])?;
            Border::Dense(self.numbers("border_hessian")?)
        };
        let system = System::new(rows, p, self.numbers("row_hessian")?, cross, border)
            .map_err(|source| FileError::System { file: self.file.into(), source })?;
        Ok((system, rhs))
    }

    fn rows(&self) -> Result<Rows, FileError> {
        if !self.has("row_offsets") {
            let slab = "row_hessian";
            return match self.view(slab, Dtype::F64)?.shape() {
                &[count, dim, again] if dim == again => Ok(Rows::Uniform { count, dim }),
                got => {
                    let expected = "n x d x d, or flat beside `row_offsets`".to_owned();
                    Err(FileError::Shape { file: self.file.into(), slab, got: got.to_vec(), expected })
                }
            };
        }
        let view = self.view("row_offsets", Dtype::I64)?;
        let mut offsets = Vec::new();
        for (index, bytes) in view.data().as_chunks::<8>().0.iter().enumerate() {
            let value = i64::from_le_bytes(*bytes);
            let offset = usize::try_from(value);
            let file = || self.file.to_owned();
            offsets.push(offset.map_err(|_| FileError::Offset { file: file(), index, value })?);
        }
        Ok(Rows::Ragged(offsets))
    }

    fn has(&self, slab: &str) -> bool {
        self.tensors.tensor(slab).is_ok()
    }

    fn view(&self, slab: &'static str, expected: Dtype) -> Result<TensorView<'_>, FileError> {
        let file = || self.file.to_owned();
        let Ok(view) = self.tensors.tensor(slab) else {
            let mut names: Vec<_> = self.tensors.names().into_iter().take(20).collect();
            names.sort_unstable();
            return Err(FileError::Missing { file: file(), slab, found: names.join(", ") });
        };
        let got = view.dtype();
        if got == expected { Ok(view) } else { Err(FileError::Dtype { file: file(), slab, got, expected }) }
    }

    fn numbers(&self, slab: &'static str) -> Result<Vec<f64>, FileError> {
        let view = self.view(slab, Dtype::F64)?;
        Ok(view.data().as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
    }

    fn last_dim(&self, slab: &'static str, expected: &'static str) -> Result<usize, FileError> {
        match self.view(slab, Dtype::F64)?.shape() {
            &[_, last] => Ok(last),
            got => {
                let expected = expected.to_owned();
                Err(FileError::Shape { file: self.file.into(), slab, got: got.to_vec(), expected })
            }
        }
    }

    fn shape(&self, slab: &'static str, expected: &[usize]) -> Result<(), FileError> {
        let view = self.view(slab, Dtype::F64)?;
        self.fits(slab, view.shape() == expected, format!("{expected:?}"))
    }

    /// A slab with some numbers for each of m row unknowns: m or n x d of them, then `width`.
    fn row_slab(
        &self,
        slab: &'static str,
        n: usize,
        m: usize,
        width: Option<usize>,
    ) -> Result<(), FileError> {
        let with = |mut shape: Vec<usize>| {
            shape.extend(width);
            shape
        };
        let flat = with(vec![m]);
        let blocks = (n > 0 && m.is_multiple_of(n)).then(|| with(vec![n, m / n]));
        let view = self.view(slab, Dtype::F64)?;
        let fits = view.shape() == flat || blocks.as_deref() == Some(view.shape());
        let expected = blocks.map_or_else(String::new, |blocks| format!("{blocks:?} or "));
        self.fits(slab, fits, format!("{expected}{flat:?}"))
    }

    fn fits(&self, slab: &'static str, fits: bool, expected: String) -> Result<(), FileError> {
        if fits {
            return Ok(());
        }
        let got = self.view(slab, Dtype::F64)?.shape().to_vec();
        Err(FileError::Shape { file: self.file.into(), slab, got, expected })
    }
}
