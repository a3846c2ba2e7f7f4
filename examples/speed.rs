//! How fast a model, packed or not, runs: `cargo run --release --example speed -- MODEL`.
//!
//! Prints medians in tokens a second: prefill of a 2,048-token window with all logits, and generation one token at a
//! time.

use std::time::Instant;

use lapidary::model::{Cache, Checkpoint, Decoder, NoCapture, Run};
use lapidary::ops::log_softmax::argmax;

const WINDOW: usize = 2048;
/// Positions whose logits are in memory together.
const LOGIT_ROWS: usize = 256;
const GENERATED: usize = 64;
const REPEATS: usize = 5;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).ok_or("usage: speed MODEL")?;
    let decoder = Decoder::load(&Checkpoint::open(path)?)?;
    println!("prefill_tps {:.1}", median(|| prefill(&decoder))?);
    println!("generate_tps {:.1}", median(|| generate(&decoder))?);
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
    for rows in hidden.chunks(LOGIT_ROWS * config.hidden) {
        assert!(decoder.logits(rows).iter().all(|z| z.is_finite()));
    }
    Ok(WINDOW as f64 / start.elapsed().as_secs_f64())
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
