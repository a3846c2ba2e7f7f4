use super::flow::Flow;
use super::linear::{Form, TunedLinear};
use super::optimiser::Rates;
use super::packed::{compose, differentiate};
use super::{TuneError, unsupported};
use crate::device::arena::{Arena, Layout, Precision, View};
use crate::model::block::heads;
use crate::model::{Block, Config, LinearName, Site};
use crate::ops::adam::Adam;
use crate::ops::attention::{Heads, Mask};
use crate::ops::attention_backward::{AttentionGradient, KeptAttention, attention_backward, attention_kept};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::rms_norm::{RmsNorm, rms_norm_batch};
use crate::ops::rms_norm_backward::{Added, RmsNormGradient, rms_norm_backward};
use crate::ops::rope::{Frequencies, Positions, Rope, Rotation, rope_batch};
use crate::ops::scale::{Scale, scale};
use crate::ops::swiglu_backward::{KeptSwiglu, swiglu_backward, swiglu_kept};

/// One block of a model in an arena, forward and backward over whole windows; see
/// [`Block::forward`](crate::model::Block::forward) for what is computed.
#[derive(Clone, Debug)]
pub struct TunedBlock {
    heads: Heads,
    mask: Mask,
    frequencies: Frequencies,
    rms_eps: f64,
    window: usize,
    rates: Rates,
    attention_norm: usize,
    mlp_norm: usize,
    /// Norms of each head of q and of k.
    head_norms: Option<[usize; 2]>,
    linears: [TunedLinear; 7],
    /// Rotations of the positions of a window, and the way back.
    turns: View,
    returns: View,
    flow: Flow,
}

/// Whether a gradient is the first of a step, or is added to those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    Begin,
    Continue,
}

/// Whether the gradient goes on to what entered the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputGradient {
    Wanted,
    Unwanted,
}

impl TunedBlock {
    /// Room for a block of these forms, and for at most `windows` windows of `window` positions at once.
    ///
    /// # Errors
    /// What tuning lacks for the model's family.
    pub fn place(
        layout: &mut Layout,
        (config, layer): (&Config, usize),
        forms: &[Form; 7],
        rates: &Rates,
        (window, windows): (usize, usize),
    ) -> Result<Self, TuneError> {
        unsupported(config)?;
        let heads = heads(config);
        let [attention_norm, mlp_norm] = [(); 2].map(|()| layout.vector(config.hidden));
        let norms = config.family.traits().qk_norms;
        let head_norms = norms.then(|| [(); 2].map(|()| layout.vector(config.head_dim)));
        let linears = LinearName::ALL.map(|name| {
            let what = (forms[name as usize], config.has_bias(name));
            TunedLinear::place(layout, name, name.shape(config), what, rates)
        });
        let [turns, returns] = [(); 2].map(|()| layout.matrix(window, config.head_dim));
        let flow = Flow::place(layout, config, heads, window * windows);
        let (mask, frequencies) = (config.mask(layer), config.frequencies(layer));
        let (rms_eps, rates) = (config.rms_eps, *rates);
        Ok(Self {
            heads,
            mask,
            frequencies,
            rms_eps,
            window,
            rates,
            attention_norm,
            mlp_norm,
            head_norms,
            linears,
            turns,
            returns,
            flow,
        })
    }

    /// Writes a block of the forms that it was placed for, and returns what is to be trained, at its first rates.
    pub fn load(&self, arena: &mut Arena, block: &Block) -> Vec<Adam> {
        let turns = Rotation::new(self.heads.head_dim, self.frequencies, 0..self.window);
        arena.write(self.turns.at, turns.numbers());
        let back = turns.numbers().as_chunks::<2>().0.iter().flat_map(|[cos, sin]| [*cos, -sin]);
        arena.write(self.returns.at, &back.collect::<Vec<f32>>());
        let norms = block.norms();
        arena.write(self.attention_norm, &norms.attention);
        arena.write(self.mlp_norm, &norms.mlp);
        let head_norms = [&norms.q, &norms.k].into_iter().flatten();
        for (at, norm) in self.head_norms.iter().flatten().zip(head_norms) {
            arena.write(*at, norm);
        }
        self.load_linears(arena, block)
    }

    /// The linear layers alone.
    pub fn load_linears(&self, arena: &mut Arena, block: &Block) -> Vec<Adam> {
        let items = self.linears.iter().flat_map(|linear| linear.write(arena, block, &self.rates)).collect();
        self.compose(arena);
        items
    }

