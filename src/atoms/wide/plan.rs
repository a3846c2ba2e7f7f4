use super::fit::Job;
use super::{Kind, WideParams};
use crate::device::arena::{Layout, View};

/// Rows of a batch at most, and numbers of its scores.
const BATCH: usize = 8192;
const SCORES: usize = 1 << 28;

/// Rows that independent components are sought in.
const SAMPLE: usize = 32_768;

/// What lies where in the arena for one fit, and so what it needs. Letters as in [`super`].
pub(super) struct Plan {
    pub params: WideParams,
    /// Rows to fit, and with those held out
    pub rows: usize,
    pub all: usize,
    pub width: usize,
    pub rank: usize,
    /// Rows of a batch
    pub batch: usize,
    /// Where the source keeps its own
    pub source: usize,
    /// Ones, batch x 1
    pub ones: View,
    /// μ, 1 x p; and two more vectors of its length
    pub mean: View,
    pub shift: View,
    pub sums: View,
    /// V
    pub axes: View,
    /// The first rows in the frame, as many as are kept
    pub kept: View,
    /// U
    pub bulk: View,
    /// D, and its part that the bulk does not hold
    pub decoder: View,
    pub seen: View,
    /// Squared lengths of the rows of `seen`
    pub squares: usize,
    /// Σu² of each row of D
    pub weights: usize,
    pub activity: usize,
    /// Codes of the fit rows, and of a batch of others
    pub support: View,
    pub values: View,
    pub spare_support: View,
    pub spare_values: View,
    /// Lists of the rows of each atom, batch by batch: (K + 1) starts a batch, and k entries a row
    pub starts: View,
    pub entries: usize,
    /// What each row is missed by, squared
    pub errors: View,
    /// A batch as it was read, in the frame, without the bulk, and what is left of it
    pub raw: View,
    pub x: View,
    pub y: View,
    pub left: View,
    pub norms: View,
    pub room: Room,
    pub framing: Framing,
    pub seeking: Option<Seeking>,
}

/// Scratch of a round.
pub(super) struct Room {
    pub coefficients: View,
    pub scores: View,
    pub gram: View,
    pub right: View,
    pub counts: View,
    /// Coefficients of the decoder in the bulk
    pub held: View,
    /// XᵀX of what the atoms leave, and scratch for its eigenvectors
    pub residual: View,
    pub eigen: [View; 2],
    /// Conjugate gradients
    pub rest: View,
    pub direction: View,
    pub image: View,
    pub scaled: View,
    pub lines: [usize; 3],
}

/// Scratch of the frame, in the same place.
pub(super) struct Framing {
    pub gram: View,
    pub eigen: [View; 2],
    pub diagonal: View,
}

/// Scratch of the search for independent components, in the same place.
pub(super) struct Seeking {
    /// Whitened rows, and their components
    pub z: View,
    pub y: View,
    pub w: View,
    pub next: View,
    pub polar: [View; 2],
    pub energy: View,
    /// Whether a polar factor is done, its status, and a zero
    pub flags: usize,
    /// Vectors of length r
    pub scale: [usize; 2],
    pub index: usize,
    pub eigen: [View; 2],
}

impl Plan {
    /// Numbers that a fit takes at least, however few rows it keeps: its largest parts, where [`Self::place`] could overflow.
    pub fn floor(job: &Job<'_>) -> u128 {
        let params = &job.params;
        let [p, rows, atoms, active] =
            [job.source.width(), job.fit.min(job.source.rows()), params.atoms, params.active]
                .map(|n| n as u128);
        let lines = atoms * params.kind.rows() as u128;
        // Decoders, what is seen of them and conjugate gradients; codes; covariances.
        (6 * lines * p.min(params.rank as u128)).max(3 * rows * active).max(2 * p * p)
    }

