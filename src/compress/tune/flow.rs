use crate::device::arena::{Layout, View};
use crate::model::Config;
use crate::ops::attention::Heads;

/// What flows through a block and is kept for its gradient, a row a position.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// What enters.
    pub x: View,
    /// Behind the first norm.
    pub attention: View,
    /// Before the norms of heads, where there are any: queries and keys.
    pub raw: Option<[View; 2]>,
    pub q: View,
    pub k: View,
    pub v: View,
    /// The heads' outputs, and a number for each.
    pub mixed: View,
    pub log_sums: View,
    /// What attention and the gated unit give before their norms, where there are any.
    pub branches: Option<[View; 2]>,
    /// The residual stream behind attention, and behind the second norm.
    pub middle: View,
    pub mlp: View,
    pub gate: View,
    pub up: View,
    pub gated: View,
    /// What leaves; then the gradient of the residual stream.
    pub y: View,
    /// The target, then the gradients of what the norms gave.
    pub target: View,
    pub dmixed: View,
    pub dq: View,
    pub dk: View,
    pub dv: View,
    pub inner: View,
}

impl Flow {
    pub(super) fn place(layout: &mut Layout, config: &Config, heads: Heads, rows: usize) -> Self {
        let mut matrix = |cols| layout.matrix(rows, cols);
        let (hidden, inside) = (config.hidden, config.intermediate);
        let (width, kv_width) = (heads.width(), heads.kv_width());
        Self {
            x: matrix(hidden),
            attention: matrix(hidden),
            raw: config.family.traits().qk_norms.then(|| [matrix(width), matrix(kv_width)]),
            q: matrix(width),
            k: matrix(kv_width),
            v: matrix(kv_width),
            mixed: matrix(width),
            log_sums: matrix(heads.heads),
            branches: config.family.traits().post_norms.then(|| [(); 2].map(|()| matrix(hidden))),
            middle: matrix(hidden),
            mlp: matrix(hidden),
            gate: matrix(inside),
            up: matrix(inside),
            gated: matrix(inside),
            y: matrix(hidden),
            target: matrix(hidden),
            dmixed: matrix(width),
            dq: matrix(width),
            dk: matrix(kv_width),
            dv: matrix(kv_width),
            inner: matrix(heads.heads),
        }
    }

    /// `rows` rows of all from `row` on.
    pub fn part(&self, row: usize, rows: usize) -> Self {
        let cut = |view: View| view.part((row, 0), (rows, view.cols));
        Self {
            x: cut(self.x),
            attention: cut(self.attention),
            raw: self.raw.map(|raw| raw.map(cut)),
            q: cut(self.q),
            k: cut(self.k),
            v: cut(self.v),
            mixed: cut(self.mixed),
            log_sums: cut(self.log_sums),
            branches: self.branches.map(|branches| branches.map(cut)),
            middle: cut(self.middle),
            mlp: cut(self.mlp),
            gate: cut(self.gate),
            up: cut(self.up),
            gated: cut(self.gated),
            y: cut(self.y),
            target: cut(self.target),
            dmixed: cut(self.dmixed),
            dq: cut(self.dq),
            dk: cut(self.dk),
            dv: cut(self.dv),
            inner: cut(self.inner),
        }
    }
}
