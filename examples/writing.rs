//! How fast a model writes its own calibration text: `cargo run --release --example writing -- MODEL DEVICE LENGTH COUNT...`.
//!
//! For each COUNT that many texts of LENGTH tokens side by side: tokens a second, and milliseconds of a step at the
//! first eighth of the positions and at the last.

use std::sync::Mutex;
use std::time::Instant;

use lapidary::device::{DevicePolicy, select};
use lapidary::model::on_device::{DecodeParams, DeviceDecoder, Request};
use lapidary::model::sample::SampleParams;
use lapidary::model::{Checkpoint, Decoder};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, device, length, counts @ ..] = arguments.as_slice() else {
        return Err("usage: writing MODEL DEVICE LENGTH COUNT...".into());
    };
    let device = select(device.parse::<DevicePolicy>()?)?.device;
    let decoder = Decoder::load(&Checkpoint::open(model)?)?;
    let positions = length.parse()?;
    for count in counts {
        let params = DecodeParams { sequences: count.parse()?, positions };
        let start = Instant::now();
        let mut on_device = DeviceDecoder::new(&device, &decoder, params)?;
        println!("{count} texts of {positions}: {:.2} s to the device", start.elapsed().as_secs_f64());
        write(&mut on_device, params)?;
    }
    Ok(())
}

fn write(decoder: &mut DeviceDecoder<'_>, params: DecodeParams) -> Result<()> {
    let DecodeParams { sequences, positions } = params;
    let requests: Vec<Request<'_>> = (0..sequences)
        .map(|s| Request {
            prompt: &[0],
            sample: SampleParams { temperature: 1.0, top_p: 1.0, seed: s as u64 },
            most: positions,
            ends: &[],
        })
        .collect();
    let times = Mutex::new(vec![Instant::now()]);
    let start = Instant::now();
    decoder.generate(&requests, &|_| times.lock().expect("nobody panics").push(Instant::now()))?;
    let seconds = start.elapsed().as_secs_f64();
    let times = times.into_inner()?;
    let part = (positions / 8).max(1);
    let step = |from: usize| (times[from + part] - times[from]).as_secs_f64() * 1e3 / part as f64;
    println!(
        "  {:.2} s, {:.0} tokens a second; a step takes {:.2} ms, at the end {:.2}",
        seconds,
        (sequences * positions) as f64 / seconds,
        step(0),
        step(positions - part)
    );
    Ok(())
}
