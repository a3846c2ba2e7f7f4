use crate::arrow::memory::pays_border_first;
use crate::arrow::{Blocks, Border, Cross, Elimination, System};
use crate::ops::arrow_border::LARGEST_BASIS;
use crate::ops::arrow_solve;
use crate::ops::spd_inverse::{Form, LEAF, TILE, scratch_len};

/// Columns that one block of `reduce_rows` owns.
pub(super) const COLUMNS: usize = 512;

/// The shape of a system on a card: where its row blocks begin, its border, and what its slabs are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    rows: Blocks,
    border: usize,
    /// M of a factored cross block.
    factored: Option<usize>,
    form: Form,
}

impl Layout {
    /// A system whose slabs are all dense. `offsets`: the first unknown of each row block, and their number at the end.
    pub fn new(offsets: Vec<usize>, border: usize) -> Self {
        Self { rows: Blocks::new(offsets), border, factored: None, form: Form::Dense }
    }

    pub fn of(system: &System) -> Self {
        let factored = match system.cross() {
            Cross::Dense(_) => None,
            Cross::Factored { basis, .. } => Some(*basis),
        };
        let form = match system.border_hessian() {
            Border::Dense(_) => Form::Dense,
            Border::Diagonal(_) => Form::Diagonal,
            Border::Kronecker { basis, .. } => Form::Kronecker { basis: *basis },
        };
        Self { rows: system.row_blocks().clone(), border: system.border(), factored, form }
    }

    pub fn rows(&self) -> &Blocks {
        &self.rows
    }

    /// Σ d_i.
    pub fn unknowns(&self) -> usize {
        self.rows.unknowns()
    }

    /// p.
    pub fn border(&self) -> usize {
        self.border
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Which unknowns a frame eliminates first: as on the host, but for a Kronecker border of so many basis functions
    /// that its root does not fit where it is solved with.
    pub fn elimination(&self) -> Elimination {
        let solvable = match self.form {
            Form::Kronecker { basis } => basis <= LARGEST_BASIS,
            Form::Diagonal => true,
            Form::Dense | Form::Identity => false,
        };
        match pays_border_first(solvable, self.unknowns(), self.border) {
            true => Elimination::Border,
            false => Elimination::Rows,
        }
    }

    /// M and r of a factored cross block.
    pub(in crate::arrow) fn factors(&self) -> Option<(usize, usize)> {
        self.factored.map(|basis| (basis, self.border / basis))
    }

    /// The same where a frame multiplies with the factors: the border is eliminated first and shares their basis.
    pub(in crate::arrow) fn keeps_factors(&self) -> Option<(usize, usize)> {
        let shared = self.form == Form::Kronecker { basis: self.factored? };
        self.factors().filter(|_| shared && self.elimination() == Elimination::Border)
    }

    /// Numbers from one row of Y to the next: p rounded up to even, so that rows are read two numbers at a time.
    pub fn pitch(&self) -> usize {
        self.border.next_multiple_of(2)
    }

    /// Numbers of D, of B (or J), of h and of C (or what it is made of).
    pub(in crate::arrow) fn slab_lengths(&self) -> [usize; 4] {
        let (m, p) = (self.unknowns(), self.border);
        let (cross, basis) = match self.factors() {
            Some((basis, r)) => (m * r, self.rows.count() * basis),
            None => (m * p, 0),
        };
        let border = match self.form {
            Form::Dense => p * p,
            Form::Identity => 0,
            Form::Diagonal => p,
            Form::Kronecker { basis } => basis * basis,
        };
        [self.rows.numbers(), cross, basis, border]
    }

    /// Numbers of the root of a structured border.
    pub(in crate::arrow) fn root_len(&self) -> usize {
        self.slab_lengths()[3]
    }

    /// Row blocks of one part of the first reduction, and the number of parts: about `wanted` blocks of threads in all,
    /// and no part larger than its shared memory.
    pub(super) fn parts(&self, wanted: usize) -> (usize, usize) {
        let columns = self.pitch().div_ceil(COLUMNS);
        let per_part = (self.rows.count() * columns).div_ceil(wanted);
        let per_part = per_part.clamp(1, arrow_solve::CHUNK_ROWS / self.rows.largest_dim());
        (per_part, self.rows.count().div_ceil(per_part))
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} row and {} border unknowns", self.unknowns(), self.border)
    }
}

/// What changes the speed of a frame and never its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Order of the leaves of the inversion: a multiple of 32.
    pub leaf: usize,
    /// Bytes of Y and S⁻¹ that solves try to keep in the L2 cache from one to the next.
    pub kept_bytes: usize,
    /// Column panels of the product YᵀY: half of it is skipped but for the panels' corners.
    pub panels: usize,
    /// Blocks of threads a multiprocessor in the first reduction of a solve.
    pub reducers: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { leaf: LEAF, kept_bytes: 24 << 20, panels: 4, reducers: 3 }
    }
}

impl Tuning {
    /// Numbers of scratch beside a matrix of order `q`: what its inversion needs, and one panel of tiles at least.
    pub(in crate::arrow) fn scratch_len(&self, q: usize) -> usize {
        scratch_len(q, self.leaf).max(q * TILE)
    }
}
