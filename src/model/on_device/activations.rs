use super::weights::Weights;
use crate::device::arena::{Arena, Layout, View};
use crate::model::block::heads;
use crate::model::{Config, Gate, LinearName, Site};
use crate::ops::gated::{Activation, Gated, gated_batch};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::rms_norm::{RmsNorm, rms_norm_batch};
use crate::ops::scale::{Scale, scale};

/// What flows through a block, T rows of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activations {
    /// The residual stream.
    pub x: View,
    attention: View,
    pub q: View,
    pub k: View,
    pub v: View,
    pub mixed: View,
    /// Keys before their norm, where they have one; queries before theirs are where `mixed` will be.
    raw_k: Option<View>,
    head_dim: usize,
    /// What a branch gives, before its norm, where it has one.
    branch: Option<View>,
    activation: Activation,
    mlp: View,
    gate: View,
    up: View,
    /// Rows that go through a linear layer in one product.
    rows_a_product: usize,
}

impl Activations {
    pub fn place(layout: &mut Layout, config: &Config, rows: usize, rows_a_product: usize) -> Self {
        let heads = heads(config);
        let traits = config.family.traits();
        let mut matrix = |cols| layout.matrix(rows, cols);
        Self {
            x: matrix(config.hidden),
            attention: matrix(config.hidden),
            q: matrix(heads.width()),
            k: matrix(heads.kv_width()),
            v: matrix(heads.kv_width()),
            mixed: matrix(heads.width()),
            raw_k: traits.qk_norms.then(|| matrix(heads.kv_width())),
            head_dim: heads.head_dim,
            branch: traits.post_norms.then(|| matrix(config.hidden)),
            activation: match traits.gate {
                Gate::Silu => Activation::Silu,
                Gate::GeluTanh => Activation::GeluTanh,
            },
            mlp: matrix(config.hidden),
            gate: matrix(config.intermediate),
            up: matrix(config.intermediate),
            rows_a_product,
        }
    }

    /// The first `rows` rows of all.
    pub fn first(&self, rows: usize) -> Self {
        let cut = |view: View| view.part((0, 0), (rows, view.cols));
        Self {
            x: cut(self.x),
            attention: cut(self.attention),
            q: cut(self.q),
            k: cut(self.k),
            v: cut(self.v),
            mixed: cut(self.mixed),
            raw_k: self.raw_k.map(cut),
            branch: self.branch.map(cut),
            mlp: cut(self.mlp),
            gate: cut(self.gate),
            up: cut(self.up),
            ..*self
        }
    }

    /// The input of a site, once it is computed.
    pub fn site(&self, site: Site) -> View {
        match site {
            Site::Attention => self.attention,
            Site::Output => self.mixed,
            Site::Mlp => self.mlp,
            Site::Down => self.gate,
        }
    }

    /// From the residual stream to what q, k and v read.
    pub fn normalise(&self, arena: &mut Arena, weights: &Weights, epsilon: f64) {
        let norm = RmsNorm { x: self.x, weight: weights.attention_norm, y: self.attention };
        rms_norm_batch(arena, epsilon, &[norm]);
    }

    /// From there to q, k and v, not yet turned.
    pub fn project(&self, arena: &mut Arena, weights: &Weights, epsilon: f64) {
        let (q, k) = match self.raw_k {
            Some(raw_k) => (self.mixed, raw_k),
            None => (self.q, self.k),
        };
        self.products(
            arena,
            weights,
            &[(LinearName::Q, q), (LinearName::K, k), (LinearName::V, self.v)],
            0.0,
        );
        if let Some([q_norm, k_norm]) = weights.head_norms {
            let heads = |x: View| View::new(x.at, x.len() / self.head_dim, self.head_dim);
            let norms = [(q, q_norm, self.q), (k, k_norm, self.k)];
            let norms = norms.map(|(x, weight, y)| RmsNorm { x: heads(x), weight, y: heads(y) });
            rms_norm_batch(arena, epsilon, &norms);
        }
    }

    /// From the heads' outputs over the residual stream to what gate and up read.
    pub fn mix(&self, arena: &mut Arena, weights: &Weights, epsilon: f64) {
        self.add_branch(arena, weights, LinearName::O, epsilon);
        rms_norm_batch(arena, epsilon, &[RmsNorm { x: self.x, weight: weights.mlp_norm, y: self.mlp }]);
    }

    /// From there to the gated activations.
    pub fn gate(&self, arena: &mut Arena, weights: &Weights) {
        self.products(arena, weights, &[(LinearName::Gate, self.gate), (LinearName::Up, self.up)], 0.0);
        gated_batch(arena, self.activation, &[Gated { gate: self.gate, up: self.up }]);
    }

    /// From the gated activations to the residual stream; what gate and up read is lost.
    pub fn down(&self, arena: &mut Arena, weights: &Weights, epsilon: f64) {
        self.add_branch(arena, weights, LinearName::Down, epsilon);
    }

    /// Adds what the last layer of a branch gives to the residual stream, through its norm where there is one.
    fn add_branch(&self, arena: &mut Arena, weights: &Weights, name: LinearName, epsilon: f64) {
        let Some((branch, [after_attention, after_mlp])) = self.branch.zip(weights.branch_norms) else {
            return self.products(arena, weights, &[(name, self.x)], 1.0);
        };
        let weight = if name == LinearName::O { after_attention } else { after_mlp };
        self.products(arena, weights, &[(name, branch)], 0.0);
        // The input of the gated unit is not yet there, or behind it.
        rms_norm_batch(arena, epsilon, &[RmsNorm { x: branch, weight, y: self.mlp }]);
        scale(arena, &[Scale::new(self.mlp, self.x).add()]);
    }

    /// `Y ← X·Wᵀ + b + β·Y` for layers that do not depend on each other.
    fn products(&self, arena: &mut Arena, weights: &Weights, outputs: &[(LinearName, View)], beta: f32) {
        let items: Vec<Gemm> = (outputs.iter())
            .flat_map(|(name, y)| {
                products(self.site(name.site()), weights.linear(*name), *y, self.rows_a_product)
            })
            .map(|item| item.beta(beta))
            .collect();
        gemm(arena, &items);
        // A view whose rows are all the same one.
        let repeated = |at: usize, y: View| View { at, stride: 0, ..y };
        let biases: Vec<Scale> = (outputs.iter())
            .filter_map(|(name, y)| Some(Scale::new(repeated(weights.bias(*name)?, *y), *y).add()))
            .collect();
        if !biases.is_empty() {
            scale(arena, &biases);
        }
    }
}

/// `Y ← X·Wᵀ` as products of `rows` rows.
pub(super) fn products(x: View, weight: View, y: View, rows: usize) -> impl Iterator<Item = Gemm> {
    let part = move |of: View, at: usize| of.part((at, 0), (rows.min(of.rows - at), of.cols));
    (0..x.rows).step_by(rows).map(move |at| Gemm::new(part(x, at), weight, part(y, at)).b_transposed())
}
