use rayon::prelude::*;

use crate::blr::Payload;
use crate::device::arena::{Arena, Layout, View};
use crate::model::{Block, Config, Linear, LinearName, Tensor};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::scale::{Scale, scale};

/// Where the weights of one block lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    pub attention_norm: usize,
    pub mlp_norm: usize,
    /// Norms of each head of q and of k.
    pub head_norms: Option<[usize; 2]>,
    /// Norms of what attention and the gated unit give.
    pub branch_norms: Option<[usize; 2]>,
    /// In the order of [`LinearName::ALL`], as `biases`.
    linears: [View; 7],
    biases: [Option<usize>; 7],
}

impl Weights {
    pub fn place(layout: &mut Layout, config: &Config) -> Self {
        let [attention_norm, mlp_norm] = [(); 2].map(|()| layout.vector(config.hidden));
        let linears = LinearName::ALL.map(|name| {
            let [rows, cols] = name.shape(config);
            layout.matrix(rows, cols)
        });
        let biases = LinearName::ALL.map(|name| {
            let [rows, _] = name.shape(config);
            config.has_bias(name).then(|| layout.vector(rows))
        });
        let traits = config.family.traits();
        let mut norms = |wanted: bool, len| wanted.then(|| [(); 2].map(|()| layout.vector(len)));
        let head_norms = norms(traits.qk_norms, config.head_dim);
        let branch_norms = norms(traits.post_norms, config.hidden);
        Self { attention_norm, mlp_norm, head_norms, branch_norms, linears, biases }
    }

    /// Where the bias of a layer lies that has one.
    pub fn bias(&self, name: LinearName) -> Option<usize> {
        self.biases[name as usize]
    }

    pub fn linear(&self, name: LinearName) -> View {
        self.linears[name as usize]
    }

    pub fn write(&self, arena: &mut Arena, block: &Block, factors: &Factors) {
        arena.write(self.attention_norm, &block.norms.attention);
        arena.write(self.mlp_norm, &block.norms.mlp);
        let pairs = [
            (self.head_norms, [&block.norms.q, &block.norms.k]),
            (self.branch_norms, [&block.norms.after_attention, &block.norms.after_mlp]),
        ];
        for (places, norms) in pairs {
            for (at, norm) in places.iter().flatten().zip(norms.into_iter().flatten()) {
                arena.write(*at, norm);
            }
        }
        for name in LinearName::ALL {
            write_linear(arena, block.linear(name), self.linear(name), factors);
            if let (Some(at), Some(bias)) = (self.bias(name), block.bias(name)) {
                arena.write(at, bias);
            }
        }
    }
}

/// Room for the factors of one packed layer, while they are multiplied out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors {
    /// m x r and r x n, of any layer
    u: usize,
    v: usize,
    h: usize,
    l: usize,
    g: usize,
}

impl Factors {
    /// For any rank that a layer of the model may have.
    pub fn place(layout: &mut Layout, config: &Config) -> Self {
        let shapes = LinearName::ALL.map(|name| name.shape(config));
        let rank = |[m, n]: [usize; 2]| m.min(n.next_multiple_of(8));
        let most = |len: &dyn Fn([usize; 2]) -> usize| shapes.iter().map(|s| len(*s)).max().unwrap_or(0);
        Self {
            u: layout.vector(most(&|[m, n]| m * rank([m, n]))),
            v: layout.vector(most(&|[m, n]| n * rank([m, n]))),
            h: layout.vector(most(&|[m, _]| m)),
            l: layout.vector(most(&rank)),
            g: layout.vector(most(&|[_, n]| n)),
        }
    }
}

/// Writes a layer as f32.
pub(super) fn write_linear(arena: &mut Arena, linear: &Linear, to: View, factors: &Factors) {
    match linear {
        Linear::Dense(tensor) => write_dense(arena, tensor, to),
        Linear::Packed { payload, .. } => multiply_out(arena, payload, to, factors),
    }
}

fn write_dense(arena: &mut Arena, tensor: &Tensor, to: View) {
    let mut numbers = vec![0.0; to.len()];
    numbers
        .par_chunks_exact_mut(to.cols)
        .enumerate()
        .with_min_len(64)
        .for_each(|(row, numbers)| tensor.read_row(row, numbers));
    arena.write(to.at, &numbers);
}

/// `Ŵ = Σ_p diag(h) U diag(l) Vᵀ diag(g)`; signs and scales go up, the product is the device's.
fn multiply_out(arena: &mut Arena, payload: &Payload, to: View, factors: &Factors) {
    let rank = payload.rank();
    let (u, v) = (View::new(factors.u, to.rows, rank), View::new(factors.v, rank, to.cols));
    for (p, path) in payload.paths().enumerate() {
        arena.write(factors.h, &path.h.to_f32());
        arena.write(factors.l, &path.l.to_f32());
        arena.write(factors.g, &path.g.to_f32()[..to.cols]);
        arena.write(u.at, &signs(u, |i| path.u_row(i)));
        arena.write(v.at, &signs(v, |k| path.v_row(k)));
        let scales = [Scale::new(u, u).rows(factors.h).cols(factors.l), Scale::new(v, v).cols(factors.g)];
        scale(arena, &scales);
        gemm(arena, &[Gemm::new(u, v, to).beta(if p == 0 { 0.0 } else { 1.0 })]);
    }
}

/// ±1 for the bits of each row, as many as it has columns.
fn signs<'a>(shape: View, bits: impl Fn(usize) -> &'a [u8] + Sync) -> Vec<f32> {
    let mut numbers = vec![0.0; shape.len()];
    numbers.par_chunks_exact_mut(shape.cols).enumerate().with_min_len(64).for_each(|(row, numbers)| {
        for (numbers, byte) in numbers.chunks_mut(8).zip(bits(row)) {
            for (k, number) in numbers.iter_mut().enumerate() {
                *number = if byte >> k & 1 == 1 { 1.0 } else { -1.0 };
            }
        }
    });
    numbers
}
