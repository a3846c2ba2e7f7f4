pub use crate::device::arena::Layout;
use crate::device::arena::View;
use crate::ops::column_search::BLOCK;
use crate::ops::gemm_library::LEAST;
use crate::ops::spd_factor::SpdFactor;

/// Numbers that the largest products of an m x n weight take apart: W and H̃, each in two; none where no product fills a
/// card. Without m, those of its input alone.
pub fn parts_len(m: Option<usize>, n: usize) -> usize {
    if fills_a_card(m.unwrap_or(n), n) { 2 * (m.unwrap_or(0) + n) * n + 128 } else { 0 }
}

/// Whether products of an m x n weight fill a card by themselves.
pub fn fills_a_card(m: usize, n: usize) -> bool {
    m * n * m.max(n) >= LEAST
}

/// The shape of one candidate: a weight of m x n in `paths` paths of rank r.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub m: usize,
    pub n: usize,
    pub rank: usize,
    pub paths: usize,
}

impl Shape {
    /// Columns of the factors side by side over the paths.
    pub fn width(self) -> usize {
        self.paths * self.rank
    }
}

/// Factors and their products with the metric, the paths side by side: see [`Metric`](crate::compress::metric::Metric).
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// m x Pr, n x Pr, ±1
    pub u: View,
    pub v: View,
    /// One row a path: m, n
    pub h: View,
    pub g: View,
    /// Pr
    pub l: usize,
    /// B = V diag(g), H̃B: n x Pr
    pub b: View,
    pub hb: View,
    /// W H̃ B: m x Pr
    pub wb: View,
    /// BᵀH̃B: Pr x Pr
    pub bhb: View,
}

impl State {
    /// All of it, as one vector.
    pub fn whole(&self) -> View {
        View::vector(self.u.at, self.bhb.at + self.bhb.span() - self.u.at)
    }

    pub fn place(layout: &mut Layout, shape: Shape) -> Self {
        let (m, n, width) = (shape.m, shape.n, shape.width());
        Self {
            u: layout.matrix(m, width),
            v: layout.matrix(n, width),
            h: layout.matrix(shape.paths, m),
            g: layout.matrix(shape.paths, n),
            l: layout.vector(width),
            b: layout.matrix(n, width),
            hb: layout.matrix(n, width),
            wb: layout.matrix(m, width),
            bhb: layout.matrix(width, width),
        }
    }
}

/// What the steps of one candidate write and nobody keeps.
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    /// m x Pr: Λ = diag(h) U diag(l)
    pub lambda: View,
    /// m x Pr each
    pub left: [View; 2],
    /// n x r each
    pub right: [View; 4],
    /// Pr x Pr: ΛᵀΛ
    pub gram: View,
    /// r x r each
    pub small: [View; 4],
    /// The system for g (n x n) or for l (Pr x Pr)
    pub system: View,
    pub factor: SpdFactor,
    /// Vectors of max(m, n, Pr)
    pub vectors: [usize; 5],
    /// Errors of a block of columns, [`BLOCK`] x r
    pub errors: View,
    /// Flags of the polar factor
    pub done: usize,
    pub status: usize,
    /// (m + n) x r each: rows to be rotated, the same weighted, their signs
    pub stack: [View; 3],
    /// m x n each; the residual of a fit, and its product with a Gram
    pub residual: View,
    pub product: View,
}

impl Scratch {
    pub fn place(layout: &mut Layout, shape: Shape) -> Self {
        let Shape { m, n, rank: r, .. } = shape;
        let width = shape.width();
        let order = n.max(width);
        let longest = m.max(order);
        let system = layout.matrix(order, order);
        let blocks = SpdFactor::blocks_len(order);
        let factor = SpdFactor {
            a: system,
            d: layout.vector(order),
            blocks: layout.vector(blocks),
            inverses: layout.vector(blocks),
            status: layout.vector(1),
            parts: View::EMPTY,
        };
        Self {
            lambda: layout.matrix(m, width),
            left: [(); 2].map(|()| layout.matrix(m, width)),
            right: [(); 4].map(|()| layout.matrix(n, r)),
            gram: layout.matrix(width, width),
            small: [(); 4].map(|()| layout.matrix(r, r)),
            system,
            factor,
            vectors: [(); 5].map(|()| layout.vector(longest)),
            errors: layout.matrix(BLOCK, r),
            done: layout.vector(1),
            status: layout.vector(1),
            stack: [(); 3].map(|()| layout.matrix(m + n, r)),
            residual: layout.matrix(m, n),
            product: layout.matrix(m, n),
        }
    }
}
