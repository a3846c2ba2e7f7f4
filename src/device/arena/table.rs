/// A row-major matrix inside an arena: entry (i, j) is number `at + i·stride + j`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub at: usize,
    pub rows: usize,
    pub cols: usize,
    pub stride: usize,
}

impl View {
    /// A matrix without entries.
    pub const EMPTY: Self = Self::vector(0, 0);

    /// A matrix whose rows lie one after another.
    pub const fn new(at: usize, rows: usize, cols: usize) -> Self {
        Self { at, rows, cols, stride: cols }
    }

    /// A vector as a row.
    pub const fn vector(at: usize, len: usize) -> Self {
        Self::new(at, 1, len)
    }

    /// `rows` rows from `row` on, `cols` columns from `col` on.
    ///
    /// # Panics
    /// When they reach outside.
    pub fn part(self, (row, col): (usize, usize), (rows, cols): (usize, usize)) -> Self {
        assert!(
            row + rows <= self.rows && col + cols <= self.cols,
            "{rows}x{cols} at ({row}, {col}) of {self:?}"
        );
        Self { at: self.at + row * self.stride + col, rows, cols, stride: self.stride }
    }

    /// Numbers from the first entry to the last.
    pub fn span(self) -> usize {
        if self.rows == 0 || self.cols == 0 { 0 } else { (self.rows - 1) * self.stride + self.cols }
    }

    /// Numbers that it holds.
    pub fn len(self) -> usize {
        self.rows * self.cols
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// What one launch works on: for each item the words that its kernel reads, and how many workgroups it takes.
///
/// As a kernel sees it: `[items, groups, stride, 0]`, then for each item `stride` words, the first of them the index
/// of the item's first workgroup. Workgroups are numbered over all items.
#[derive(Clone, Debug)]
pub struct Table {
    words: Vec<u32>,
}

impl Table {
    /// A table of items of `words` words each.
    pub fn new(words: usize) -> Self {
        Self { words: vec![0, 0, words as u32 + 1, 0] }
    }

    /// Adds an item that takes `groups` workgroups; one without any is left out.
    ///
    /// # Panics
    /// When the words are not as many as the table was made for, or one does not fit into 32 bits.
    pub fn push(&mut self, groups: usize, words: &[usize]) {
        assert_eq!(words.len() + 1, self.words[2] as usize, "words of an item");
        if groups == 0 {
            return;
        }
        let first = self.words[1];
        self.words[0] += 1;
        self.words[1] = word(first as usize + groups);
        self.words.push(first);
        self.words.extend(words.iter().map(|w| word(*w)));
    }

    /// Workgroups of the whole launch.
    pub fn groups(&self) -> u32 {
        self.words[1]
    }

    pub fn words(&self) -> &[u32] {
        &self.words
    }
}

fn word(value: usize) -> u32 {
    u32::try_from(value).expect("arenas are addressed by 32 bits")
}

/// The word that a kernel reads as this float.
pub fn float_word(value: f32) -> usize {
    value.to_bits() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_know_their_first_workgroup() {
        let mut table = Table::new(2);
        table.push(3, &[7, 8]);
        table.push(0, &[1, 1]);
        table.push(2, &[9, 10]);
        assert_eq!(table.words(), [2, 5, 3, 0, 0, 7, 8, 3, 9, 10]);
        assert_eq!(table.groups(), 5);
    }
}
