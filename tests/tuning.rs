//! Gradients of a whole block against central differences of the same block written plainly in f64, for every family that
//! tuning takes, and reconstruction of a block of the embedded model.

mod common;
#[path = "common/tiny.rs"]
mod tiny;

use std::collections::BTreeMap;

use lapidary::compress::calibration::CalibrationParams;
use lapidary::compress::observer::Silent;
use lapidary::compress::plan::Plan;
use lapidary::compress::recipe::Recipe;
use lapidary::compress::tune::block::{InputGradient, Sum, TunedBlock};
use lapidary::compress::tune::{
    Extent, Form, Rates, Reconstruction, TuneError, TuneParams, Tuner, Verdict, Windows, working_set,
};
use lapidary::compress::{Encoder, PackParams, pack};
use lapidary::device::Device;
use lapidary::device::arena::{Arena, Layout, Precision, View};
use lapidary::model::{
    Block, Checkpoint, Config, Context, Decoder, Family, Linear, LinearName, NoCapture, SplitMix64,
};
use lapidary::ops::adam::Adam;
use lapidary::ops::attention::Mask;

/// Largest error of a gradient relative to the largest of its kind in the layer: chained f32 sums of up to 88 products,
/// forward and back.
const TOLERANCE: f64 = 1e-4;

/// Step of a central difference in f64, relative to the number's size: its error is 1e-10 of the third derivative.
const STEP: f64 = 1e-5;

/// One linear layer in f64.
#[derive(Clone)]
enum Layer {
    Dense(Vec<f64>),
    /// h, l, g, U, V of each path: the order in which tuning lists them.
    Packed(Vec<[Vec<f64>; 5]>),
}

/// A block in f64, formulas one after another.
struct Plain {
    config: Config,
    mask: Mask,
    block: Block,
    layers: Vec<Layer>,
}