    pub(super) fn linears(&self) -> &[TunedLinear; 7] {
        &self.linears
    }

    /// Where `rows` positions enter, leave, and have their target.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Multiplies out the packed layers, as their parameters are now.
    pub fn compose(&self, arena: &mut Arena) {
        let packed: Vec<_> = self.linears.iter().filter_map(TunedLinear::packed).collect();
        compose(arena, &packed);
    }

    /// From `x` to `y` of the first `rows` positions, whole windows.
    pub fn forward(&self, arena: &mut Arena, rows: usize, precision: Precision) {
        let flow = self.flow.part(0, rows);
        self.norm(arena, flow.x, self.attention_norm, flow.attention);
        let [q, k] = flow.raw.unwrap_or([flow.q, flow.k]);
        let outputs = [(LinearName::Q, q), (LinearName::K, k), (LinearName::V, flow.v)];
        self.products(arena, flow.attention, &outputs, Added::Replace, precision);
        if let Some(norms) = self.head_norms {
            let items = [(q, norms[0], flow.q), (k, norms[1], flow.k)];
            let items =
                items.map(|(x, weight, y)| RmsNorm { x: self.by_head(x), weight, y: self.by_head(y) });
            rms_norm_batch(arena, self.rms_eps, &items);
        }
        self.turn(arena, [flow.q, flow.k], self.turns);
        attention_kept(arena, self.heads, self.mask, &self.windows(rows, |flow| attention(&flow)));
        scale(arena, &[Scale::new(flow.x, flow.middle)]);
        self.products(arena, flow.mixed, &[(LinearName::O, flow.middle)], Added::Add, precision);
        self.norm(arena, flow.middle, self.mlp_norm, flow.mlp);
        let outputs = [(LinearName::Gate, flow.gate), (LinearName::Up, flow.up)];
        self.products(arena, flow.mlp, &outputs, Added::Replace, precision);
        swiglu_kept(arena, &[gated(&flow)]);
        scale(arena, &[Scale::new(flow.middle, flow.y)]);
        self.products(arena, flow.gated, &[(LinearName::Down, flow.y)], Added::Add, precision);
    }

    /// From the gradient with respect to what left, in `y`, after [`forward`](Self::forward) of as many rows: to those
    /// of all weights that are trained, and where it is wanted to that of what entered, in `y` again.
    pub fn backward(
        &self,
        arena: &mut Arena,
        rows: usize,
        precision: Precision,
        (sum, input): (Sum, InputGradient),
    ) {
        let flow = self.flow.part(0, rows);
        let slopes = |arena: &mut Arena, items: &[(LinearName, View, View)]| {
            self.slopes(arena, items, sum, precision);
        };
        slopes(arena, &[(LinearName::Down, flow.y, flow.gated)]);
        self.back(arena, &[(LinearName::Down, flow.y)], flow.gated, precision);
        swiglu_backward(arena, &[gated(&flow)]);
        slopes(arena, &[(LinearName::Gate, flow.gate, flow.mlp), (LinearName::Up, flow.up, flow.mlp)]);
        let both = [(LinearName::Gate, flow.gate), (LinearName::Up, flow.up)];
        self.back(arena, &both, flow.target, precision);
        self.norm_backward(arena, (flow.middle, self.mlp_norm), flow.target, flow.y);

        slopes(arena, &[(LinearName::O, flow.y, flow.mixed)]);
        let read_first = Site::Attention.linears();
        if input == InputGradient::Unwanted
            && read_first.iter().all(|name| self.linear(*name).slope.is_none())
        {
            return;
        }
        self.back(arena, &[(LinearName::O, flow.y)], flow.dmixed, precision);
        attention_backward(
            arena,
            self.heads,
            self.mask,
            &self.windows(rows, |flow| attention_gradient(&flow)),
        );
        self.turn(arena, [flow.dq, flow.dk], self.returns);
        if let (Some(norms), Some(raw)) = (self.head_norms, flow.raw) {
            let items = [(raw[0], norms[0], flow.dq), (raw[1], norms[1], flow.dk)].map(|(x, weight, d)| {
                let (x, d) = (self.by_head(x), self.by_head(d));
                RmsNormGradient { x, weight, dy: d, dx: d, result: Added::Replace }
            });
            rms_norm_backward(arena, self.rms_eps, &items);
        }
        let three = [(LinearName::Q, flow.dq), (LinearName::K, flow.dk), (LinearName::V, flow.dv)];
        slopes(arena, &three.map(|(name, dy)| (name, dy, flow.attention)));
        if input == InputGradient::Wanted {
            self.back(arena, &three, flow.target, precision);
            self.norm_backward(arena, (flow.x, self.attention_norm), flow.target, flow.y);
        }
    }