    /// Places a fit that keeps at most `kept` rows.
    pub fn place(layout: &mut Layout, job: &Job<'_>, kept: usize) -> Self {
        let params = job.params;
        let (p, all) = (job.source.width(), job.source.rows());
        let (rows, rank) = (job.fit.min(all), params.rank.min(p));
        let (m, k) = (params.kind.rows(), params.active);
        let lines = params.atoms * m;
        let batch = rows.min(BATCH).min((SCORES / lines).max(64)).max(1);
        let source = layout.mark();
        job.source.place(layout, batch);
        let seeks = lines + params.bulk <= rank;
        let sample = kept.min(rows).min(SAMPLE);
        let plan = Self {
            params,
            rows,
            all,
            width: p,
            rank,
            batch,
            source,
            ones: layout.matrix(batch, 1),
            mean: layout.matrix(1, p),
            shift: layout.matrix(1, p),
            sums: layout.matrix(1, p),
            axes: layout.matrix(rank, p),
            kept: layout.matrix(kept.min(rows), rank),
            bulk: layout.matrix(params.bulk, rank),
            decoder: layout.matrix(lines, rank),
            seen: layout.matrix(lines, rank),
            squares: layout.vector(lines),
            weights: layout.vector(lines),
            activity: layout.vector(params.atoms),
            support: layout.matrix(rows, k),
            values: layout.matrix(rows, k * m),
            spare_support: layout.matrix(batch, k),
            spare_values: layout.matrix(batch, k * m),
            starts: layout.matrix(rows.div_ceil(batch), params.atoms + 1),
            entries: layout.vector(rows * k),
            errors: layout.matrix(rows, 1),
            raw: layout.matrix(batch, p),
            x: layout.matrix(batch, rank),
            y: layout.matrix(batch, rank),
            left: layout.matrix(batch, rank),
            norms: layout.matrix(1, 2 * batch),
            room: overlaid(layout, |layout| Room::place(layout, &params, rank, batch)),
            framing: overlaid(layout, |layout| Framing::place(layout, p, rank)),
            seeking: seeks.then(|| overlaid(layout, |layout| Seeking::place(layout, &params, rank, sample))),
        };
        layout.back_to(layout.most());
        plan
    }

    /// The batches of the fit rows: their first row and how many.
    pub fn batches(&self) -> usize {
        self.rows.div_ceil(self.batch)
    }

    /// Batch `c` of the fit rows.
    pub fn span(&self, c: usize) -> (usize, usize) {
        let first = c * self.batch;
        (first, self.batch.min(self.rows - first))
    }

    pub fn is_circle(&self) -> bool {
        self.params.kind == Kind::Circle
    }
}

/// Places something where the next thing will lie too.
fn overlaid<T>(layout: &mut Layout, place: impl FnOnce(&mut Layout) -> T) -> T {
    let mark = layout.mark();
    let placed = place(layout);
    layout.back_to(mark);
    placed
}

impl Room {
    fn place(layout: &mut Layout, params: &WideParams, rank: usize, batch: usize) -> Self {
        let lines = params.atoms * params.kind.rows();
        let n = params.active * params.kind.rows();
        Self {
            coefficients: layout.matrix(batch, params.bulk),
            scores: layout.matrix(batch, lines),
            gram: layout.matrix(batch, n * n),
            right: layout.matrix(batch, n),
            counts: layout.matrix(batch.div_ceil(crate::ops::atom_lists::SPAN), params.atoms),
            held: layout.matrix(lines, params.bulk),
            residual: layout.matrix(rank, rank),
            eigen: [layout.matrix(rank, rank), layout.matrix(rank, params.bulk)],
            rest: layout.matrix(lines, rank),
            direction: layout.matrix(lines, rank),
            image: layout.matrix(lines, rank),
            scaled: layout.matrix(lines, rank),
            lines: [layout.vector(rank), layout.vector(rank), layout.vector(rank)],
        }
    }
}

impl Framing {
    fn place(layout: &mut Layout, p: usize, rank: usize) -> Self {
        Self {
            gram: layout.matrix(p, p),
            eigen: [layout.matrix(p, p), layout.matrix(p, rank)],
            diagonal: layout.matrix(p, 1),
        }
    }
}

impl Seeking {
    fn place(layout: &mut Layout, params: &WideParams, rank: usize, sample: usize) -> Self {
        let mut square = || layout.matrix(rank, rank);
        let (w, next, polar, energy) = (square(), square(), [square(), square()], square());
        let eigen = [square(), layout.matrix(rank, params.bulk)];
        Self {
            z: layout.matrix(sample, rank),
            y: layout.matrix(sample, rank),
            w,
            next,
            polar,
            energy,
            flags: layout.vector(3),
            scale: [layout.vector(rank), layout.vector(rank)],
            index: layout.vector(rank),
            eigen,
        }
    }
}