impl Plain {
    fn new(config: &Config, block: &Block) -> Self {
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

    fn forward(&self, x: &[f64], window: usize) -> Vec<f64> {
        let norms = self.block.norms();
        let normed = self.norm(x, &norms.attention);
        let head_norm = |x: Vec<f64>, norm: &Option<Vec<f32>>| match norm {
            Some(norm) => self.norm(&x, norm),
            None => x,
        };
        let mut q = head_norm(self.product(LinearName::Q, &normed), &norms.q);
        let mut k = head_norm(self.product(LinearName::K, &normed), &norms.k);
        let v = self.product(LinearName::V, &normed);
        let (width, kv_width) =
            (self.config.heads * self.config.head_dim, self.config.kv_heads * self.config.head_dim);
        self.turn(&mut q, width, window);
        self.turn(&mut k, kv_width, window);
        let mixed = self.attend([&q, &k, &v], window);
        let middle = add(x, &self.product(LinearName::O, &mixed));
        let normed = self.norm(&middle, &norms.mlp);
        let gate = self.product(LinearName::Gate, &normed);
        let up = self.product(LinearName::Up, &normed);
        let gated: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        add(&middle, &self.product(LinearName::Down, &gated))
    }

    /// The numbers behind the optimiser's items, in its order.
    fn numbers(&mut self, item: usize) -> &mut Vec<f64> {
        let vectors = self.layers.iter_mut().flat_map(|layer| match layer {
            Layer::Dense(weight) => vec![weight],
            Layer::Packed(paths) => paths.iter_mut().flatten().collect(),
        });
        vectors.into_iter().nth(item).unwrap()
    }
}

fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|x| f64::from(*x)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

const TRAIN_ALL: Rates = Rates { scales: Some(1e-3), signs: Some(1e-3), dense: Some(1e-3) };

/// A block of random weights of a family; its layers are packed where `packed` says so.
fn random_block(family: Family, packed: impl Fn(LinearName) -> bool) -> (Config, Block) {
    let config = tiny::family(family);
    let checkpoint = tiny::checkpoint(&config, &tiny::stored(&tiny::weights(&config)));
    let mut block = Decoder::load(&checkpoint).unwrap().block(0).clone();
    let mut random = SplitMix64::new(5);
    for (k, name) in LinearName::ALL.into_iter().enumerate().filter(|(_, name)| packed(*name)) {
        let shape = name.shape(&config);
        let payload = tiny::payload(shape, 1 + k % 2, &mut random);
        block.set_linear(name, Linear::Packed { payload, in_features: shape[1] }).unwrap();
    }
    (config, block)
}

/// A block on a device, gone forward and back over two windows.
struct Differentiated {
    arena: Arena,
    items: Vec<Adam>,
    y: Vec<f32>,
    dx: Vec<f32>,
}

const WINDOW: usize = 25;

/// `at_once` of the two windows go through together.
fn differentiate(
    device: &Device,
    (config, block): (&Config, &Block),
    [x, dy]: [&[f32]; 2],
    at_once: usize,
) -> Differentiated {
    let mut layout = Layout::default();
    let placed =
        TunedBlock::place(&mut layout, (config, 0), &Form::of(block), &TRAIN_ALL, (WINDOW, at_once)).unwrap();
    let mut arena = Arena::new(device, layout.most()).unwrap();
    arena.write(0, &vec![f32::NAN; layout.most()]);
    let items = placed.load(&mut arena, block);
    let (rows, numbers) = (at_once * WINDOW, at_once * WINDOW * config.hidden);
    let (mut y, mut dx) = (Vec::new(), Vec::new());
    for (round, (x, dy)) in x.chunks(numbers).zip(dy.chunks(numbers)).enumerate() {
        let flow = *placed.flow();
        let read = |arena: &mut Arena, view: View| arena.read(view.at, numbers).unwrap();
        arena.write(flow.x.at, x);
        placed.forward(&mut arena, rows, Precision::F32);
        y.extend(read(&mut arena, flow.y));
        arena.write(flow.y.at, dy);
        let sum = if round == 0 { Sum::Begin } else { Sum::Continue };
        placed.backward(&mut arena, rows, Precision::F32, (sum, InputGradient::Wanted));
        dx.extend(read(&mut arena, flow.y));
    }
    placed.differentiate(&mut arena, Precision::F32);
    Differentiated { arena, items, y, dx }
}

fn check_gradients(family: Family, packed: fn(LinearName) -> bool) {
    let (config, block) = random_block(family, packed);
    let mut random = SplitMix64::new(11);
    let mut numbers =
        || (0..2 * WINDOW * config.hidden).map(|_| random.signed() as f32).collect::<Vec<f32>>();
    let (x, dy) = (numbers(), numbers());
    let (xs, slopes) = (wide(&x), wide(&dy));
    for (device, at_once) in common::tuning_devices().iter().flat_map(|device| [(device, 2), (device, 1)]) {
        let what = format!("{family:?} on {}, {at_once} at once", device.name());
        let mut plain = Plain::new(&config, &block);
        let mut found = differentiate(device, (&config, &block), [&x, &dy], at_once);
        let loss = |plain: &Plain, x: &[f64]| dot(&plain.forward(x, WINDOW), &slopes);
        let exact = plain.forward(&xs, WINDOW);
        assert_near(&format!("{what}: output"), &found.y, &exact, &(0..exact.len()).collect::<Vec<_>>());
        let by_input = |k: &usize| {
            let at = |by: f64| {
                let mut moved = xs.clone();
                moved[*k] += by;
                loss(&plain, &moved)
            };
            (at(STEP) - at(-STEP)) / (2.0 * STEP)
        };
        let some: Vec<usize> = (0..xs.len()).step_by(xs.len() / 12).collect();
        let expected: Vec<f64> = some.iter().map(by_input).collect();
        assert_near(&format!("{what}: input"), &found.dx, &expected, &some);
        for (index, item) in found.items.iter().enumerate() {
            let gradient = found.arena.read(item.gradient, item.len).unwrap();
            let some: Vec<usize> = (0..item.len).step_by(item.len / 5 + 1).collect();
            let mut difference = |k: &usize| {
                let start = plain.numbers(index)[*k];
                let step = STEP * start.abs().max(1e-3);
                let mut at = |by: f64| {
                    plain.numbers(index)[*k] = start + by;
                    loss(&plain, &xs)
                };
                let slope = (at(step) - at(-step)) / (2.0 * step);
                plain.numbers(index)[*k] = start;
                slope
            };
            let expected: Vec<f64> = some.iter().map(&mut difference).collect();
            assert_near(
                &format!("{what}: item {index} of {} numbers", item.len),
                &gradient,
                &expected,
                &some,
            );
        }
    }
}

/// `expected` are the numbers of `found` at some places.
fn assert_near(what: &str, found: &[f32], expected: &[f64], places: &[usize]) {
    let largest = found.iter().fold(0.0, |most: f64, x| most.max(f64::from(x.abs())));
    assert!(found.iter().all(|x| x.is_finite()) && largest > 0.0, "{what}: {largest}");
    for (place, expected) in places.iter().zip(expected) {
        let apart = (f64::from(found[*place]) - expected).abs() / largest;
        assert!(apart <= TOLERANCE, "{what}, number {place}: {}, expected {expected}", found[*place]);
    }
}

#[test]
fn gradients_of_dense_blocks_are_central_differences() {
    for family in [Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3] {
        check_gradients(family, |_| false);
    }
}

#[test]
fn gradients_of_packed_blocks_are_central_differences() {
    for family in [Family::Llama, Family::Qwen3] {
        check_gradients(family, |_| true);
        check_gradients(family, |name| matches!(name, LinearName::Q | LinearName::Up));
    }
}

/// The embedded model's second block, packed without data, and what it should give.
struct Embedded {
    config: Config,
    original: Block,
    packed: Block,
    input: Vec<f32>,
    target: Vec<f32>,
}

const POSITIONS: usize = 48;
const FIT: usize = 40;

fn embedded() -> Embedded {
    let checkpoint = Checkpoint::open(common::tiny("")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("packed");
    let params = PackParams {
        output: output.clone(),
        plan: Plan::uniform(1.0),
        recipe: Recipe::dual_svid(),
        encoder: Encoder::Reference,
        text: None,
        calibration: CalibrationParams { window: 48, fit_tokens: None, heldout_tokens: None },
        resume: false,
    };
    pack(&checkpoint, params, &Silent).unwrap();
    let original = Decoder::load(&checkpoint).unwrap();
    let packed = Decoder::load(&Checkpoint::open(&output).unwrap()).unwrap();
    let text = std::fs::read_to_string(common::tiny("calibration.txt")).unwrap();
    let tokens = checkpoint.tokenizer().unwrap().encode(&text).unwrap();
    let mut streams = [&original, &packed].map(|decoder| {
        let mut x = decoder.embed(&tokens[..POSITIONS * (FIT + 10)]).unwrap();
        decoder.block(0).forward(&mut x, Context::Windows { len: POSITIONS }, &mut NoCapture);
        x
    });
    original.block(1).forward(&mut streams[0], Context::Windows { len: POSITIONS }, &mut NoCapture);
    let [target, input] = streams;
    let (config, blocks) = (checkpoint.config().clone(), [original.block(1), packed.block(1)]);
    let [original, packed] = blocks.map(Clone::clone);
    Embedded { config, original, packed, input, target }
}

impl Embedded {
    fn windows(&self) -> Windows<'_> {
        Windows { input: &self.input, target: &self.target, positions: POSITIONS, fit: FIT }
    }

    fn tune(&self, device: &Device, block: &Block, params: &TuneParams) -> Reconstruction {
        let mut tuner = Tuner::new(device).unwrap();
        tuner.reconstruct(&self.config, block, &self.windows(), params).unwrap()
    }

    /// ‖block(input) − target‖² over the held-out windows, on the host.
    fn distance(&self, block: &Block) -> f64 {
        let from = FIT * POSITIONS * self.config.hidden;
        let mut y = self.input[from..].to_vec();
        block.forward(&mut y, Context::Windows { len: POSITIONS }, &mut NoCapture);
        y.iter().zip(&self.target[from..]).map(|(y, t)| (f64::from(*y) - f64::from(*t)).powi(2)).sum()
    }
}

fn bytes(linears: &[(LinearName, Linear)]) -> BTreeMap<LinearName, Vec<u8>> {
    let bytes = |linear: &Linear| match linear {
        Linear::Dense(tensor) => tensor.bytes.as_slice().to_vec(),
        Linear::Packed { payload, .. } => payload.bytes().as_slice().to_vec(),
    };
    linears.iter().map(|(name, linear)| (*name, bytes(linear))).collect()
}

#[test]
fn a_reconstructed_block_is_closer_on_text_it_has_not_seen() {
    let embedded = embedded();
    let params = TuneParams { passes: 8, batch: 96, ..TuneParams::default() };
    for device in common::tuning_devices() {
        let tuned = embedded.tune(&device, &embedded.packed, &params);
        let report = &tuned.report;
        println!("{}: {report:?}", device.name());
        assert_eq!((report.verdict.clone(), report.steps), (Verdict::Kept, 8 * 20));
        assert_eq!(tuned.linears.len(), 7);
        assert!(report.heldout.after < 0.7 * report.heldout.before, "{:?}", report.heldout);
        assert!(report.passes[7] < report.passes[0], "{:?}", report.passes);
        // The host's own forward pass agrees with the report.
        let mut block = embedded.packed.clone();
        for (name, linear) in &tuned.linears {
            block.set_linear(*name, linear.clone()).unwrap();
        }
        let ratio = embedded.distance(&block) / embedded.distance(&embedded.packed);
        assert!((ratio / (report.heldout.after / report.heldout.before) - 1.0).abs() < 1e-3, "{ratio}");
        let again = embedded.tune(&device, &embedded.packed, &params);
        assert_eq!(bytes(&again.linears), bytes(&tuned.linears), "{}: the same bytes", device.name());
    }
}

#[test]
fn what_has_no_rate_stays() {
    let embedded = embedded();
    let frozen = Rates { scales: Some(1e-3), signs: None, dense: None };
    let params = TuneParams { passes: 2, batch: 200, rates: frozen, ..TuneParams::default() };
    let tuned = embedded.tune(&Device::Host, &embedded.packed, &params);
    for (name, linear) in &tuned.linears {
        let Linear::Packed { payload, .. } = linear else { panic!("{name:?} is dense") };
        let Linear::Packed { payload: before, .. } = embedded.packed.linear(*name) else { panic!() };
        for (now, before) in payload.paths().zip(before.paths()) {
            assert!(now.u == before.u && now.v == before.v, "{name:?}: signs stay");
            assert!(now.h.iter().ne(before.h.iter()), "{name:?}: scales do not");
        }
    }
}

#[test]
fn dense_layers_make_up_for_packed_ones() {
    let embedded = embedded();
    let mut block = embedded.original.clone();
    for name in [LinearName::Q, LinearName::K, LinearName::V] {
        block.set_linear(name, embedded.packed.linear(name).clone()).unwrap();
    }
    let rates = Rates { scales: None, signs: None, dense: Some(1e-3) };
    let params = TuneParams { passes: 3, batch: 200, rates, ..TuneParams::default() };
    let tuned = embedded.tune(&Device::Host, &block, &params);
    assert_eq!(tuned.report.verdict, Verdict::Kept, "{:?}", tuned.report);
    let names: Vec<LinearName> = tuned.linears.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, [LinearName::O, LinearName::Gate, LinearName::Up, LinearName::Down]);
    assert!(tuned.linears.iter().all(|(_, linear)| matches!(linear, Linear::Dense(_))));
}