    /// From the gradients of weights to those of the parameters of packed layers.
    pub fn differentiate(&self, arena: &mut Arena, precision: Precision) {
        let packed: Vec<_> =
            (self.linears.iter()).filter_map(|linear| Some((linear.packed()?.0, linear.slope?))).collect();
        differentiate(arena, &packed, precision);
    }

    fn linear(&self, name: LinearName) -> &TunedLinear {
        &self.linears[name as usize]
    }

    /// Rows of whole heads as rows of one head each.
    fn by_head(&self, x: View) -> View {
        View::new(x.at, x.len() / self.heads.head_dim, self.heads.head_dim)
    }

    fn windows<T>(&self, rows: usize, item: impl Fn(Flow) -> T) -> Vec<T> {
        (0..rows).step_by(self.window).map(|row| item(self.flow.part(row, self.window))).collect()
    }

    fn norm(&self, arena: &mut Arena, x: View, weight: usize, y: View) {
        rms_norm_batch(arena, self.rms_eps, &[RmsNorm { x, weight, y }]);
    }

    fn norm_backward(&self, arena: &mut Arena, (x, weight): (View, usize), dy: View, dx: View) {
        let item = RmsNormGradient { x, weight, dy, dx, result: Added::Add };
        rms_norm_backward(arena, self.rms_eps, &[item]);
    }

    fn turn(&self, arena: &mut Arena, of: [View; 2], turns: View) {
        let positions = Positions::Windows { len: self.window };
        rope_batch(arena, &of.map(|x| Rope { x, turns, positions }));
    }

    /// `Y ← X·Wᵀ + b`, or added to Y, for layers that read the same input.
    fn products(
        &self,
        arena: &mut Arena,
        x: View,
        outputs: &[(LinearName, View)],
        result: Added,
        precision: Precision,
    ) {
        let beta = if result == Added::Add { 1.0 } else { 0.0 };
        let items: Vec<Gemm> = (outputs.iter())
            .map(|(name, y)| Gemm::new(x, self.linear(*name).weight, *y).b_transposed())
            .map(|item| item.beta(beta).precision(precision))
            .collect();
        gemm(arena, &items);
        // A view whose rows are all the same one.
        let repeated = |at: usize, y: View| View { at, stride: 0, ..y };
        let biases: Vec<Scale> = (outputs.iter())
            .filter_map(|(name, y)| Some(Scale::new(repeated(self.linear(*name).bias?, *y), *y).add()))
            .collect();
        if !biases.is_empty() {
            scale(arena, &biases);
        }
    }

    /// `∂L/∂W = dYᵀ·X` for layers, their dY and their X.
    fn slopes(&self, arena: &mut Arena, items: &[(LinearName, View, View)], sum: Sum, precision: Precision) {
        let beta = if sum == Sum::Continue { 1.0 } else { 0.0 };
        let items: Vec<Gemm> = (items.iter())
            .filter_map(|(name, dy, x)| Some(Gemm::new(*dy, *x, self.linear(*name).slope?)))
            .map(|item| item.a_transposed().beta(beta).precision(precision))
            .collect();
        gemm(arena, &items);
    }

    /// `dX = Σ dY·W` over the layers that read X.
    fn back(&self, arena: &mut Arena, items: &[(LinearName, View)], dx: View, precision: Precision) {
        for (index, (name, dy)) in items.iter().enumerate() {
            let beta = if index == 0 { 0.0 } else { 1.0 };
            let item = Gemm::new(*dy, self.linear(*name).weight, dx);
            gemm(arena, &[item.beta(beta).precision(precision)]);
        }
    }
}

fn attention(flow: &Flow) -> KeptAttention {
    let Flow { q, k, v, mixed, log_sums, .. } = *flow;
    KeptAttention { q, k, v, out: mixed, log_sums: log_sums.at }
}

fn attention_gradient(flow: &Flow) -> AttentionGradient {
    let Flow { dmixed, dq, dk, dv, inner, .. } = *flow;
    AttentionGradient { forward: attention(flow), dout: dmixed, dq, dk, dv, inner: inner.at }
}

fn gated(flow: &Flow) -> KeptSwiglu {
    KeptSwiglu { gate: flow.gate, up: flow.up, out: flow.gated }
}
