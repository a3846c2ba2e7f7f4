use std::path::PathBuf;

use crate::arrow::{NewtonError, SystemError};
use crate::device::DeviceError;

/// Why there is no fit. One that did not converge is an outcome, not an error.
#[derive(Debug, thiserror::Error)]
pub enum AtomsError {
    #[error("there are no activations; give at least two rows")]
    Empty,
    #[error("{got} row is too few to explain; a fit needs rows that differ")]
    Rows { got: usize },
    #[error("{got} numbers are not whole rows of {width}")]
    Length { got: usize, width: usize },
    #[error("row {row}, column {column} holds {value}; every number must be finite")]
    NonFinite { row: usize, column: usize, value: f64 },
    #[error("all {rows} rows that are fitted are equal: there is nothing to explain")]
    Constant { rows: usize },
    #[error(
        "explained variance of {rows} rows is no number: they do not vary by more than rounding, or their squares are beyond \
         what f64 holds; scale them, or hold out others"
    )]
    NoVariance { rows: usize },
    #[error("rows have {got} numbers where the dictionary was fitted to {expected}")]
    Width { got: usize, expected: usize },
    #[error("{got} labels for {rows} rows; give one a row, or none")]
    Labels { got: usize, rows: usize },
    #[error("the principal components cannot be computed: the eigenvalues did not converge")]
    Eigen,
    #[error("the decoders' normal equations cannot be solved; the rows are too alike")]
    Decoders,
    #[error("the assembled system is not one: {0}")]
    System(#[from] SystemError),
    #[error("a wide dictionary cannot be fitted: {what}")]
    Wide { what: String },
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Newton(#[from] NewtonError),
    #[error("{file}: {what}")]
    File { file: PathBuf, what: String },
}
