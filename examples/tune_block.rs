//! How fast a block is tuned: `cargo run --release --example tune_block -- [auto|cuda|host] [tokens]`.
//!
//! A block of SmolLM2-135M's shapes with random weights, packed at 1 bit with random signs, over 196,608 random positions.
//! Prints milliseconds for each part of a step of 16,384, and seconds for eight passes; then seconds for one pass of
//! distilling a whole model of these shapes over a third as many positions.

#[path = "../tests/common/tiny.rs"]
mod tiny;

use std::time::Instant;

use lapidary::blr::Payload;
use lapidary::blr::payload::PathParts;
use lapidary::blr::rank::{Budget, rank_for};
use lapidary::compress::tune::block::{InputGradient, Sum, TunedBlock};
use lapidary::compress::tune::room::{Room, placed};
use lapidary::compress::tune::{Form, TuneParams, Tuner, Windows};
use lapidary::device::arena::{Arena, Layout, Precision};
use lapidary::device::{Device, DevicePolicy, select};
use lapidary::model::{Block, Config, Decoder, Linear, LinearName, SplitMix64};
use lapidary::ops::adam::adam;
use lapidary::ops::attention::{Heads, Mask};
use lapidary::ops::attention_backward::{
    AttentionGradient, KeptAttention, attention_backward, attention_kept,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Positions of one step.
const BATCH: usize = 16_384;

/// Positions of a window.
const WINDOWS: [usize; 2] = [512, 2048];

/// Those of SmolLM2-135M and of Gemma 3 270M.
const HEADS: [Heads; 2] =
    [Heads { heads: 9, kv_heads: 3, head_dim: 64 }, Heads { heads: 4, kv_heads: 1, head_dim: 256 }];

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let policy: DevicePolicy = args.next().as_deref().unwrap_or("auto").parse()?;
    let tokens: usize = args.next().as_deref().unwrap_or("196608").parse()?;
    let selection = select(policy)?;
    println!("{}", selection.reason);
    let device = selection.device;
    let model = Config {
        hidden: 576,
        intermediate: 1536,
        layers: 30,
        vocab: 49_152,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        max_positions: 2048,
        ..tiny::config(true)
    };
    let config = Config { layers: 1, vocab: 1, ..model.clone() };
    let block = packed(&config)?.block(0).clone();
    let batch = BATCH.min(tokens);
    for window in WINDOWS {
        for heads in HEADS {
            attention(&device, heads, window, batch)?;
        }
        for precision in [Precision::F32, Precision::Tf32] {
            parts(&device, (&config, &block), (window, batch), precision)?;
        }
    }
    for (window, precision) in [(2048, Precision::Tf32), (2048, Precision::F32), (512, Precision::Tf32)] {
        whole(&device, (&config, &block), (window, tokens), precision)?;
    }
    distill(&device, &packed(&model)?, tokens / 3)
}

/// Milliseconds of one run of a few, the first left out.
fn time(what: &str, arena: &mut Arena, mut work: impl FnMut(&mut Arena)) -> Result<()> {
    const RUNS: usize = 5;
    work(arena);
    arena.finish()?;
    let began = Instant::now();
    (0..RUNS).for_each(|_| work(arena));
    arena.finish()?;
    println!("{:9.3} ms  {what}", began.elapsed().as_secs_f64() * 1e3 / RUNS as f64);
    Ok(())
}

fn attention(device: &Device, heads: Heads, window: usize, batch: usize) -> Result<()> {
    let mut layout = Layout::default();
    let items: Vec<AttentionGradient> = (0..batch / window)
        .map(|_| {
            let [q, out, dout, dq] = [(); 4].map(|()| layout.matrix(window, heads.width()));
            let [k, v, dk, dv] = [(); 4].map(|()| layout.matrix(window, heads.kv_width()));
            let [log_sums, inner] = [(); 2].map(|()| layout.vector(window * heads.heads));
            AttentionGradient { forward: KeptAttention { q, k, v, out, log_sums }, dout, dq, dk, dv, inner }
        })
        .collect();
    let mut arena = Arena::new(device, layout.most())?;
    arena.write(0, &noise(layout.most(), 1.0));
    let forward: Vec<KeptAttention> = items.iter().map(|item| item.forward).collect();
    for precision in [Precision::F32, Precision::Tf32] {
        let what = |pass: &str| {
            format!("attention {pass}, {} windows of {window}, {heads:?}, {precision:?}", items.len())
        };
        let shape = (heads, Mask::Causal);
        time(&what("forward"), &mut arena, |arena| attention_kept(arena, shape, &forward, precision))?;
        time(&what("backward"), &mut arena, |arena| attention_backward(arena, shape, &items, precision))?;
    }
    Ok(())
}

