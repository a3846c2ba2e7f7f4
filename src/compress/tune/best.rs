use super::optimiser::Optimiser;
use super::room::Room;
use crate::device::arena::{Arena, Layout, View};
use crate::ops::adam::Adam;
use crate::ops::scale::{Scale, scale};

/// Steps between two judgements, at most.
const JUDGED_AFTER: usize = 64;

/// How much further away than at its best, relatively, a model is astray. On ten blocks of SmolLM2-135M the divergence went
/// from 0.49 to 0.39 nats in 52 steps, to 0.47 and 0.56 in 104 more, and to 3.8 by step 208.
const ASTRAY: f64 = 0.1;

/// Judgements in a row that find it astray before it turns back. High rates overshoot at first and come back by
/// themselves: turning back at the first sign ended block 9 of Gemma 3 270M at 0.0071 instead of 0.0068.
const PATIENCE: usize = 2;

/// Steps between two judgements of a pass of `steps`, which it is cut into evenly.
pub(super) fn judged_after(steps: usize) -> usize {
    steps.div_ceil(steps.div_ceil(JUDGED_AFTER).max(1)).max(1)
}

/// Where the parameters of the best state are kept.
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
    fn keep(&self, arena: &mut Arena, items: &[Adam]) {
        scale(arena, &self.pairs(items).map(|(now, best)| Scale::new(now, best)).collect::<Vec<_>>());
    }

    /// And back.
    fn restore(&self, arena: &mut Arena, items: &[Adam]) {
        scale(arena, &self.pairs(items).map(|(now, best)| Scale::new(best, now)).collect::<Vec<_>>());
    }

    fn pairs<'a>(&self, items: &'a [Adam]) -> impl Iterator<Item = (View, View)> + use<'a> {
        let mut layout = Layout::behind(self.at);
        items.iter().map(move |item| {
            (View::vector(item.parameters, item.len), View::vector(layout.vector(item.len), item.len))
        })
    }
}

/// Training by what held-out windows say: the best state is kept, and gone back to from astray.
#[derive(Clone, Debug)]
pub(super) struct Course {
    best: Best,
    items: Vec<Adam>,
    /// Losses of the start and of the best state.
    start: f64,
    loss: f64,
    astray: usize,
    turned_back: usize,
}

impl Course {
    /// Begins at what the arena holds, with its loss.
    pub fn begin(arena: &mut Arena, best: Best, items: Vec<Adam>, loss: f64) -> Self {
        best.keep(arena, &items);
        Self { best, items, start: loss, loss, astray: 0, turned_back: 0 }
    }

    /// Where the loss of held-out windows is `now`. Training that is no closer than at the start, or further away than at
    /// its best by [`ASTRAY`], [`PATIENCE`] times in a row, goes back to the best state and on from there at half the rates.
    pub fn judge(&mut self, arena: &mut Arena, now: f64, optimisers: &mut [Optimiser]) {
        if now < self.loss {
            self.loss = now;
            self.best.keep(arena, &self.items);
        }
        let astray = now.is_nan() || now >= self.start || now > self.loss * (1.0 + ASTRAY);
        self.astray = if astray { self.astray + 1 } else { 0 };
        if now.is_nan() || self.astray == PATIENCE {
            self.best.restore(arena, &self.items);
            optimisers.iter_mut().for_each(Optimiser::back_off);
            self.turned_back += 1;
            self.astray = 0;
        }
    }

    /// Ends at the best state, and says how often it went back.
    pub fn end(self, arena: &mut Arena) -> usize {
        self.best.restore(arena, &self.items);
        self.turned_back
    }
}

#[cfg(test)]
mod tests {
    use super::super::room::placed;
    use super::*;
    use crate::device::Device;

    #[test]
    fn passes_are_cut_evenly() {
        let cut = [1, 48, 64, 65, 208, 1000].map(judged_after);
        assert_eq!(cut, [1, 48, 64, 33, 52, 63]);
    }

    #[test]
    fn the_best_state_is_kept_and_gone_back_to_from_astray() {
        let (best, len) = placed(|room| {
            room.kept.vector(8);
            Ok(Best::place(room, [2].into_iter()))
        })
        .unwrap();
        let mut arena = Arena::new(&Device::Host, len).unwrap();
        let item = Adam { parameters: 0, gradient: 2, mean: 4, square: 6, len: 2, rate: 1.0 };
        let mut optimisers = [Optimiser::new(vec![item], 100)];
        arena.write(0, &[0.0, 0.0]);
        let mut course = Course::begin(&mut arena, best, vec![item], 1.0);
        // What a state is, its loss, and what is there behind its judgement.
        let states = [
            (0.5, 1.05, 0.5),
            (0.7, 1.0, 0.0),
            (1.0, 0.5, 1.0),
            (2.0, 0.56, 2.0),
            (3.0, 0.54, 3.0),
            (4.0, 0.56, 4.0),
            (5.0, 0.9, 1.0),
            (6.0, f64::NAN, 1.0),
            (7.0, 0.4, 7.0),
        ];
        for (state, loss, then) in states {
            arena.write(0, &[state, -state]);
            course.judge(&mut arena, loss, &mut optimisers);
            assert_eq!(arena.read(0, 2).unwrap(), [then, -then], "{state} at {loss}");
        }
        arena.write(0, &[8.0, 8.0]);
        assert_eq!(course.end(&mut arena), 3);
        assert_eq!(arena.read(0, 2).unwrap(), [7.0, -7.0]);
        // Three times half the rate: a step moves by an eighth.
        arena.write(2, &[1.0, -1.0]);
        optimisers[0].step(&mut arena);
        let moved = arena.read(0, 2).unwrap();
        assert!((moved[0] - 6.875).abs() < 1e-5 && (moved[1] + 6.875).abs() < 1e-5, "{moved:?}");
    }
}
