use super::activations::Activations;
use super::weights::{Factors, Weights};
use super::{ForwardError, check};
use crate::device::arena::{Arena, Layout, View};
use crate::model::block::heads;
use crate::model::{Block, Config, Site};
use crate::ops::attention::Heads;
use crate::ops::attention_batch::{Attention, attention_batch};
use crate::ops::rope::{Frequencies, Positions, Rope, Rotation, rope_batch};

/// Room in an arena for any one block of a model, and for windows that go through it; see
/// [`Block::forward`](crate::model::Block::forward) for what is computed.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBlock {
    heads: Heads,
    frequencies: Frequencies,
    rms_eps: f64,
    window: usize,
    weights: Weights,
    factors: Factors,
    turns: View,
    activations: Activations,
}

impl DeviceBlock {
    /// Room for at most `windows` windows of `window` positions at once.
    pub fn place(
        layout: &mut Layout,
        config: &Config,
        window: usize,
        windows: usize,
    ) -> Result<Self, ForwardError> {
        check(config, window)?;
        let weights = Weights::place(layout, config);
        let turns = layout.matrix(window, config.head_dim);
        // Weights are written before activations flow: a packed layer's factors may lie where those will.
        let start = layout.mark();
        let factors = Factors::place(layout, config);
        let end = layout.mark();
        layout.back_to(start);
        let rows = windows * window;
        let activations = Activations::place(layout, config, rows, rows.max(1));
        layout.skip_to(end);
        let (frequencies, rms_eps) = (config.rope, config.rms_eps);
        Ok(Self { heads: heads(config), frequencies, rms_eps, window, weights, factors, turns, activations })
    }

    /// Positions of a window.
    pub fn window(&self) -> usize {
        self.window
    }

    /// Rows that fit at once.
    pub fn most_rows(&self) -> usize {
        self.activations.x.rows
    }

    /// Writes what stays the same for all blocks.
    pub fn prepare(&self, arena: &mut Arena) {
        let rotation = Rotation::new(self.heads.head_dim, self.frequencies, 0..self.window);
        arena.write(self.turns.at, rotation.numbers());
    }

    /// Writes the weights of a block; overwrites activations.
    pub fn load(&self, arena: &mut Arena, block: &Block) {
        self.weights.write(arena, block, &self.factors);
    }

    /// The residual stream of `rows` positions: what enters, and after [`finish`](Self::finish) what leaves.
    pub fn stream(&self, rows: usize) -> View {
        self.activations.first(rows).x
    }

    /// The input of the linear layers of a site, after [`inputs`](Self::inputs).
    pub fn site(&self, site: Site, rows: usize) -> View {
        self.activations.first(rows).site(site)
    }

    /// From the residual stream of `rows` positions, whole windows, to the inputs of all four sites.
    ///
    /// # Panics
    /// When there is no room for the rows, or they are not whole windows.
    pub fn inputs(&self, arena: &mut Arena, rows: usize) {
        self.inputs_to(Site::Down, arena, rows);
    }

    /// As [`inputs`](Self::inputs), but no further than to that of `last`.
    pub fn inputs_to(&self, last: Site, arena: &mut Arena, rows: usize) {
        assert!(rows.is_multiple_of(self.window), "{rows} rows in windows of {}", self.window);
        let flow = self.activations.first(rows);
        flow.normalise(arena, &self.weights, self.rms_eps);
        if last == Site::Attention {
            return;
        }
        flow.project(arena, &self.weights, self.rms_eps);
        let positions = Positions::Windows { len: self.window };
        rope_batch(arena, &[flow.q, flow.k].map(|x| Rope { x, turns: self.turns, positions }));
        let windows: Vec<Attention> = (0..rows / self.window)
            .map(|window| {
                let part = |view: View| view.part((window * self.window, 0), (self.window, view.cols));
                Attention { q: part(flow.q), k: part(flow.k), v: part(flow.v), out: part(flow.mixed) }
            })
            .collect();
        attention_batch(arena, self.heads, &windows);
        if last == Site::Output {
            return;
        }
        flow.mix(arena, &self.weights, self.rms_eps);
        if last == Site::Mlp {
            return;
        }
        flow.gate(arena, &self.weights);
    }

    /// From there to the residual stream that leaves the block.
    pub fn finish(&self, arena: &mut Arena, rows: usize) {
        self.activations.first(rows).down(arena, &self.weights);
    }
}
