use half::{bf16, f16};

use super::block::{Block, BlockParts, Context, Norms};
use super::cache::Cache;
use super::capture::{Capture, first_non_finite};
use super::linear::{Linear, LinearName};
use super::{Checkpoint, CheckpointError, Config, Tensor};
use crate::blr::{Payload, PayloadError};
use crate::ops::Dtype;
use crate::ops::rms_norm::rms_norm;

/// A decoder of any [`Family`](super::Family): embedding, blocks, final norm, output head (Touvron et al. 2023).
///
/// Weights stay where the checkpoint has them and are decoded as they are read. Blocks run one by one, and their linear
/// layers can be replaced, so a half-packed model runs as it will be stored.
#[derive(Clone, Debug)]
pub struct Decoder {
    config: Config,
    embedding: Tensor,
    /// What embeddings are multiplied by on their way into the stream.
    embedding_scale: f32,
    blocks: Vec<Block>,
    pub(super) norm: Vec<f32>,
    pub(super) head: Linear,
}

/// Why a decoder cannot be built or run.
#[derive(Debug, thiserror::Error)]
pub enum DecoderError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("tensor `{tensor}`: {source}")]
    Payload { tensor: String, source: PayloadError },
    #[error(
        "tensor `{tensor}` has shape {found:?}, but the configuration needs {needed:?}: they belong to different models"
    )]
    Shape { tensor: String, found: Vec<usize>, needed: Vec<usize> },
    #[error("tensor `{tensor}` holds {dtype}, but {needed}")]
    Dtype { tensor: String, dtype: Dtype, needed: &'static str },
    #[error(
        "tensor `{tensor}` holds a {value} at number {index}: the checkpoint is damaged, fetch or pack it again"
    )]
    Weight { tensor: String, index: usize, value: f32 },
    #[error(
        "token {id} at position {position} is outside the vocabulary of {vocab}: the tokenizer belongs to another model"
    )]
    Token { id: u32, position: usize, vocab: usize },
    #[error("{needed} positions are asked for, but the model knows {most}: use a shorter text or window")]
    TooLong { needed: usize, most: usize },
    #[error("{tokens} tokens are not whole windows of {len}: cut the text into windows first")]
    Windows { tokens: usize, len: usize },
    #[error(
        "the output of block {layer} is not finite at row {row}, column {column}: \
         look for NaN, infinite or overflowing weights in this block"
    )]
    Activation { layer: usize, row: usize, column: usize },
    #[error(
        "the logit of token {token} is {value}: look for NaN, infinite or overflowing weights in the final norm and the head"
    )]
    Logit { token: usize, value: f32 },
}

/// Which positions the tokens of a run are.
pub enum Run<'a> {
    /// Independent windows of `len` tokens each, all from position 0.
    Windows { len: usize },
    /// The positions after those in the cache.
    Cache(&'a mut Cache),
}

impl Decoder {
    /// Takes the tensors of a checkpoint by their Hugging Face names and checks their shapes. A linear layer stored as
    /// `<name>.blr` runs packed, one stored as `<name>.weight` dense.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, DecoderError> {
        let config = checkpoint.config().clone();
        let reader = Reader { checkpoint, config: &config };
        let embedding = reader.matrix("model.embed_tokens.weight", [config.vocab, config.hidden])?;
        let head = match config.tied {
            true => embedding.clone(),
            false => reader.matrix("lm_head.weight", [config.vocab, config.hidden])?,
        };
        let norm = reader.norm("model.norm.weight", config.hidden)?;
        let blocks = (0..config.layers).map(|layer| reader.block(layer)).collect::<Result<_, _>>()?;
        let embedding_scale = embedding_scale(&config, embedding.dtype);
        Ok(Self { embedding, embedding_scale, blocks, norm, head: Linear::Dense(head), config })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn block(&self, layer: usize) -> &Block {
        &self.blocks[layer]
    }

    /// The factors of the final norm.
    pub fn norm(&self) -> &[f32] {
        &self.norm
    }

    /// From the normed stream to logits.
    pub fn head(&self) -> &Linear {
        &self.head
    }

    /// A linear layer of block `layer`, counted from 0.
    pub fn linear(&self, layer: usize, name: LinearName) -> &Linear {
        self.blocks[layer].linear(name)
    }

    /// Puts another linear layer of the same shape in the place of one.
    pub fn set_linear(&mut self, layer: usize, name: LinearName, linear: Linear) -> Result<(), DecoderError> {
        self.blocks[layer].set_linear(name, linear)
    }

