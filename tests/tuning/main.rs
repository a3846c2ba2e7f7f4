//! Tuning by gradients on every device that has it: gradients of blocks, and what reconstruction and distillation make of
//! the embedded model.

#[path = "../common/mod.rs"]
mod common;
mod gradients;
mod plain;
#[path = "../common/tiny.rs"]
mod tiny;
mod weights;

use std::collections::BTreeMap;
use std::path::Path;

use lapidary::compress::calibration::CalibrationParams;
use lapidary::compress::observer::Silent;
use lapidary::compress::plan::Plan;
use lapidary::compress::recipe::Recipe;
use lapidary::compress::tune::{
    Change, Extent, Form, Linears, Rates, Reconstruction, TuneError, TuneParams, Tuner, Verdict, Weighting,
    Windows, working_set,
};
use lapidary::compress::{Encoder, PackParams, pack};
use lapidary::device::Device;
use lapidary::model::{Block, Checkpoint, Config, Context, Decoder, Linear, LinearName, NoCapture, Run};
use lapidary::ops::log_softmax;

/// The embedded model's second block, packed without data, and what it should give.
struct Embedded {
    config: Config,
    original: Block,
    packed: Block,
    input: Vec<f32>,
    target: Vec<f32>,
}

fn without_data(output: &Path) -> PackParams {
    PackParams {
        output: output.into(),
        plan: Plan::uniform(1.0),
        recipe: Recipe::dual_svid(),
        encoder: Encoder::Reference,
        texts: Vec::new(),
        calibration: CalibrationParams { window: 48, fit_tokens: None, heldout_tokens: None },
        resume: false,
    }
}

/// Of the embedded model's own text.
fn tokens(count: usize) -> Vec<u32> {
    let text = std::fs::read_to_string(common::tiny("calibration.txt")).unwrap();
    let tokenizer = Checkpoint::open(common::tiny("")).unwrap().tokenizer().unwrap();
    tokenizer.encode(&text).unwrap()[..count].to_vec()
}

const POSITIONS: usize = 48;
const FIT: usize = 40;

