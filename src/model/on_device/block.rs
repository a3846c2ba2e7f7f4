use super::activations::Activations;
use super::turns::Turns;
use super::weights::{Factors, Weights};
use super::{ForwardError, check};
use crate::device::arena::{Arena, Layout, View};
use crate::model::block::heads;
use crate::model::{Block, Config, Site};
use crate::ops::attention::{Heads, Mask};
use crate::ops::attention_batch::{Attention, attention_batch};
use crate::ops::rope::{Positions, Rope, rope_batch};

/// Room in an arena for any one block of a model, and for windows that go through it; see
/// [`Block::forward`](crate::model::Block::forward) for what is computed.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBlock {
    heads: Heads,
    rms_eps: f64,
    window: usize,
    weights: Weights,
    factors: Factors,
    turns: Turns,
    activations: Activations,
    /// Of the block whose weights are there.
    mask: Mask,
}

impl DeviceBlock {
    /// Room for at most `windows` windows of `window` positions at once.
    pub fn place(
        layout: &mut Layout,
        config: &Config,
        window: usize,
        windows: usize,
    ) -> Result<Self, ForwardError> {
        check(config)?;
        let weights = Weights::place(layout, config);
        let turns = Turns::place(layout, config, window);
        // Weights are written before activations flow: a packed layer's factors may lie where those will.
        let start = layout.mark();
        let factors = Factors::place(layout, config);
        let end = layout.mark();
        layout.back_to(start);
        let rows = windows * window;
        let activations = Activations::place(layout, config, rows, rows.max(1));
        layout.skip_to(end);
        Ok(Self {
            heads: heads(config),
            rms_eps: config.rms_eps,
            window,
            weights,
            factors,
            turns,
            activations,
            mask: Mask::Causal,
        })
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
        self.turns.write(arena);
    }

    /// Writes the weights of a block; overwrites activations.
    pub fn load(&mut self, arena: &mut Arena, block: &Block) {
        self.mask = block.mask;
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
        let (positions, turns) = (Positions::Windows { len: self.window }, self.turns.of(self.mask));
        rope_batch(arena, &[flow.q, flow.k].map(|x| Rope { x, turns, positions }));
        let windows: Vec<Attention> = (0..rows / self.window)
            .map(|window| {
                let part = |view: View| view.part((window * self.window, 0), (self.window, view.cols));
                Attention { q: part(flow.q), k: part(flow.k), v: part(flow.v), out: part(flow.mixed) }
            })
            .collect();
        attention_batch(arena, self.heads, self.mask, &windows);
        if last == Site::Output {
            return;
        }
        flow.mix(arena, &self.weights, self.rms_eps);
        if last == Site::Mlp {
            return;
        }
        flow.gate(arena, &self.weights);
    }

    /// From there to the residual stream that leaves the block; inputs of sites are lost.
    pub fn finish(&self, arena: &mut Arena, rows: usize) {
        self.activations.first(rows).down(arena, &self.weights, self.rms_eps);
    }
}