    /// The residual stream before the first block: one row of `hidden` numbers a token.
    pub fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, DecoderError> {
        let (vocab, hidden) = (self.config.vocab, self.config.hidden);
        let mut x = vec![0.0; tokens.len() * hidden];
        for (position, (id, x)) in tokens.iter().zip(x.chunks_exact_mut(hidden)).enumerate() {
            let row = *id as usize;
            if row >= vocab {
                return Err(DecoderError::Token { id: *id, position, vocab });
            }
            self.embedding.read_row(row, x);
            if self.embedding_scale != 1.0 {
                x.iter_mut().for_each(|x| *x *= self.embedding_scale);
            }
        }
        Ok(x)
    }

    /// The residual stream after the last block: one row of `hidden` numbers a token.
    pub fn hidden(
        &self,
        tokens: &[u32],
        run: Run<'_>,
        hooks: &mut dyn Capture,
    ) -> Result<Vec<f32>, DecoderError> {
        self.check_positions(tokens.len(), &run)?;
        let mut x = self.embed(tokens)?;
        // From inside the pool, handing out the many small products of a single token is cheap.
        rayon::scope(|_| self.run_blocks(&mut x, run, hooks))?;
        Ok(x)
    }

    fn run_blocks(
        &self,
        x: &mut [f32],
        mut run: Run<'_>,
        hooks: &mut dyn Capture,
    ) -> Result<(), DecoderError> {
        for (layer, block) in self.blocks.iter().enumerate() {
            let context = match &mut run {
                Run::Windows { len } => Context::Windows { len: *len },
                Run::Cache(cache) => Context::Cache(cache.layer(layer)),
            };
            block.forward(x, context, hooks);
            if let Some((row, column)) = first_non_finite(x, self.config.hidden) {
                return Err(DecoderError::Activation { layer, row, column });
            }
        }
        Ok(())
    }

    fn check_positions(&self, tokens: usize, run: &Run<'_>) -> Result<(), DecoderError> {
        let needed = match run {
            Run::Windows { len } if *len == 0 || !tokens.is_multiple_of(*len) => {
                return Err(DecoderError::Windows { tokens, len: *len });
            }
            Run::Windows { len } => *len,
            Run::Cache(cache) => cache.len() + tokens,
        };
        let most = self.config.max_positions;
        if needed > most { Err(DecoderError::TooLong { needed, most }) } else { Ok(()) }
    }

    /// Logits for rows of the residual stream: final norm, then the head; one row of `vocab` numbers each.
    ///
    /// A row of a large vocabulary takes megabytes per few positions: go through long texts in parts of a few hundred rows.
    pub fn logits(&self, hidden: &[f32]) -> Vec<f32> {
        let mut normed = vec![0.0; hidden.len()];
        rms_norm(hidden, &self.norm, self.config.rms_eps, &mut normed);
        self.head.apply(&normed)
    }

    /// Logits of all positions of a run.
    pub fn forward(
        &self,
        tokens: &[u32],
        run: Run<'_>,
        hooks: &mut dyn Capture,
    ) -> Result<Vec<f32>, DecoderError> {
        Ok(self.logits(&self.hidden(tokens, run, hooks)?))
    }

    /// Logits of the position after the last token; empty without tokens.
    pub fn next_logits(&self, tokens: &[u32], cache: &mut Cache) -> Result<Vec<f32>, DecoderError> {
        let hidden = self.hidden(tokens, Run::Cache(cache), &mut super::NoCapture)?;
        let logits = self.logits(&hidden[hidden.len().saturating_sub(self.config.hidden)..]);
        match first_non_finite(&logits, self.config.vocab) {
            Some((_, token)) => Err(DecoderError::Logit { token, value: logits[token] }),
            None => Ok(logits),
        }
    }
}

/// Takes checked tensors out of a checkpoint.
struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a Config,
}

