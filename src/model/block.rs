use super::cache::LayerCache;
use super::capture::Capture;
use super::linear::{Linear, LinearName, Site};
use super::{Config, DecoderError, Gate};
use crate::ops::attention::{Heads, Mask, attention};
use crate::ops::geglu::geglu;
use crate::ops::rms_norm::rms_norm;
use crate::ops::rope::{Frequencies, Rotation};
use crate::ops::swiglu::swiglu;

/// One decoder block: `x += o(attention(q, k, v))`, then `x += down(act(gate) ∘ up)`, each behind its norm
/// (Touvron et al. 2023, section 2.2), and with what the family adds: [`Traits`](super::Traits).
#[derive(Clone, Debug)]
pub struct Block {
    layer: usize,
    heads: Heads,
    pub(super) mask: Mask,
    pub(super) frequencies: Frequencies,
    rms_eps: f64,
    gate: Gate,
    pub(super) norms: Norms,
    /// In the order of [`LinearName::ALL`], as `biases`.
    linears: [Linear; 7],
    pub(super) biases: [Option<Vec<f32>>; 7],
}

/// Which positions the rows of an input are, and what they may look back to.
pub enum Context<'a> {
    /// Independent windows of `len` positions each, all from position 0.
    Windows { len: usize },
    /// The positions after those in the cache, to which they are added.
    Cache(&'a mut LayerCache),
}

/// The norms of a block, as factors: with the family's offset, and for q with the factor that scores lack.
#[derive(Clone, Debug)]
pub struct Norms {
    pub attention: Vec<f32>,
    pub mlp: Vec<f32>,
    pub after_attention: Option<Vec<f32>>,
    pub after_mlp: Option<Vec<f32>>,
    /// Of each head of q and k.
    pub q: Option<Vec<f32>>,
    pub k: Option<Vec<f32>>,
}

/// The parts of a block, as they come from a checkpoint.
pub(super) struct BlockParts {
    pub norms: Norms,
    pub linears: [Linear; 7],
    pub biases: [Option<Vec<f32>>; 7],
}

impl Block {
    pub(super) fn new(config: &Config, layer: usize, parts: BlockParts) -> Self {
        let BlockParts { norms, linears, biases } = parts;
        Self {
            layer,
            heads: heads(config),
            mask: config.mask(layer),
            frequencies: config.frequencies(layer),
            rms_eps: config.rms_eps,
            gate: config.family.traits().gate,
            norms,
            linears,
            biases,
        }
    }

    /// Which block of the model it is, from 0.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// One of its linear layers.
    pub fn linear(&self, name: LinearName) -> &Linear {
        &self.linears[name as usize]
    }

    /// The weights of its norms.
    pub fn norms(&self) -> &Norms {
        &self.norms
    }

    /// What a linear layer adds to its products, where it has a bias.
    pub fn bias(&self, name: LinearName) -> Option<&[f32]> {
        self.biases[name as usize].as_deref()
    }

