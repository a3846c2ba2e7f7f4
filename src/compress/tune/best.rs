use super::room::Room;
use crate::device::arena::{Arena, Layout, View};
use crate::ops::adam::Adam;
use crate::ops::scale::{Scale, scale};

/// Where the parameters of the best pass are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    at: usize,
}

impl Best {
    /// Room for vectors of these lengths.
    pub fn place(room: &mut Room, lengths: impl Iterator<Item = usize>) -> Self {
        let at = room.kept.mark();
        lengths.for_each(|len| _ = room.kept.vector(len));
        Self { at }
    }

    /// Copies what is trained to where the best is kept.
    pub fn keep<'a>(&self, arena: &mut Arena, items: impl Iterator<Item = &'a Adam>) {
        scale(arena, &self.pairs(items).map(|(now, best)| Scale::new(now, best)).collect::<Vec<_>>());
    }

    /// And back.
    pub fn restore<'a>(&self, arena: &mut Arena, items: impl Iterator<Item = &'a Adam>) {
        scale(arena, &self.pairs(items).map(|(now, best)| Scale::new(best, now)).collect::<Vec<_>>());
    }

    fn pairs<'a>(&self, items: impl Iterator<Item = &'a Adam>) -> impl Iterator<Item = (View, View)> {
        let mut layout = Layout::behind(self.at);
        items.map(move |item| {
            (View::vector(item.parameters, item.len), View::vector(layout.vector(item.len), item.len))
        })
    }
}