#[test]
fn what_makes_nothing_better_is_not_kept() {
    let embedded = embedded();
    // Steps as long as the latents turn signs at random.
    let rates = Rates { scales: Some(1.0), signs: Some(1.0), dense: None };
    let params = TuneParams { passes: 1, batch: 200, rates, ..TuneParams::default() };
    let tuned = embedded.tune(&Device::Host, &embedded.packed, &params);
    assert_ne!(tuned.report.verdict, Verdict::Kept, "{:?}", tuned.report);
    assert!(tuned.linears.is_empty());
}

#[test]
fn bad_input_is_named() {
    let mut embedded = embedded();
    let mut tuner = Tuner::new(&Device::Host).unwrap();
    let params = TuneParams { passes: 1, ..TuneParams::default() };
    let mut try_it = |windows: Windows<'_>, params: &TuneParams| -> String {
        let config = &embedded.config;
        tuner.reconstruct(config, &embedded.packed, &windows, params).unwrap_err().to_string()
    };
    let good = Windows { input: &embedded.input, target: &embedded.target, positions: POSITIONS, fit: FIT };
    let short = Windows { target: &embedded.target[1..], ..good };
    assert!(try_it(short, &params).contains("the target of block 1 holds"));
    assert!(try_it(Windows { fit: 50, ..good }, &params).contains("50 windows of which 50 are to be fitted"));
    let none = Rates { scales: None, signs: None, dense: Some(1e-3) };
    let message = try_it(good, &TuneParams { rates: none, ..params });
    assert!(message.contains("7 packed layers, 0 dense ones"), "{message}");
    let mut input = embedded.input.clone();
    input[1000] = f32::NAN;
    let message = try_it(Windows { input: &input, ..good }, &params);
    assert!(message.contains("the input of block 1 is NaN at position 5"), "{message}");
    embedded.config.head_dim = 512;
    let windows = embedded.windows();
    let error = tuner.reconstruct(&embedded.config, &embedded.packed, &windows, &params).unwrap_err();
    assert!(matches!(error, TuneError::HeadDim { head_dim: 512 }), "{error}");
}

#[test]
fn a_block_of_a_7b_model_fits_beside_its_windows() {
    let config = Config {
        hidden: 4096,
        intermediate: 11_008,
        heads: 32,
        kv_heads: 32,
        head_dim: 128,
        ..tiny::config(false)
    };
    let forms = LinearName::ALL.map(|name| {
        let [rows, cols] = name.shape(&config);
        let budget = lapidary::blr::rank::Budget { bits: 1.0, factor: 1.0 };
        let rank = lapidary::blr::rank::rank_for(rows, cols, 2, budget).unwrap().rank;
        Form::Packed(lapidary::blr::payload::Shape { paths: 2, rank, rows, cols })
    });
    let extent = Extent { positions: 2048, windows: 128 };
    let bytes = working_set(&config, &forms, &TuneParams::default(), extent).unwrap();
    println!("{:.2} GB", bytes as f64 / 1e9);
    assert!(bytes < 40_000_000_000, "{bytes}");
}
