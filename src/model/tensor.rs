use crate::device::Bytes;
use crate::ops::dtype::{Dtype, dequantise};

/// A stored tensor as the rest of the program sees it: Hugging Face name, Hugging Face row order, any [`Dtype`].
///
/// The bytes stay where they are (a mapped file); rows are decoded when they are used.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dtype: Dtype,
    /// Slowest index first: `[out, in]` for a linear layer, `[len]` for a vector.
    pub shape: Vec<usize>,
    pub bytes: Bytes,
    pub row_order: RowOrder,
}

/// Where row i of a matrix lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    Plain,
    /// GGUF's order of q and k for interleaved rotary embeddings: inside each head of `head_dim` rows,
    /// row `2i + h` of the file is row `i + h·head_dim/2` of the Hugging Face order (h = 0, 1).
    Interleaved {
        head_dim: usize,
    },
}

impl RowOrder {
    /// Position in the file of row `row`.
    #[inline]
    pub fn stored(self, row: usize) -> usize {
        match self {
            Self::Plain => row,
            Self::Interleaved { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                let half = head_dim / 2;
                head * head_dim + 2 * (within % half) + within / half
            }
        }
    }
}

impl Tensor {
    /// Rows of a matrix; 1 for a vector.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len() - 1].iter().product()
    }

    /// Length of a row.
    pub fn cols(&self) -> usize {
        self.shape[self.shape.len() - 1]
    }

    /// The stored bytes of row `row`.
    #[inline]
    pub fn row_bytes(&self, row: usize) -> &[u8] {
        let len = self.bytes.len() / self.rows();
        let at = self.row_order.stored(row) * len;
        &self.bytes.as_slice()[at..at + len]
    }

    /// Decodes row `row` into `out` (`cols` numbers).
    #[inline]
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        dequantise(self.dtype, self.row_bytes(row), out);
    }

    /// All numbers, row-major.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows() * self.cols()];
        for (row, out) in out.chunks_exact_mut(self.cols()).enumerate() {
            self.read_row(row, out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_come_back_in_hugging_face_order() {
        // Two heads of four rows; the file holds, per head, rows 0 2 1 3 of the Hugging Face order.
        let order = RowOrder::Interleaved { head_dim: 4 };
        let stored: Vec<usize> = (0..8).map(|row| order.stored(row)).collect();
        assert_eq!(stored, [0, 2, 1, 3, 4, 6, 5, 7]);
    }
}
