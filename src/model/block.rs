use super::cache::LayerCache;
use super::capture::Capture;
use super::linear::{Linear, LinearName, Site};
use super::{Config, DecoderError};
use crate::ops::attention::{Heads, attention};
use crate::ops::rms_norm::rms_norm;
use crate::ops::rope::Rotation;
use crate::ops::swiglu::swiglu;

/// One decoder block: `x += o(attention(q, k, v))`, then `x += down(silu(gate) ∘ up)`, each behind its norm
/// (Touvron et al. 2023, section 2.2).
#[derive(Clone, Debug)]
pub struct Block {
    layer: usize,
    heads: Heads,
    rope_theta: f64,
    rms_eps: f64,
    pub(super) attention_norm: Vec<f32>,
    pub(super) mlp_norm: Vec<f32>,
    /// In the order of [`LinearName::ALL`].
    linears: [Linear; 7],
}

/// Which positions the rows of an input are, and what they may look back to.
pub enum Context<'a> {
    /// Independent windows of `len` positions each, all from position 0.
    Windows { len: usize },
    /// The positions after those in the cache, to which they are added.
    Cache(&'a mut LayerCache),
}

/// The parts of a block, as they come from a checkpoint.
pub(super) struct BlockParts {
    pub attention_norm: Vec<f32>,
    pub mlp_norm: Vec<f32>,
    pub linears: [Linear; 7],
}

impl Block {
    pub(super) fn new(config: &Config, layer: usize, parts: BlockParts) -> Self {
        let BlockParts { attention_norm, mlp_norm, linears } = parts;
        let heads = heads(config);
        let (rope_theta, rms_eps) = (config.rope_theta, config.rms_eps);
        Self { layer, heads, rope_theta, rms_eps, attention_norm, mlp_norm, linears }
    }

    /// Which block of the model it is, from 0.
    pub fn layer(&self) -> usize {
        self.layer
    }

    pub fn linear(&self, name: LinearName) -> &Linear {
        &self.linears[name as usize]
    }

    /// Puts another layer of the same shape in the place of `name`.
    pub fn set_linear(&mut self, name: LinearName, linear: Linear) -> Result<(), DecoderError> {
        let old = self.linear(name);
        let (needed, found) =
            ([old.out_features(), old.in_features()], [linear.out_features(), linear.in_features()]);
        if needed != found {
            let tensor = name.prefix(self.layer);
            return Err(DecoderError::Shape { tensor, found: found.to_vec(), needed: needed.to_vec() });
        }
        self.linears[name as usize] = linear;
        Ok(())
    }

    /// Runs the block over `x` in place: T rows of the residual stream, T x hidden.
    ///
    /// Linear layers see all rows at once, attention goes window by window.
    ///
    /// # Panics
    /// When `x` is not whole rows, or not whole windows.
    pub fn forward(&self, x: &mut [f32], context: Context<'_>, hooks: &mut dyn Capture) {
        let hidden = self.attention_norm.len();
        assert!(x.len().is_multiple_of(hidden), "whole rows of {hidden}");
        let mut normed = vec![0.0; x.len()];
        rms_norm(x, &self.attention_norm, self.rms_eps, &mut normed);
        hooks.linear_input(self.layer, Site::Attention, &normed, hidden);
        let mixed = self.attend(&normed, context);
        hooks.linear_input(self.layer, Site::Output, &mixed, self.heads.width());
        self.linear(LinearName::O).forward(&mixed, &mut normed);
        add(x, &normed);

        rms_norm(x, &self.mlp_norm, self.rms_eps, &mut normed);
        hooks.linear_input(self.layer, Site::Mlp, &normed, hidden);
        let mut gate = self.linear(LinearName::Gate).apply(&normed);
        let up = self.linear(LinearName::Up).apply(&normed);
        swiglu(&mut gate, &up);
        hooks.linear_input(self.layer, Site::Down, &gate, self.linear(LinearName::Down).in_features());
        self.linear(LinearName::Down).forward(&gate, &mut normed);
        add(x, &normed);
        hooks.block_output(self.layer, x, hidden);
    }

    /// The heads' outputs for normalised inputs.
    fn attend(&self, normed: &[f32], context: Context<'_>) -> Vec<f32> {
        let (width, kv_width) = (self.heads.width(), self.heads.kv_width());
        let [mut q, mut k, v] =
            [LinearName::Q, LinearName::K, LinearName::V].map(|name| self.linear(name).apply(normed));
        let mut out = vec![0.0; q.len()];
        match context {
            Context::Windows { len } => {
                assert!(q.len().is_multiple_of(len * width), "whole windows of {len}");
                let rotation = Rotation::new(self.heads.head_dim, self.rope_theta, 0..len);
                let queries = q.chunks_exact_mut(len * width).zip(out.chunks_exact_mut(len * width));
                let keys = k.chunks_exact_mut(len * kv_width).zip(v.chunks_exact(len * kv_width));
                for ((q, out), (k, v)) in queries.zip(keys) {
                    rotation.apply(q, width);
                    rotation.apply(k, kv_width);
                    attention(self.heads, q, k, v, out);
                }
            }
            Context::Cache(cache) => {
                let start = cache.keys.len() / kv_width;
                let rotation =
                    Rotation::new(self.heads.head_dim, self.rope_theta, start..start + q.len() / width);
                rotation.apply(&mut q, width);
                rotation.apply(&mut k, kv_width);
                cache.keys.extend(k);
                cache.values.extend(v);
                attention(self.heads, &q, &cache.keys, &cache.values, &mut out);
            }
        }
        out
    }
}

/// The heads of every block of a model.
pub(super) fn heads(config: &Config) -> Heads {
    Heads { heads: config.heads, kv_heads: config.kv_heads, head_dim: config.head_dim }
}

fn add(x: &mut [f32], delta: &[f32]) {
    x.iter_mut().zip(delta).for_each(|(x, delta)| *x += delta);
}