fn parts(
    device: &Device,
    (config, block): (&Config, &Block),
    (window, batch): (usize, usize),
    precision: Precision,
) -> Result<()> {
    let (forms, rates) = (Form::of(block), TuneParams::default().rates);
    let place =
        |room: &mut Room| TunedBlock::place(room, (config, 0), &forms, &rates, (window, batch / window));
    let (placed, len) = placed(place)?;
    let mut arena = Arena::new(device, len)?;
    let items = placed.load(&mut arena, block);
    arena.write(placed.flow().x.at, &noise(batch * config.hidden, 1.0));
    let what = |part: &str| format!("{part}, {batch} positions in windows of {window}, {precision:?}");
    time(&what("forward"), &mut arena, |arena| placed.forward(arena, batch, precision))?;
    let sum = (Sum::Begin, InputGradient::Unwanted);
    time(&what("backward"), &mut arena, |arena| placed.backward(arena, batch, precision, sum))?;
    time(&what("packed gradients"), &mut arena, |arena| placed.differentiate(arena, precision))?;
    time(&what("adam"), &mut arena, |arena| adam(arena, 1, &items))?;
    time(&what("multiplying out"), &mut arena, |arena| placed.compose(arena, precision))
}

fn whole(
    device: &Device,
    (config, block): (&Config, &Block),
    (window, tokens): (usize, usize),
    precision: Precision,
) -> Result<()> {
    let windows = tokens.div_ceil(window) + 16_384.min(tokens) / window;
    let numbers = windows * window * config.hidden;
    let (input, target) = (noise(numbers, 1.0), noise(numbers, 2.0));
    let fit = tokens.div_ceil(window);
    let windows = Windows { input: &input, target: &target, positions: window, fit };
    let params = TuneParams { precision, ..TuneParams::default() };
    let mut tuner = Tuner::new(device)?;
    for run in ["first", "second"] {
        let report = tuner.reconstruct(config, block, &windows, &params)?.report;
        println!(
            "{:9.3} s   {run} block, {} passes over {} positions in windows of {window}, {precision:?}: {:.2} GB, {:?}",
            report.seconds,
            params.passes,
            fit * window,
            report.bytes as f64 / 1e9,
            report.heldout,
        );
    }
    Ok(())
}

fn distill(device: &Device, decoder: &Decoder, tokens: usize) -> Result<()> {
    const WINDOW: usize = 512;
    let (fit, heldout) = (tokens.div_ceil(WINDOW), BATCH.min(tokens) / WINDOW);
    let numbers = (fit + heldout) * WINDOW * decoder.config().hidden;
    let (input, target) = (noise(numbers, 1.0), noise(numbers, 2.0));
    let windows = Windows { input: &input, target: &target, positions: WINDOW, fit };
    let params = TuneParams { passes: 1, ..TuneParams::distill() };
    let report = Tuner::new(device)?.distill(decoder, &windows, &params)?.report;
    println!(
        "{:9.3} s   distilling, {} steps over {} positions, all judged before and after: {:.2} GB, {:?}",
        report.seconds,
        report.trained.steps,
        fit * WINDOW,
        report.bytes as f64 / 1e9,
        report.heldout,
    );
    Ok(())
}

/// A model of random weights whose layers are packed with random signs.
fn packed(config: &Config) -> Result<Decoder> {
    let checkpoint = tiny::checkpoint(config, &tiny::stored(&tiny::weights(config)));
    let mut decoder = Decoder::load(&checkpoint)?;
    let mut random = SplitMix64::new(5);
    for (layer, name) in (0..config.layers).flat_map(|layer| LinearName::ALL.map(|name| (layer, name))) {
        let shape = name.shape(config);
        let payload = random_payload(shape, &mut random)?;
        decoder.set_linear(layer, name, Linear::Packed { payload, in_features: shape[1] })?;
    }
    Ok(decoder)
}

/// Two paths at one bit.
fn random_payload([rows, cols]: [usize; 2], random: &mut SplitMix64) -> Result<Payload> {
    let budget = Budget { bits: 1.0, factor: 1.0 };
    let rank = rank_for(rows, cols, 2, budget).ok_or("too narrow")?.rank;
    let mut scales = |len: usize, size: f64| -> Vec<half::f16> {
        (0..len).map(|_| half::f16::from_f64(size * (0.5 + random.uniform()))).collect()
    };
    let size = 1.0 / (2.0 * (rank * cols) as f64).sqrt();
    let (h, g, l) = (scales(rows, 1.0), scales(cols, 1.0), scales(rank, size));
    let mut signs = |len: usize| -> Vec<i8> {
        (0..len).map(|_| if random.next_u64() & 1 == 1 { 1 } else { -1 }).collect()
    };
    let factors = [(); 2].map(|()| (signs(rows * rank), signs(cols * rank)));
    let parts = [0, 1].map(|p| PathParts { h: &h, g: &g, l: &l, u: &factors[p].0, v: &factors[p].1 });
    Ok(Payload::build(rows, cols, rank, &parts)?)
}

fn noise(count: usize, size: f64) -> Vec<f32> {
    let mut random = SplitMix64::new(1);
    (0..count).map(|_| (size * random.signed()) as f32).collect()
}