fn embedded() -> Embedded {
    let [original, packed] = decoders();
    let tokens = tokens(POSITIONS * (FIT + 10));
    let mut streams = [&original, &packed].map(|decoder| {
        let mut x = decoder.embed(&tokens).unwrap();
        decoder.block(0).forward(&mut x, Context::Windows { len: POSITIONS }, &mut NoCapture);
        x
    });
    original.block(1).forward(&mut streams[0], Context::Windows { len: POSITIONS }, &mut NoCapture);
    let [target, input] = streams;
    let (config, blocks) = (original.config().clone(), [original.block(1), packed.block(1)]);
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
    let params = TuneParams { passes: 8, batch: 96, weighting: Weighting::Uniform, ..TuneParams::default() };
    for device in common::tuning_devices() {
        let tuned = embedded.tune(&device, &embedded.packed, &params);
        let report = &tuned.report;
        println!("{}: {report:?}", device.name());
        assert_eq!((report.verdict.clone(), report.trained.steps), (Verdict::Kept, 8 * 20));
        assert_eq!(tuned.linears.len(), 7);
        assert!(report.heldout.after < 0.7 * report.heldout.before, "{:?}", report.heldout);
        assert!(report.trained.passes[7] < report.trained.passes[0], "{:?}", report.trained.passes);
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

/// The embedded model packed without data, beside the original.
fn decoders() -> [Decoder; 2] {
    let checkpoint = Checkpoint::open(common::tiny("")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("packed");
    pack(&checkpoint, without_data(&output), &Silent).unwrap();
    [checkpoint, Checkpoint::open(&output).unwrap()].map(|checkpoint| Decoder::load(&checkpoint).unwrap())
}

#[test]
fn a_distilled_model_is_closer_on_text_it_has_not_seen() {
    let [original, packed] = decoders();
    let tokens = tokens(POSITIONS * 30);
    let (run, nothing) = (|| Run::Windows { len: POSITIONS }, &mut NoCapture);
    let (input, target) =
        (original.embed(&tokens).unwrap(), original.hidden(&tokens, run(), nothing).unwrap());
    let windows = Windows { input: &input, target: &target, positions: POSITIONS, fit: 24 };
    let heldout = &tokens[24 * POSITIONS..];
    let divergence = |decoder: &Decoder| {
        let [p, q] = [&original, decoder].map(|d| d.forward(heldout, run(), &mut NoCapture).unwrap());
        let vocab = original.config().vocab;
        let rows = p.chunks(vocab).zip(q.chunks(vocab));
        rows.map(|(p, q)| log_softmax::divergence(p, q)).sum::<f64>() / heldout.len() as f64
    };
    let rates = Rates { scales: Some(1e-2), ..TuneParams::distill().rates };
    let params = TuneParams { passes: 3, batch: 150, rates, ..TuneParams::distill() };
    for device in common::tuning_devices() {
        let mut tuner = Tuner::new(&device).unwrap();
        let tuned = tuner.distill(&packed, &windows, &params).unwrap();
        let report = &tuned.report;
        println!("{}: {report:?}", device.name());
        assert_eq!((report.verdict.clone(), tuned.linears.len()), (Verdict::Kept, 4 * 7));
        assert!(report.heldout.after < 0.8 * report.heldout.before, "{:?}", report.heldout);
        let mut decoder = packed.clone();
        for (layer, name, linear) in &tuned.linears {
            decoder.set_linear(*layer, *name, linear.clone()).unwrap();
        }
        let Change { before, after } = report.heldout;
        for (found, expected) in [(before, divergence(&packed)), (after, divergence(&decoder))] {
            assert!((found / expected - 1.0).abs() < 1e-3, "{found}, by the host's decoder {expected}");
        }
        let again = tuner.distill(&packed, &windows, &params).unwrap();
        let stored = |all: &Linears| -> Vec<_> {
            all.iter().map(|(layer, name, linear)| (*layer, bytes(&[(*name, linear.clone())]))).collect()
        };
        assert_eq!(stored(&again.linears), stored(&tuned.linears), "{}: the same bytes", device.name());
    }
}

/// Rates so high that the first passes lead away, and never back.
#[test]
fn training_that_goes_astray_turns_back() {
    let [original, packed] = decoders();
    let tokens = tokens(POSITIONS * 30);
    let (input, target) = (
        original.embed(&tokens).unwrap(),
        original.hidden(&tokens, Run::Windows { len: POSITIONS }, &mut NoCapture).unwrap(),
    );
    let windows = Windows { input: &input, target: &target, positions: POSITIONS, fit: 24 };
    let rates = Rates { scales: Some(0.5), signs: Some(1e-1), dense: None };
    let params = TuneParams { passes: 8, batch: 150, rates, ..TuneParams::distill() };
    let embedded = embedded();
    for device in common::tuning_devices() {
        let mut tuner = Tuner::new(&device).unwrap();
        let model = tuner.distill(&packed, &windows, &params).unwrap().report;
        let block = embedded.tune(&device, &embedded.packed, &params).report;
        for report in [model, block] {
            println!("{}: {report:?}", device.name());
            assert!(report.trained.turned_back > 0, "{report:?}");
            assert_eq!(report.verdict, Verdict::Kept, "{report:?}");
        }
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
fn errors_count_by_the_size_of_their_position() {
    let mut embedded = embedded();
    // One position of each window as massive as in large models.
    let hidden = embedded.config.hidden;
    for x in [&mut embedded.input, &mut embedded.target] {
        x.chunks_mut(POSITIONS * hidden)
            .for_each(|window| window[..hidden].iter_mut().for_each(|x| *x *= 100.0));
    }
    let params = TuneParams { passes: 1, batch: 96, ..TuneParams::default() };
    let params = TuneParams { weighting: Weighting::Relative, ..params };
    let report = embedded.tune(&Device::Host, &embedded.packed, &params).report;
    let mut y = embedded.input.clone();
    embedded.packed.forward(&mut y, Context::Windows { len: POSITIONS }, &mut NoCapture);
    let relative = |(y, t): (&[f32], &[f32])| {
        let apart: f64 = y.iter().zip(t).map(|(y, t)| f64::from(y - t).powi(2)).sum();
        apart / t.iter().map(|t| f64::from(*t).powi(2)).sum::<f64>()
    };
    let (fit, rows) = (FIT * POSITIONS, y.chunks(hidden).zip(embedded.target.chunks(hidden)));
    let expected: f64 = rows.take(fit).map(relative).sum::<f64>() / fit as f64;
    assert!((report.fit.before / expected - 1.0).abs() < 1e-4, "{expected}, {report:?}");
    assert_eq!(report.verdict, Verdict::Kept, "{report:?}");
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

#[cfg(feature = "wgpu")]
#[test]
fn a_device_without_the_kernels_is_refused_by_name() {
    let Some(wgpu) = common::wgpu() else { return };
    let device = Device::Wgpu(wgpu);
    let Err(error) = Tuner::new(&device) else { panic!("it has no kernels") };
    assert!(error.to_string().contains(&device.name()), "{error}");
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
