//! Distils a packed model further, to try what its knobs do: `cargo run --release --example distill_model --
//! write ORIGINAL TEXT COUNT LEN SEED TEMPERATURE CONTINUED TOKENS` lets the original write COUNT texts and stores their tokens;
//! `... -- tune ORIGINAL PACKED TEXT TOKENS [KNOB=VALUE ...]` distils over nine tenths of TEXT and what was written, and prints
//! the divergence on held-out windows and the perplexity of the last tenth of TEXT, before and after. A `--` begins the next
//! trial, again from PACKED.

use std::time::Instant;

use lapidary::compress::calibration::Calibration;
use lapidary::compress::device_calibration::DeviceCalibration;
use lapidary::compress::observer::Silent;
use lapidary::compress::self_written::{WriteParams, write};
use lapidary::compress::streams::Which;
use lapidary::compress::tune::{TuneParams, Tuner, Windows};
use lapidary::device::{Device, DevicePolicy, select};
use lapidary::eval::evaluate_on;
use lapidary::model::text;
use lapidary::model::{Checkpoint, Decoder};

/// Tokens of the text before its last tenth that are held out.
const HELD_OUT: usize = 16_384;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let device = select(DevicePolicy::Auto)?.device;
    match args[..] {
        ["write", original, source, count, len, seed, temperature, continued, tokens] => {
            let (temperature, continued) = (temperature.parse()?, continued.parse()?);
            let params = WriteParams { temperature, continued, seed: seed.parse()?, ..Default::default() };
            let checkpoint = Checkpoint::open(original)?;
            let (decoder, tokenizer) = (Decoder::load(&checkpoint)?, checkpoint.tokenizer()?);
            let given = tokenizer.encode(&text::Text::read(&[source.into()])?.content)?;
            let given = &given[..given.len() / 10 * 9 - HELD_OUT];
            let began = Instant::now();
            let written =
                write(&decoder, &tokenizer, &device, (count.parse()?, len.parse()?), params, given, &Silent)?;
            println!("{} tokens in {:.1} s", written.len(), began.elapsed().as_secs_f64());
            let bytes: Vec<u8> = written.iter().flat_map(|token| token.to_le_bytes()).collect();
            Ok(std::fs::write(tokens, bytes)?)
        }
        ["tune", original, packed, text, tokens, ref knobs @ ..] => {
            let files = [original, packed, text, tokens];
            knobs.split(|knob| *knob == "--").try_for_each(|knobs| tune(&device, files, knobs))
        }
        _ => Err("see the head of examples/distill_model.rs".into()),
    }
}

fn tune(device: &Device, [original, packed, text, tokens]: [&str; 4], knobs: &[&str]) -> Result<()> {
    let checkpoint = Checkpoint::open(original)?;
    let tokenizer = checkpoint.tokenizer()?;
    let mut params = TuneParams::distill();
    let (mut window, mut given, mut own, mut heldout) = (512, 98_304, 98_304, HELD_OUT);
    for knob in knobs {
        let (name, value) = knob.split_once('=').ok_or("KNOB=VALUE")?;
        match name {
            "window" => window = value.parse()?,
            "given" => given = value.parse()?,
            "own" => own = value.parse()?,
            "heldout" => heldout = value.parse()?,
            "passes" => params.passes = value.parse()?,
            "batch" => params.batch = value.parse()?,
            "scales" => params.rates.scales = Some(value.parse()?),
            "signs" => params.rates.signs = Some(value.parse()?),
            _ => return Err(format!("no knob {name}").into()),
        }
    }
    let all = tokenizer.encode(&text::Text::read(&[text.into()])?.content)?;
    let (all, tail) = all.split_at(all.len() / 10 * 9);
    let written: Vec<u32> =
        std::fs::read(tokens)?.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let calibration = calibration(all, &written, (window, [given, own], heldout))?;
    let teacher = Decoder::load(&checkpoint)?;
    let mut student = Decoder::load(&Checkpoint::open(packed)?)?;
    let began = Instant::now();
    let input = teacher.embed(calibration.windows.tokens())?;
    let target = {
        let mut streams = DeviceCalibration::new(device, teacher.config(), &calibration, &input, false)?;
        for layer in 0..teacher.config().layers {
            streams.advance(Which::Packed, teacher.block(layer))?;
        }
        streams.stream(Which::Packed)?
    };
    println!("{knobs:?}: the original's stream in {:.1} s", began.elapsed().as_secs_f64());
    let judge = text::Windows::of(tail, 2048, None);
    let perplexity =
        |model: &Decoder| evaluate_on(device, model, None, &judge, &|_| {}).map(|s| s.perplexity);
    let before = perplexity(&student)?;
    let windows = Windows { input: &input, target: &target, positions: window, fit: calibration.fit };
    let done = Tuner::new(device)?.distill(&student, &windows, &params)?;
    for (layer, name, linear) in done.linears {
        student.set_linear(layer, name, linear)?;
    }
    let after = perplexity(&student)?;
    let report = done.report;
    let ms = report.seconds * 1e3 / report.trained.steps as f64;
    println!(
        "  {:?} fit {:.4} to {:.4}, held out {:.4} to {:.4}; tail {before:.2} to {after:.2}; {:.1} s, {} steps, {ms:.1} ms each, {:.1} GB",
        report.verdict,
        report.fit.before,
        report.fit.after,
        report.heldout.before,
        report.heldout.after,
        report.seconds,
        report.trained.steps,
        report.bytes as f64 / 1e9
    );
    println!("  fit by pass {:.3?}", report.trained.passes);
    Ok(())
}

fn calibration(
    given: &[u32],
    own: &[u32],
    (window, [from_given, from_own], heldout): (usize, [usize; 2], usize),
) -> Result<Calibration> {
    let part = |of: &[u32], from: usize, tokens: usize| -> Result<Vec<u32>> {
        let end = (from + tokens) / window * window;
        Ok(of.get(from / window * window..end).ok_or(format!("{end} tokens of {}", of.len()))?.to_vec())
    };
    // Held out: the end of each.
    let (a, b) = (given.len() - heldout, own.len() - heldout);
    if from_given > a || from_own > b {
        return Err(format!("more than {a} and {b}").into());
    }
    let mut tokens = [part(given, 0, from_given)?, part(own, 0, from_own)?].concat();
    let fit = tokens.len() / window;
    tokens.extend([part(given, a, heldout)?, part(own, b, heldout)?].concat());
    let heldout = tokens.len() / window - fit;
    let windows = text::Windows::from_positions(tokens, window, None);
    let more = text::Windows::from_positions(Vec::new(), window, None);
    Ok(Calibration { windows, fit, heldout, more })
}
