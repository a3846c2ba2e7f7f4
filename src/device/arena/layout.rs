use super::View;

/// Numbers between the starts of two allocations: a line of memory, so that loads may be wide.
const ALIGN: usize = 64;

/// Places matrices one after another. It hands out addresses alone: the same code predicts what a computation needs and
/// lays it out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    next: usize,
    most: usize,
}

impl Layout {
    /// Behind everything before `at`.
    pub fn behind(at: usize) -> Self {
        Self { next: at, most: at }
    }

    pub fn matrix(&mut self, rows: usize, cols: usize) -> View {
        View::new(self.vector(rows * cols), rows, cols)
    }

    pub fn vector(&mut self, len: usize) -> usize {
        let at = self.next;
        self.next = (at + len).next_multiple_of(ALIGN);
        self.most = self.most.max(self.next);
        at
    }

    /// Where the next allocation starts, for [`Self::back_to`].
    pub fn mark(&self) -> usize {
        self.next
    }

    /// Gives back everything allocated since a mark.
    pub fn back_to(&mut self, mark: usize) {
        self.next = mark;
    }

    /// The next allocation starts behind that mark, where it would not anyway.
    pub fn skip_to(&mut self, mark: usize) {
        self.next = self.next.max(mark);
    }

    /// Numbers needed at the fullest moment.
    pub fn most(&self) -> usize {
        self.most
    }
}