impl Reader<'_> {
    fn matrix(&self, name: &str, needed: [usize; 2]) -> Result<Tensor, DecoderError> {
        let tensor = self.checkpoint.tensor(name)?;
        if tensor.shape != needed {
            return Err(DecoderError::Shape {
                tensor: name.into(),
                found: tensor.shape,
                needed: needed.to_vec(),
            });
        }
        if tensor.dtype == Dtype::U8 {
            let needed = "a dense weight is stored as numbers";
            return Err(DecoderError::Dtype { tensor: name.into(), dtype: tensor.dtype, needed });
        }
        Ok(tensor)
    }

    /// The finite numbers of a vector.
    fn vector(&self, name: &str, len: usize, kind: &'static str) -> Result<Vec<f32>, DecoderError> {
        let tensor = self.checkpoint.tensor(name)?;
        if tensor.shape != [len] {
            let (tensor, found) = (name.into(), tensor.shape);
            return Err(DecoderError::Shape { tensor, found, needed: vec![len] });
        }
        if tensor.dtype == Dtype::U8 {
            return Err(DecoderError::Dtype { tensor: name.into(), dtype: tensor.dtype, needed: kind });
        }
        let values = tensor.to_f32();
        match values.iter().enumerate().find(|(_, value)| !value.is_finite()) {
            Some((index, value)) => Err(DecoderError::Weight { tensor: name.into(), index, value: *value }),
            None => Ok(values),
        }
    }

    /// The factors of a norm.
    fn norm(&self, name: &str, len: usize) -> Result<Vec<f32>, DecoderError> {
        let mut weights = self.vector(name, len, "a norm is stored as numbers")?;
        let offset = self.config.family.traits().norm_offset;
        weights.iter_mut().for_each(|weight| *weight += offset);
        Ok(weights)
    }

    fn norms(&self, layer: usize) -> Result<Norms, DecoderError> {
        let (traits, hidden, head_dim) =
            (self.config.family.traits(), self.config.hidden, self.config.head_dim);
        let norm = |name: &str, len| self.norm(&format!("model.layers.{layer}.{name}.weight"), len);
        let only = |wanted: bool, name: &str, len| wanted.then(|| norm(name, len)).transpose();
        let (mlp, after_attention) = match traits.post_norms {
            false => (norm("post_attention_layernorm", hidden)?, None),
            true => {
                let after = norm("post_attention_layernorm", hidden)?;
                (norm("pre_feedforward_layernorm", hidden)?, Some(after))
            }
        };
        let mut q = only(traits.qk_norms, "self_attn.q_norm", head_dim)?;
        if let (Some(q), Some(scalar)) = (&mut q, self.config.score_scalar) {
            // Attention divides by sqrt(head_dim); turning q does not change its length.
            let factor = (head_dim as f64 / scalar).sqrt() as f32;
            q.iter_mut().for_each(|weight| *weight *= factor);
        }
        Ok(Norms {
            attention: norm("input_layernorm", hidden)?,
            mlp,
            after_attention,
            after_mlp: only(traits.post_norms, "post_feedforward_layernorm", hidden)?,
            q,
            k: only(traits.qk_norms, "self_attn.k_norm", head_dim)?,
        })
    }

    fn block(&self, layer: usize) -> Result<Block, DecoderError> {
        let [q, k, v, o, gate, up, down] = LinearName::ALL.map(|name| self.linear(layer, name));
        let linears = [q?, k?, v?, o?, gate?, up?, down?];
        let [q, k, v, o, gate, up, down] = LinearName::ALL.map(|name| self.bias(layer, name));
        let biases = [q?, k?, v?, o?, gate?, up?, down?];
        Ok(Block::new(self.config, layer, BlockParts { norms: self.norms(layer)?, linears, biases }))
    }

    fn bias(&self, layer: usize, name: LinearName) -> Result<Option<Vec<f32>>, DecoderError> {
        let [out_features, _] = name.shape(self.config);
        let bias = format!("{}.bias", name.prefix(layer));
        let wanted = self.config.has_bias(name);
        wanted.then(|| self.vector(&bias, out_features, "a bias is stored as numbers")).transpose()
    }

    fn linear(&self, layer: usize, name: LinearName) -> Result<Linear, DecoderError> {
        let [out_features, in_features] = name.shape(self.config);
        let packed = format!("{}.blr", name.prefix(layer));
        if !self.checkpoint.has(&packed) {
            let weight = format!("{}.weight", name.prefix(layer));
            return self.matrix(&weight, [out_features, in_features]).map(Linear::Dense);
        }
        let tensor = self.checkpoint.tensor(&packed)?;
        if tensor.dtype != Dtype::U8 {
            let needed = "a packed layer is stored as U8";
            return Err(DecoderError::Dtype { tensor: packed, dtype: tensor.dtype, needed });
        }
        let payload = match Payload::parse(tensor.bytes) {
            Ok(payload) => payload,
            Err(source) => return Err(DecoderError::Payload { tensor: packed, source }),
        };
        let needed = [out_features, in_features.next_multiple_of(8)];
        let found = [payload.rows(), payload.cols()];
        if found != needed {
            return Err(DecoderError::Shape {
                tensor: packed,
                found: found.to_vec(),
                needed: needed.to_vec(),
            });
        }
        Ok(Linear::Packed { payload, in_features })
    }
}

/// sqrt(hidden) for families that scale embeddings, 1 for others; the reference multiplies in the type of the weights.
fn embedding_scale(config: &Config, stored: Dtype) -> f32 {
    let scale = (config.hidden as f64).sqrt() as f32;
    match (config.family.traits().scaled_embedding, stored) {
        (false, _) => 1.0,
        (true, Dtype::Bf16) => bf16::from_f32(scale).to_f32(),
        (true, Dtype::F16) => f16::from_f32(scale).to_f32(),
        (true, _) => scale,
    }
}