    /// Puts another linear map of the same shape in the place of `name`; the layer keeps its bias.
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
        self.run(x, context, None, hooks);
    }

    /// As [`forward`](Self::forward), but no further than to the input of the linear layers of `site`. What is left in
    /// `x` is of no use.
    pub fn forward_to(&self, site: Site, x: &mut [f32], context: Context<'_>, hooks: &mut dyn Capture) {
        self.run(x, context, Some(site), hooks);
    }

    fn run(&self, x: &mut [f32], context: Context<'_>, last: Option<Site>, hooks: &mut dyn Capture) {
        let hidden = self.norms.attention.len();
        assert!(x.len().is_multiple_of(hidden), "whole rows of {hidden}");
        let mut normed = vec![0.0; x.len()];
        rms_norm(x, &self.norms.attention, self.rms_eps, &mut normed);
        hooks.linear_input(self.layer, Site::Attention, &normed, hidden);
        if last == Some(Site::Attention) {
            return;
        }
        let mixed = self.attend(&normed, context);
        hooks.linear_input(self.layer, Site::Output, &mixed, self.heads.width());
        if last == Some(Site::Output) {
            return;
        }
        let delta = self.product(LinearName::O, &mixed);
        add(x, &self.after(delta, &self.norms.after_attention));

        rms_norm(x, &self.norms.mlp, self.rms_eps, &mut normed);
        hooks.linear_input(self.layer, Site::Mlp, &normed, hidden);
        if last == Some(Site::Mlp) {
            return;
        }
        let mut gate = self.product(LinearName::Gate, &normed);
        let up = self.product(LinearName::Up, &normed);
        match self.gate {
            Gate::Silu => swiglu(&mut gate, &up),
            Gate::GeluTanh => geglu(&mut gate, &up),
        }
        hooks.linear_input(self.layer, Site::Down, &gate, self.linear(LinearName::Down).in_features());
        if last == Some(Site::Down) {
            return;
        }
        let delta = self.product(LinearName::Down, &gate);
        add(x, &self.after(delta, &self.norms.after_mlp));
        hooks.block_output(self.layer, x, hidden);
    }

    /// A linear layer: `X·Wᵀ`, and its bias.
    fn product(&self, name: LinearName, x: &[f32]) -> Vec<f32> {
        let mut y = self.linear(name).apply(x);
        if let Some(bias) = self.bias(name) {
            y.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
        }
        y
    }

    /// What a branch adds to the residual stream: through its norm, where there is one.
    fn after(&self, delta: Vec<f32>, norm: &Option<Vec<f32>>) -> Vec<f32> {
        match norm {
            Some(weight) => self.normed(&delta, weight),
            None => delta,
        }
    }

    fn normed(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut y = vec![0.0; x.len()];
        rms_norm(x, weight, self.rms_eps, &mut y);
        y
    }

    /// The heads' outputs for normalised inputs.
    fn attend(&self, normed: &[f32], context: Context<'_>) -> Vec<f32> {
        let (width, kv_width) = (self.heads.width(), self.heads.kv_width());
        // Rows of q and k are whole heads, so the norm of a head is a norm of narrower rows.
        let mut q = self.after(self.product(LinearName::Q, normed), &self.norms.q);
        let mut k = self.after(self.product(LinearName::K, normed), &self.norms.k);
        let v = self.product(LinearName::V, normed);
        let mut out = vec![0.0; q.len()];
        match context {
            Context::Windows { len } => {
                assert!(q.len().is_multiple_of(len * width), "whole windows of {len}");
                let rotation = Rotation::new(self.heads.head_dim, self.frequencies, 0..len);
                let queries = q.chunks_exact_mut(len * width).zip(out.chunks_exact_mut(len * width));
                let keys = k.chunks_exact_mut(len * kv_width).zip(v.chunks_exact(len * kv_width));
                for ((q, out), (k, v)) in queries.zip(keys) {
                    rotation.apply(q, width);
                    rotation.apply(k, kv_width);
                    attention(self.heads, self.mask, q, k, v, out);
                }
            }
            Context::Cache(cache) => {
                let start = cache.keys.len() / kv_width;
                let positions = start..start + q.len() / width;
                let rotation = Rotation::new(self.heads.head_dim, self.frequencies, positions);
                rotation.apply(&mut q, width);
                rotation.apply(&mut k, kv_width);
                cache.keys.extend(k);
                cache.values.extend(v);
                attention(self.heads, self.mask, &q, &cache.keys, &cache.values, &mut out);
            }
        }
        out
    }
}

/// The heads of every block of a model.
pub fn heads(config: &Config) -> Heads {
    Heads { heads: config.heads, kv_heads: config.kv_heads, head_dim: config.head_dim }
}

fn add(x: &mut [f32], delta: &[f32]) {
    x.iter_mut().zip(delta).for_each(|(x, delta)| *x += delta);
}
