use super::flow::Flow;
use super::linear::{Form, TunedLinear};
use super::optimiser::Rates;
use super::packed::{compose, differentiate};
use super::room::Room;
use super::{TuneError, unsupported};
use crate::device::arena::{Arena, Precision, View};
use crate::model::block::heads;
use crate::model::{Block, Config, Gate, LinearName, Site};
use crate::ops::adam::Adam;
use crate::ops::attention::{Heads, Mask};
use crate::ops::attention_backward::{AttentionGradient, KeptAttention, attention_backward, attention_kept};
use crate::ops::column_squares::{ColumnSquares, column_squares};
use crate::ops::gated::Activation;
use crate::ops::gated_backward::{KeptGate, gated_backward, gated_kept};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::rms_norm::{RmsNorm, rms_norm_batch};
use crate::ops::rms_norm_backward::{Added, RmsNormGradient, rms_norm_backward};
use crate::ops::rope::{Frequencies, Positions, Rope, Rotation, rope_batch};
use crate::ops::scale::{Scale, scale};

/// One block of a model in an arena, forward and backward over whole windows; see
/// [`Block::forward`](crate::model::Block::forward) for what is computed.
#[derive(Clone, Debug)]
pub struct TunedBlock {
    heads: Heads,
    mask: Mask,
    activation: Activation,
    frequencies: Frequencies,
    rms_eps: f64,
    window: usize,
    rates: Rates,
    attention_norm: usize,
    mlp_norm: usize,
    /// Norms of each head of q and of k.
    head_norms: Option<[usize; 2]>,
    /// Norms of what attention and the gated unit give.
    branch_norms: Option<[usize; 2]>,
    linears: [TunedLinear; 7],
    /// Where the squares of the gradients of what each layer gives are added up, where they are.
    squares: Option<[usize; 7]>,
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
        room: &mut Room,
        (config, layer): (&Config, usize),
        forms: &[Form; 7],
        rates: &Rates,
        (window, windows): (usize, usize),
    ) -> Result<Self, TuneError> {
        unsupported(config)?;
        let heads = heads(config);
        let [attention_norm, mlp_norm] = [(); 2].map(|()| room.kept.vector(config.hidden));
        let traits = config.family.traits();
        let mut norms = |wanted: bool, len| wanted.then(|| [(); 2].map(|()| room.kept.vector(len)));
        let head_norms = norms(traits.qk_norms, config.head_dim);
        let branch_norms = norms(traits.post_norms, config.hidden);
        let activation = match traits.gate {
            Gate::Silu => Activation::Silu,
            Gate::GeluTanh => Activation::GeluTanh,
        };
        let linears = LinearName::ALL.map(|name| {
            let what = (forms[name as usize], config.has_bias(name));
            TunedLinear::place(room, name, name.shape(config), what, rates)
        });
        let [turns, returns] = [(); 2].map(|()| room.kept.matrix(window, config.head_dim));
        let flow = Flow::place(&mut room.scratch, config, heads, window * windows);
        let (mask, frequencies) = (config.mask(layer), config.frequencies(layer));
        let (rms_eps, rates) = (config.rms_eps, *rates);
        Ok(Self {
            heads,
            mask,
            activation,
            frequencies,
            rms_eps,
            window,
            rates,
            attention_norm,
            mlp_norm,
            head_norms,
            branch_norms,
            linears,
            squares: None,
            turns,
            returns,
            flow,
        })
    }

    /// Room for the squares that [`backward`](Self::backward) adds up from then on; they begin as what is there.
    pub(super) fn add_squares(&mut self, room: &mut Room, config: &Config) {
        self.squares = Some(LinearName::ALL.map(|name| room.kept.vector(name.shape(config)[0])));
    }

    pub(super) fn squares(&self) -> Option<[usize; 7]> {
        self.squares
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
        let pairs = [
            (self.head_norms, [&norms.q, &norms.k]),
            (self.branch_norms, [&norms.after_attention, &norms.after_mlp]),
        ];
        for (places, norms) in pairs {
            for (at, norm) in places.iter().flatten().zip(norms.into_iter().flatten()) {
                arena.write(*at, norm);
            }
        }
        self.load_linears(arena, block)
    }

    /// The linear layers alone.
    pub fn load_linears(&self, arena: &mut Arena, block: &Block) -> Vec<Adam> {
        let items = self.linears.iter().flat_map(|linear| linear.write(arena, block, &self.rates)).collect();
        self.compose(arena, Precision::F32);
        items
    }

    pub(super) fn linears(&self) -> &[TunedLinear; 7] {
        &self.linears
    }

    /// Lengths of all vectors that are trained, in the order of the optimiser's items.
    pub(super) fn trained(&self) -> impl Iterator<Item = usize> {
        self.linears.iter().flat_map(TunedLinear::trained)
    }

    /// Where `rows` positions enter, leave, and have their target.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Multiplies out the packed layers, as their parameters are now.
    pub fn compose(&self, arena: &mut Arena, precision: Precision) {
        let packed: Vec<_> = self.linears.iter().filter_map(TunedLinear::packed).collect();
        compose(arena, &packed, precision);
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
        let windows = self.windows(rows, |flow| attention(&flow));
        attention_kept(arena, (self.heads, self.mask), &windows, precision);
        self.branch(arena, (LinearName::O, 0), [flow.mixed, flow.x, flow.middle], precision);
        self.norm(arena, flow.middle, self.mlp_norm, flow.mlp);
        let outputs = [(LinearName::Gate, flow.gate), (LinearName::Up, flow.up)];
        self.products(arena, flow.mlp, &outputs, Added::Replace, precision);
        gated_kept(arena, self.activation, &[gated(&flow)]);
        self.branch(arena, (LinearName::Down, 1), [flow.gated, flow.middle, flow.y], precision);
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
        let dy = self.branch_backward(arena, 1, &flow);
        slopes(arena, &[(LinearName::Down, dy, flow.gated)]);
        self.back(arena, &[(LinearName::Down, dy)], flow.gated, precision);
        gated_backward(arena, self.activation, &[gated(&flow)]);
        slopes(arena, &[(LinearName::Gate, flow.gate, flow.mlp), (LinearName::Up, flow.up, flow.mlp)]);
        let both = [(LinearName::Gate, flow.gate), (LinearName::Up, flow.up)];
        self.back(arena, &both, flow.target, precision);
        self.norm_backward(arena, (flow.middle, self.mlp_norm), flow.target, flow.y);

        let dy = self.branch_backward(arena, 0, &flow);
        slopes(arena, &[(LinearName::O, dy, flow.mixed)]);
        let read_first = Site::Attention.linears();
        if input == InputGradient::Unwanted
            && self.squares.is_none()
            && read_first.iter().all(|name| self.linear(*name).slope.is_none())
        {
            return;
        }
        self.back(arena, &[(LinearName::O, dy)], flow.dmixed, precision);
        let windows = self.windows(rows, |flow| attention_gradient(&flow));
        attention_backward(arena, (self.heads, self.mask), &windows, precision);
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

    /// The residual stream and what a branch adds to it: a linear layer, and its norm where there is one.
    fn branch(
        &self,
        arena: &mut Arena,
        (name, index): (LinearName, usize),
        [x, residual, out]: [View; 3],
        precision: Precision,
    ) {
        let Some((branches, norms)) = self.flow.branches.zip(self.branch_norms) else {
            scale(arena, &[Scale::new(residual, out)]);
            return self.products(arena, x, &[(name, out)], Added::Add, precision);
        };
        let branch = branches[index].part((0, 0), (out.rows, out.cols));
        self.products(arena, x, &[(name, branch)], Added::Replace, precision);
        self.norm(arena, branch, norms[index], out);
        scale(arena, &[Scale::new(residual, out).add()]);
    }

    /// The gradient with respect to what the linear layer of a branch gave, from that of the residual stream in `y`.
    fn branch_backward(&self, arena: &mut Arena, index: usize, flow: &Flow) -> View {
        let Some((branches, norms)) = flow.branches.zip(self.branch_norms) else { return flow.y };
        let (x, weight, dy, dx) = (branches[index], norms[index], flow.y, flow.target);
        let item = RmsNormGradient { x, weight, dy, dx, result: Added::Replace };
        rms_norm_backward(arena, self.rms_eps, &[item]);
        flow.target
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

    /// `∂L/∂W = dYᵀ·X` for layers, their dY and their X; and the squares of dY, where they are added up.
    fn slopes(&self, arena: &mut Arena, items: &[(LinearName, View, View)], sum: Sum, precision: Precision) {
        if let Some(squares) = self.squares {
            let square = |(name, x, _): &(LinearName, View, View)| ColumnSquares {
                x: *x,
                out: squares[*name as usize],
            };
            column_squares(arena, &items.iter().map(square).collect::<Vec<_>>());
        }
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

fn gated(flow: &Flow) -> KeptGate {
    KeptGate { gate: flow.gate, up: flow.up, out: flow.gated }
}
