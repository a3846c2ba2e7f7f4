use crate::device::arena::{Arena, Layout, View};
use crate::model::Config;
use crate::ops::attention::Mask;
use crate::ops::rope::{Frequencies, Rotation};

/// Rotations of positions from 0 on, a row each: those of layers with sliding windows have a table of their own where
/// their frequencies are others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns {
    all: (View, Frequencies),
    sliding: Option<(View, Frequencies)>,
}

impl Turns {
    pub fn place(layout: &mut Layout, config: &Config, positions: usize) -> Self {
        let mut table = |frequencies| (layout.matrix(positions, config.head_dim), frequencies);
        let others = config.sliding.as_ref().map(|sliding| sliding.rope).filter(|rope| *rope != config.rope);
        Self { all: table(config.rope), sliding: others.map(table) }
    }

    pub fn write(&self, arena: &mut Arena) {
        for (view, frequencies) in [self.all].into_iter().chain(self.sliding) {
            arena.write(view.at, Rotation::new(view.cols, frequencies, 0..view.rows).numbers());
        }
    }

    /// The table of a layer with this mask.
    pub fn of(&self, mask: Mask) -> View {
        match (mask, self.sliding) {
            (Mask::Sliding { .. }, Some((view, _))) => view,
            _ => self.all.0,
        }
    }
}
