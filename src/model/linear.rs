use faer::Accum;

use super::{Config, Tensor};
use crate::blr::{Payload, apply};
use crate::ops::dense_matvec::dense_matvec;
use crate::ops::dtype::dequantise;
use crate::ops::matmul::matmul_streamed;

/// Up to this many activations are multiplied one by one; more go through GEMM.
const FEW: usize = 4;

/// A linear map, the one place where the decoder meets a stored weight: `y = x·Wᵀ`. A layer's bias stays in its block,
/// whatever takes the place of the weight.
#[derive(Clone, Debug)]
pub enum Linear {
    /// A stored matrix of any number format, `out x in`.
    Dense(Tensor),
    /// ±1 factors. The payload may be up to 7 columns wider than the layer; those inputs are 0.
    Packed { payload: Payload, in_features: usize },
}

impl Linear {
    pub fn in_features(&self) -> usize {
        match self {
            Self::Dense(tensor) => tensor.cols(),
            Self::Packed { in_features, .. } => *in_features,
        }
    }

    pub fn out_features(&self) -> usize {
        match self {
            Self::Dense(tensor) => tensor.rows(),
            Self::Packed { payload, .. } => payload.rows(),
        }
    }

    /// `Y = X·Wᵀ`. The weight is decoded as it is read: no more than a tile of it is ever in memory as f32.
    ///
    /// | symbol | argument | shape |
    /// |---|---|---|
    /// | X | `x` | T x `in_features` |
    /// | Y | `y` | T x `out_features` |
    ///
    /// # Panics
    /// When the slices are not the same number of whole rows.
    pub fn forward(&self, x: &[f32], y: &mut [f32]) {
        let (width, rows) = (self.in_features(), self.out_features());
        let count = x.len() / width;
        assert_eq!((x.len(), y.len()), (count * width, count * rows), "{count} rows of {width} to {rows}");
        if count > FEW {
            match self {
                Self::Dense(tensor) => {
                    matmul_streamed(
                        x,
                        width,
                        #[inline(always)]
                        |row, out| dequantise(tensor.dtype, tensor.row_bytes(row), out),
                        y,
                        rows,
                        Accum::Replace,
                    );
                }
                Self::Packed { payload, .. } => apply::matmul(payload, x, width, y),
            }
            return;
        }
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(rows)) {
            match self {
                Self::Dense(tensor) => dense_matvec(tensor.dtype, |row| tensor.row_bytes(row), x, y),
                Self::Packed { payload, .. } => apply::matvec(payload, x, y),
            }
        }
    }

    /// The product as a new buffer.
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut y = vec![0.0; x.len() / self.in_features() * self.out_features()];
        self.forward(x, &mut y);
        y
    }
}

/// The linear layers of one block, in the order in which they are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinearName {
    Q,
    K,
    V,
    O,
    Gate,
    Up,
    Down,
}

impl LinearName {
    pub const ALL: [Self; 7] = [Self::Q, Self::K, Self::V, Self::O, Self::Gate, Self::Up, Self::Down];

    /// Hugging Face's name inside a block.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Q => "self_attn.q_proj",
            Self::K => "self_attn.k_proj",
            Self::V => "self_attn.v_proj",
            Self::O => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }

    /// Hugging Face's full name, without the part (`.weight`, `.blr`).
    pub fn prefix(self, layer: usize) -> String {
        format!("model.layers.{layer}.{}", self.suffix())
    }

    /// `[out, in]` in a model of this configuration.
    pub const fn shape(self, config: &Config) -> [usize; 2] {
        let (queries, keys) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        match self {
            Self::Q => [queries, config.hidden],
            Self::K | Self::V => [keys, config.hidden],
            Self::O => [config.hidden, queries],
            Self::Gate | Self::Up => [config.intermediate, config.hidden],
            Self::Down => [config.hidden, config.intermediate],
        }
    }

    /// The input that this layer reads.
    pub const fn site(self) -> Site {
        match self {
            Self::Q | Self::K | Self::V => Site::Attention,
            Self::O => Site::Output,
            Self::Gate | Self::Up => Site::Mlp,
            Self::Down => Site::Down,
        }
    }
}

/// An input inside a block; the linear layers of one site share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// The normalised residual stream that q, k and v read.
    Attention,
    /// The heads' outputs side by side, read by o.
    Output,
    /// The normalised residual stream that gate and up read.
    Mlp,
    /// The gated activations, read by down.
    Down,
}

impl Site {
    pub const ALL: [Self; 4] = [Self::Attention, Self::Output, Self::Mlp, Self::Down];

    /// The layers that read this input.
    pub const fn linears(self) -> &'static [LinearName] {
        match self {
            Self::Attention => &[LinearName::Q, LinearName::K, LinearName::V],
            Self::Output => &[LinearName::O],
            Self::Mlp => &[LinearName::Gate, LinearName::Up],
            Self::Down => &[LinearName::Down],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_and_layers_agree() {
        let listed: Vec<LinearName> = Site::ALL.iter().flat_map(|site| site.linears()).copied().collect();
        assert_eq!(listed, LinearName::ALL);
        for site in Site::ALL {
            assert!(site.linears().iter().all(|name| name.site() == site));
        }
    }
}
