use super::TuneError;
use crate::device::arena::Layout;

/// Where a block's numbers go. All blocks of a model share what is made anew when a block's turn comes.
#[derive(Clone, Debug, Default)]
pub struct Room {
    /// Parameters, the optimiser's means, norms and biases.
    pub kept: Layout,
    /// Weights multiplied out, gradients, and what flows.
    pub scratch: Layout,
}

/// Places something twice: first to learn how much scratch it needs, then for good, with the rest behind that. Returns it
/// with the numbers that it needs in all.
pub fn placed<T>(place: impl Fn(&mut Room) -> Result<T, TuneError>) -> Result<(T, usize), TuneError> {
    let mut dry = Room::default();
    place(&mut dry)?;
    let mut room = Room { kept: Layout::behind(dry.scratch.most()), scratch: Layout::default() };
    let placed = place(&mut room)?;
    Ok((placed, room.kept.most()))
}
