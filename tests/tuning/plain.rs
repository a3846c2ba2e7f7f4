//! A block written plainly in f64, formulas one after another.

use lapidary::model::{Block, Config, Gate, Linear, LinearName};
use lapidary::ops::attention::Mask;

/// One linear layer in f64.
#[derive(Clone)]
enum Layer {
    Dense(Vec<f64>),
    /// h, l, g, U, V of each path: the order in which tuning lists them.
    Packed(Vec<[Vec<f64>; 5]>),
}

/// A block in f64, formulas one after another.
pub struct Plain {
    config: Config,
    mask: Mask,
    block: Block,
    layers: Vec<Layer>,
}

impl Plain {
    pub fn new(config: &Config, block: &Block) -> Self {
        let layers = LinearName::ALL.map(|name| match block.linear(name) {
            Linear::Dense(tensor) => Layer::Dense(wide(&tensor.to_f32())),
            Linear::Packed { payload, in_features } => {
                let path = |path: lapidary::blr::payload::Path<'_>| {
                    let bit = |row: &[u8], k: usize| if row[k / 8] >> (k % 8) & 1 == 1 { 1.0 } else { -1.0 };
                    let (rows, rank) = (payload.rows(), payload.rank());
                    let u = (0..rows * rank).map(|at| bit(path.u_row(at / rank), at % rank)).collect();
                    let v = (0..in_features * rank).map(|at| bit(path.v_row(at % rank), at / rank)).collect();
                    let g = wide(&path.g.to_f32()[..*in_features]);
                    [wide(&path.h.to_f32()), wide(&path.l.to_f32()), g, u, v]
                };
                Layer::Packed(payload.paths().map(path).collect())
            }
        });
        let (config, mask, block) = (config.clone(), config.mask(block.layer()), block.clone());
        Self { config, mask, block, layers: layers.to_vec() }
    }

    fn product(&self, name: LinearName, x: &[f64]) -> Vec<f64> {
        let [m, n] = name.shape(&self.config);
        let weight = match &self.layers[name as usize] {
            Layer::Dense(weight) => weight.clone(),
            Layer::Packed(paths) => {
                let mut weight = vec![0.0; m * n];
                for [h, l, g, u, v] in paths {
                    let r = l.len();
                    for (at, w) in weight.iter_mut().enumerate() {
                        let (i, j) = (at / n, at % n);
                        let sum: f64 = (0..r).map(|k| u[i * r + k] * l[k] * v[j * r + k]).sum();
                        *w += h[i] * sum * g[j];
                    }
                }
                weight
            }
        };
        let bias = self.block.bias(name).map_or(vec![0.0; m], wide);
        x.chunks(n)
            .flat_map(|x| (0..m).map(|i| dot(x, &weight[i * n..][..n]) + bias[i]).collect::<Vec<_>>())
            .collect()
    }

    fn norm(&self, x: &[f64], weight: &[f32]) -> Vec<f64> {
        let n = weight.len();
        (x.chunks(n))
            .flat_map(|x| {
                let scale = 1.0 / (dot(x, x) / n as f64 + self.config.rms_eps).sqrt();
                x.iter().zip(weight).map(move |(x, w)| x * scale * f64::from(*w)).collect::<Vec<_>>()
            })
            .collect()
    }

    fn turn(&self, x: &mut [f64], width: usize, window: usize) {
        let dim = self.config.head_dim;
        let frequencies = self.config.frequencies(self.block.layer()).values(dim);
        for (row, x) in x.chunks_mut(width).enumerate() {
            for head in x.chunks_mut(dim) {
                for (i, frequency) in frequencies.iter().enumerate() {
                    let (sin, cos) = ((row % window) as f64 * frequency).sin_cos();
                    let (a, b) = (head[i], head[i + dim / 2]);
                    (head[i], head[i + dim / 2]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
    }

    fn attend(&self, [q, k, v]: [&[f64]; 3], window: usize) -> Vec<f64> {
        let Config { heads, kv_heads, head_dim: dim, .. } = self.config;
        let (width, kv_width) = (heads * dim, kv_heads * dim);
        let mut out = Vec::new();
        for (t, q) in q.chunks(width).enumerate() {
            let reach = match self.mask {
                Mask::Causal => window,
                Mask::Sliding { window } => window,
            };
            let first = (t / window * window).max((t + 1).saturating_sub(reach));
            for (head, q) in q.chunks(dim).enumerate() {
                let kv = head / (heads / kv_heads) * dim;
                let row = |x: &[f64], s: usize| x[s * kv_width + kv..][..dim].to_vec();
                let weights: Vec<f64> =
                    (first..=t).map(|s| (dot(q, &row(k, s)) / (dim as f64).sqrt()).exp()).collect();
                let total: f64 = weights.iter().sum();
                let values: Vec<Vec<f64>> = (first..=t).map(|s| row(v, s)).collect();
                out.extend(
                    (0..dim).map(|j| weights.iter().zip(&values).map(|(w, v)| w * v[j]).sum::<f64>() / total),
                );
            }
        }
        out
    }

    pub fn forward(&self, x: &[f64], window: usize) -> Vec<f64> {
        let norms = self.block.norms();
        let normed = self.norm(x, &norms.attention);
        let norm_of = |x: Vec<f64>, norm: &Option<Vec<f32>>| match norm {
            Some(norm) => self.norm(&x, norm),
            None => x,
        };
        let mut q = norm_of(self.product(LinearName::Q, &normed), &norms.q);
        let mut k = norm_of(self.product(LinearName::K, &normed), &norms.k);
        let v = self.product(LinearName::V, &normed);
        let (width, kv_width) =
            (self.config.heads * self.config.head_dim, self.config.kv_heads * self.config.head_dim);
        self.turn(&mut q, width, window);
        self.turn(&mut k, kv_width, window);
        let mixed = self.attend([&q, &k, &v], window);
        let middle = add(x, &norm_of(self.product(LinearName::O, &mixed), &norms.after_attention));
        let normed = self.norm(&middle, &norms.mlp);
        let gate = self.product(LinearName::Gate, &normed);
        let up = self.product(LinearName::Up, &normed);
        let activation = |g: f64| match self.config.family.traits().gate {
            Gate::Silu => g / (1.0 + (-g).exp()),
            Gate::GeluTanh => {
                let z = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
                0.5 * g * (1.0 + z.tanh())
            }
        };
        let gated: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| activation(*g) * u).collect();
        add(&middle, &norm_of(self.product(LinearName::Down, &gated), &norms.after_mlp))
    }

    /// The numbers behind the optimiser's items, in its order.
    pub fn numbers(&mut self, item: usize) -> &mut Vec<f64> {
        let vectors = self.layers.iter_mut().flat_map(|layer| match layer {
            Layer::Dense(weight) => vec![weight],
            Layer::Packed(paths) => paths.iter_mut().flatten().collect(),
        });
        vectors.into_iter().nth(item).unwrap()
    }
}

pub fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|x| f64::from(*x)).collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}
