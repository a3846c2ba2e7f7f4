//! How fast a model runs: `cargo run --release --example speed -- MODEL`.
//!
//! Prints medians in tokens a second: prefill of a 2,048-token window with all logits, and generation one token at a
//! time; then generation with the same model's linear layers replaced by random packed ones of about one bit a weight.

use std::time::Instant;

use half::f16;
use lapidary::blr::Payload;
use lapidary::blr::payload::PathParts;
use lapidary::model::{Cache, Checkpoint, Decoder, Linear, LinearName, NoCapture, Run, SplitMix64};
use lapidary::ops::log_softmax::argmax;

const WINDOW: usize = 2048;
/// Positions whose logits are in memory together.
const LOGIT_ROWS: usize = 256;
const GENERATED: usize = 64;
const REPEATS: usize = 5;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).ok_or("usage: speed MODEL")?;
    let mut decoder = Decoder::load(&Checkpoint::open(path)?)?;
    println!("prefill_tps {:.1}", median(|| prefill(&decoder))?);
    println!("generate_tps {:.1}", median(|| generate(&decoder))?);
    pack_randomly(&mut decoder)?;
    println!("prefill_packed_tps {:.1}", median(|| prefill(&decoder))?);
    println!("generate_packed_tps {:.1}", median(|| generate(&decoder))?);
    Ok(())
}

fn median(run: impl Fn() -> Result<f64>) -> Result<f64> {
    let mut rates = (0..REPEATS).map(|_| run()).collect::<Result<Vec<f64>>>()?;
    rates.sort_by(f64::total_cmp);
    Ok(rates[REPEATS / 2])
}

/// Tokens a second of one window, all logits computed.
fn prefill(decoder: &Decoder) -> Result<f64> {
    let config = decoder.config();
    let tokens: Vec<u32> = (0..WINDOW).map(|k| (k * 7919 % config.vocab) as u32).collect();
    let start = Instant::now();
    let hidden = decoder.hidden(&tokens, Run::Windows { len: WINDOW }, &mut NoCapture)?;
    let blocks = start.elapsed();
    for rows in hidden.chunks(LOGIT_ROWS * config.hidden) {
        assert!(decoder.logits(rows).iter().all(|z| z.is_finite()));
    }
    let total = start.elapsed();
    eprintln!("  blocks {:.3} s, head {:.3} s", blocks.as_secs_f64(), (total - blocks).as_secs_f64());
    Ok(WINDOW as f64 / total.as_secs_f64())
}

/// Tokens a second, one at a time, after a short prompt.
fn generate(decoder: &Decoder) -> Result<f64> {
    let mut cache = Cache::new(decoder.config(), 2 * GENERATED);
    let mut logits = decoder.next_logits(&[504, 3575, 282, 4649, 314], &mut cache)?;
    let start = Instant::now();
    for _ in 0..GENERATED {
        logits = decoder.next_logits(&[argmax(&logits) as u32], &mut cache)?;
    }
    Ok(GENERATED as f64 / start.elapsed().as_secs_f64())
}

/// Replaces every linear layer by random signs of about one bit a weight.
fn pack_randomly(decoder: &mut Decoder) -> Result<()> {
    let mut random = SplitMix64::new(1);
    for layer in 0..decoder.config().layers {
        for name in LinearName::ALL {
            let [rows, in_features] = name.shape(decoder.config());
            let cols = in_features.next_multiple_of(8);
            let rank =
                ((rows * cols).saturating_sub(32 * (rows + cols)) / (2 * (rows + cols + 16)) / 8 * 8).max(8);
            let mut signs =
                |len: usize| (0..len).map(|_| if random.next_u64() & 1 == 1 { 1 } else { -1 }).collect();
            let factors: Vec<[Vec<i8>; 2]> =
                (0..2).map(|_| [signs(rows * rank), signs(cols * rank)]).collect();
            let scale = |len: usize, value: f32| vec![f16::from_f32(value); len];
            let (h, g, l) = (scale(rows, 1.0), scale(cols, 0.05), scale(rank, 1.0 / rank as f32));
            let parts: Vec<_> =
                factors.iter().map(|[u, v]| PathParts { h: &h, g: &g, l: &l, u, v }).collect();
            let payload = Payload::build(rows, cols, rank, &parts)?;
            decoder.set_linear(layer, name, Linear::Packed { payload, in_features })?;
        }
    }
    Ok(())
}
