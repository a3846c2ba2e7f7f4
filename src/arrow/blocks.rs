/// Where the row blocks of a system begin, among its unknowns and among the numbers of D.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    offsets: Vec<usize>,
    starts: Vec<usize>,
}

impl Blocks {
    /// `offsets`: the first unknown of each row block, and their number at the end.
    pub fn new(offsets: Vec<usize>) -> Self {
        let mut starts = vec![0];
        for at in offsets.windows(2) {
            let dim = at[1] - at[0];
            starts.push(starts[starts.len() - 1] + dim * dim);
        }
        Self { offsets, starts }
    }

    /// First unknown of each row block, and Σ d_i at the end.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Where each D_i begins, and Σ d_i² at the end.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// n.
    pub fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Σ d_i.
    pub fn unknowns(&self) -> usize {
        self.offsets[self.count()]
    }

    /// Σ d_i².
    pub fn numbers(&self) -> usize {
        self.starts[self.count()]
    }

    /// The largest d_i.
    pub fn largest_dim(&self) -> usize {
        self.offsets.windows(2).map(|at| at[1] - at[0]).max().unwrap_or(1)
    }

    /// The block that a row unknown belongs to.
    pub fn block_of(&self, unknown: usize) -> usize {
        self.offsets.partition_point(|first| *first <= unknown) - 1
    }
}
