use super::layout::{Layout, Scratch, Shape, State};
use super::site::Site;
use crate::compress::refine::RefineInfo;
use crate::device::arena::View;
use crate::ops::dots::PARTS;
use crate::ops::gemm::Gemm;

/// Inner products of one candidate that are read back at once.
pub const SUMS: usize = 2;

/// One candidate of a batch: a weight, the site it reads, and how many paths of which rank it gets.
#[derive(Debug)]
pub struct Job {
    pub site: Site,
    pub shape: Shape,
    /// Paths that are started: the first ones.
    pub active: usize,
    /// W and W H̃, m x n
    pub weight: View,
    pub weighted: View,
    /// What is kept, and what a step tries
    pub kept: State,
    pub tried: State,
    pub scratch: Scratch,
    /// Where products take their operands apart; all candidates share it.
    pub parts: View,
    /// [`SUMS`] times [`PARTS`] partial sums, and max(m, n) counts of flips, among those of all candidates
    pub sums: usize,
    pub flips: usize,
    /// err(0; H̃), and err(Ŵ; H̃) of what is kept
    pub energy: f64,
    pub error: f64,
    pub info: RefineInfo,
    /// Numbers copied to and from the device for this candidate alone.
    pub moved: usize,
}

/// The memory of one candidate.
#[derive(Clone, Copy, Debug)]
pub struct JobViews {
    kept: State,
    tried: State,
    scratch: Scratch,
}

impl JobViews {
    /// W − Ŵ, m x n
    pub fn residual(&self) -> View {
        self.scratch.residual
    }

    pub fn place(layout: &mut Layout, shape: Shape) -> Self {
        Self {
            kept: State::place(layout, shape),
            tried: State::place(layout, shape),
            scratch: Scratch::place(layout, shape),
        }
    }
}

impl Job {
    pub fn new(site: Site, shape: Shape, (weight, weighted): (View, View), views: JobViews) -> Self {
        let JobViews { kept, tried, scratch } = views;
        Self {
            site,
            shape,
            active: 0,
            weight,
            weighted,
            kept,
            tried,
            scratch,
            parts: View::EMPTY,
            sums: 0,
            flips: 0,
            energy: 0.0,
            error: f64::INFINITY,
            info: RefineInfo::default(),
            moved: 0,
        }
    }

    /// A product of this candidate's.
    pub fn product(&self, a: View, b: View, c: View) -> Gemm {
        Gemm::new(a, b, c).in_parts(self.parts)
    }

    /// Columns of the started paths side by side.
    pub fn width(&self) -> usize {
        self.active * self.shape.rank
    }

    /// The started paths among all.
    pub fn all(&self, side_by_side: View) -> View {
        side_by_side.part((0, 0), (side_by_side.rows, self.width()))
    }

    /// The columns of path `p`.
    pub fn path(&self, side_by_side: View, p: usize) -> View {
        let r = self.shape.rank;
        side_by_side.part((0, p * r), (side_by_side.rows, r))
    }

    /// The block of paths `a` and `c` of a matrix with a row and a column for each column of the factors.
    pub fn block(&self, square: View, a: usize, c: usize) -> View {
        let r = self.shape.rank;
        square.part((a * r, c * r), (r, r))
    }

    /// The rows of path `a` and the columns of all started ones.
    pub fn band(&self, square: View, a: usize) -> View {
        let r = self.shape.rank;
        square.part((a * r, 0), (r, self.width()))
    }

    /// The block of all started paths.
    pub fn square(&self, square: View) -> View {
        square.part((0, 0), (self.width(), self.width()))
    }

    /// Where h, g and l of path `p` of what is tried are.
    pub fn h(&self, p: usize) -> usize {
        self.tried.h.at + p * self.shape.m
    }

    pub fn g(&self, p: usize) -> usize {
        self.tried.g.at + p * self.shape.n
    }

    pub fn l(&self, p: usize) -> usize {
        self.tried.l + p * self.shape.rank
    }

    /// The started paths other than `p`.
    pub fn others(&self, p: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.active).filter(move |c| *c != p)
    }

    /// Where partial sums number `k` are.
    pub fn sum(&self, k: usize) -> usize {
        self.sums + k * PARTS
    }
}

/// A vector as a column.
pub fn column(at: usize, len: usize) -> View {
    View { at, rows: len, cols: 1, stride: 1 }
}
