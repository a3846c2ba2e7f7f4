//! The decoder on every device that is there, against the host's: what calibration captures, and many sequences at once.

mod common;
#[path = "common/tiny.rs"]
mod tiny;

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use lapidary::compress::calibration::{Calibration, CalibrationParams, Draft, Read, Source};
use lapidary::compress::device_calibration::{
    CaptureError, DeviceCalibration, GRAM_TOLERANCE, STREAM_TOLERANCE,
};
use lapidary::compress::observer::{Event, Observer, Silent};
use lapidary::compress::recipe::Tokens;
use lapidary::compress::self_written::{self, WriteParams};
use lapidary::compress::streams::{Blocks, SiteGrams, Streams, Which};
use lapidary::device::{Device, DeviceError};
use lapidary::eval::{BaseInfo, KlBase, Original, evaluate, evaluate_on};
use lapidary::model::on_device::{DecodeParams, DeviceDecoder, ForwardError, Request};
use lapidary::model::sample::SampleParams;
use lapidary::model::text::Text;
use lapidary::model::{Cache, Checkpoint, Config, Decoder, Family, Linear, LinearName, Site, SplitMix64};

fn calibration(checkpoint: &Checkpoint, params: CalibrationParams) -> Calibration {
    let text = fs::read_to_string(common::tiny("calibration.txt")).unwrap();
    let text = Text::from_memory("calibration.txt", &text).unwrap();
    let tokenizer = checkpoint.tokenizer().unwrap();
    let bos = checkpoint.config().start_token();
    let draft =
        Draft::prepare(Source::text(text), &tokenizer, bos, params, Tokens::PUBLISHED, Read::AsNeeded)
            .unwrap();
    draft.finish(&[])
}

fn embedded() -> Checkpoint {
    Checkpoint::open(common::tiny("")).unwrap()
}

/// Puts random packed layers of one and two paths in the place of the dense ones of a block.
fn pack_block(decoder: &mut Decoder, layer: usize) {
    let mut random = SplitMix64::new(5);
    for (k, name) in LinearName::ALL.into_iter().enumerate() {
        let shape = name.shape(decoder.config());
        let payload = tiny::payload(shape, 1 + k % 2, &mut random);
        decoder.set_linear(layer, name, Linear::Packed { payload, in_features: shape[1] }).unwrap();
    }
}

fn assert_grams(what: &str, found: &SiteGrams, expected: &SiteGrams) {
    for site in Site::ALL {
        let (Some(found), Some(expected)) = (&found[site as usize], &expected[site as usize]) else {
            panic!("{what}: {site:?} was asked for");
        };
        let mut parts =
            vec![("fit", &found.fit, &expected.fit), ("held-out", &found.heldout, &expected.heldout)];
        for (part, gram, _) in &parts {
            assert_eq!(*gram, &gram.transpose().to_owned(), "{what}, {site:?}, {part}: symmetric");
        }
        assert_eq!(found.cross.is_some(), expected.cross.is_some(), "{what}, {site:?}");
        parts.extend(found.cross.as_ref().zip(expected.cross.as_ref()).map(|(f, e)| ("cross", f, e)));
        for (part, found, expected) in parts {
            let apart = (found - expected).norm_max() / expected.norm_max();
            println!("{what}, {site:?}, {part}: {apart:.1e}");
            assert!(apart <= GRAM_TOLERANCE, "{what}, {site:?}, {part}: {apart:.1e} apart");
        }
    }
}

fn assert_stream(what: &str, found: &[f32], expected: &[f32]) {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let apart = norm(&mut found.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let apart = apart / norm(&mut expected.iter().map(|x| f64::from(*x)));
    println!("{what}: {apart:.1e}");
    assert!(apart <= STREAM_TOLERANCE, "{what}: {apart:.1e} apart");
}

/// A dense block and then the same packed, on all devices.
fn compare(checkpoint: &Checkpoint, params: CalibrationParams) {
    compare_on(checkpoint, &calibration(checkpoint, params));
}

fn compare_on(checkpoint: &Checkpoint, calibration: &Calibration) {
    let whole = Decoder::load(checkpoint).unwrap();
    let mut packed = whole.clone();
    pack_block(&mut packed, 0);
    let embedded = whole.embed(calibration.windows.tokens()).unwrap();
    let beside = Blocks { packed: packed.block(0), original: Some(whole.block(0)) };
    for (what, blocks) in [
        ("dense", Blocks::one(whole.block(0))),
        ("packed", Blocks::one(packed.block(0))),
        ("packed beside the original", beside),
    ] {
        let two = blocks.original.is_some();
        let mut streams = Streams::new(embedded.clone(), two);
        let expected = streams.capture_grams(blocks, calibration, &Site::ALL).unwrap();
        streams.advance(Which::Packed, blocks.packed, calibration);
        streams.advance(Which::Original, whole.block(0), calibration);
        for device in common::devices() {
            let config = checkpoint.config();
            let mut run = DeviceCalibration::new(&device, config, calibration, &embedded, two).unwrap();
            let what = format!("{}, {what}", device.name());
            let grams = run.capture_grams(blocks, &Site::ALL).unwrap();
            assert_grams(&what, &grams, &expected);
            for site in Site::ALL {
                let alone = run.capture_grams(blocks, &[site]).unwrap();
                let of = |grams: &SiteGrams| {
                    let grams = grams[site as usize].as_ref().unwrap();
                    (grams.fit.clone(), grams.heldout.clone(), grams.cross.clone())
                };
                assert_eq!(of(&alone), of(&grams), "{what}: {site:?} does not depend on the others");
                assert_eq!(alone.iter().flatten().count(), 1);
            }
            run.advance(Which::Packed, blocks.packed).unwrap();
            run.advance(Which::Original, whole.block(0)).unwrap();
            assert_stream(&what, &run.stream(Which::Packed).unwrap(), &streams.packed);
            let original = run.stream(Which::Original).unwrap();
            match &streams.original {
                Some(expected) => assert_stream(&format!("{what}, original"), &original, expected),
                None => assert!(original.is_empty(), "{what}: it does not run"),
            }
        }
    }
}

#[test]
fn captured_grams_and_streams_are_the_hosts() {
    // 4,096 rows are no whole number of windows, and the last chunk is shorter.
    compare(
        &embedded(),
        CalibrationParams { window: 100, fit_tokens: Some(4500), heldout_tokens: Some(700) },
    );
}

#[test]
fn a_block_of_smollm2_is_the_hosts() {
    let Some(path) = common::smollm2() else { return };
    let checkpoint = Checkpoint::open(&path).unwrap();
    compare(&checkpoint, CalibrationParams { window: 300, fit_tokens: Some(600), heldout_tokens: Some(300) });
}

#[test]
fn a_block_of_gemma3_is_the_hosts() {
    let Some(path) = common::gemma3() else { return };
    let checkpoint = Checkpoint::open(&path).unwrap();
    // The software adapter has no room for windows beyond the sliding ones of 512: the small models go beyond theirs.
    compare(&checkpoint, CalibrationParams { window: 300, fit_tokens: Some(300), heldout_tokens: Some(300) });
}

/// A model of random weights behind the embedded model's tokenizer.
fn random_model(change: impl FnOnce(&Config, &mut tiny::Weights)) -> Checkpoint {
    let config = Config { vocab: 864, ..tiny::config(true) };
    let mut weights = tiny::weights(&config);
    change(&config, &mut weights);
    tiny::checkpoint(&config, &tiny::stored(&weights))
}

/// All families with random weights; where layers have sliding windows, of 20 positions.
fn families() -> impl Iterator<Item = (Family, Checkpoint)> {
    let all = [Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3, Family::Gemma3];
    all.into_iter().map(|family| {
        let config = Config { vocab: 864, ..tiny::family(family) };
        (family, tiny::checkpoint(&config, &tiny::stored(&tiny::weights(&config))))
    })
}

#[test]
fn blocks_of_every_family_are_the_hosts() {
    let params = CalibrationParams { window: 50, fit_tokens: Some(400), heldout_tokens: Some(100) };
    let calibration = calibration(&embedded(), params);
    for (family, checkpoint) in families() {
        println!("{family:?}");
        compare_on(&checkpoint, &calibration);
    }
}

#[test]
fn an_activation_that_is_not_finite_is_named_as_on_the_host() {
    let params = CalibrationParams { window: 64, fit_tokens: Some(640), heldout_tokens: Some(128) };
    let calibration = calibration(&embedded(), params);
    for (tensor, at) in [("self_attn.v_proj", 3), ("mlp.up_proj", 48 * 7)] {
        let checkpoint = random_model(|_, weights| {
            weights.get_mut(&format!("model.layers.1.{tensor}.weight")).unwrap().1[at] = f32::INFINITY;
        });
        let decoder = Decoder::load(&checkpoint).unwrap();
        let stream = decoder.embed(calibration.windows.tokens()).unwrap();
        let blocks = Blocks::one(decoder.block(1));
        let streams = Streams::new(stream.clone(), false);
        let expected = streams.capture_grams(blocks, &calibration, &Site::ALL).err().unwrap();
        for device in common::devices() {
            let config = checkpoint.config();
            let mut run = DeviceCalibration::new(&device, config, &calibration, &stream, false).unwrap();
            let found = run.capture_grams(blocks, &Site::ALL).err().unwrap();
            let CaptureError::Activation(found) = found else { panic!("{found}") };
            assert_eq!(found.to_string(), expected.to_string(), "{}", device.name());
        }
    }
}

#[test]
fn a_model_without_room_is_refused_with_a_figure() {
    let params = CalibrationParams { window: 64, fit_tokens: Some(64), heldout_tokens: Some(64) };
    let calibration = calibration(&embedded(), params);
    let huge = Config { hidden: 1 << 18, intermediate: 1 << 19, ..tiny::config(true) };
    for device in common::devices() {
        match DeviceCalibration::new(&device, &huge, &calibration, &[], false).err() {
            Some(ForwardError::Device(error @ DeviceError::Memory { .. })) => {
                assert!(error.to_string().contains("one calibration window of 64 positions"), "{error}");
            }
            other => panic!("{:?} of {}", other.map(|e| e.to_string()), device.name()),
        }
        let wide = Config { head_dim: 258, ..tiny::config(true) };
        let error = DeviceCalibration::new(&device, &wide, &calibration, &[], false).err().unwrap();
        assert!(matches!(error, ForwardError::HeadDim { head_dim: 258 }), "{error}");
    }
}

#[test]
fn logits_with_caches_are_the_hosts() {
    for (_, checkpoint) in families() {
        check_cached_logits(&checkpoint);
    }
    check_cached_logits(&embedded());
}

fn check_cached_logits(checkpoint: &Checkpoint) {
    /// Largest difference of a logit, relative to the largest logit.
    const TOLERANCE: f32 = 1e-3;
    let mut decoder = Decoder::load(checkpoint).unwrap();
    pack_block(&mut decoder, 1);
    let vocab = decoder.config().vocab;
    let tokens = |s: usize, p: usize| ((s * 131 + p * 17 + 5) % vocab) as u32;
    // More than a sliding window.
    let (sequences, steps) = (3, 25);
    let mut caches: Vec<Cache> = (0..sequences).map(|_| Cache::new(decoder.config(), steps)).collect();
    let expected: Vec<Vec<f32>> = (0..steps)
        .flat_map(|p| (0..sequences).map(move |s| (s, p)))
        .map(|(s, p)| decoder.next_logits(&[tokens(s, p)], &mut caches[s]).unwrap())
        .collect();
    for device in common::devices() {
        let params = DecodeParams { sequences, positions: steps };
        let mut run = DeviceDecoder::new(&device, &decoder, params).unwrap();
        for p in 0..steps {
            let fed: Vec<u32> = (0..sequences).map(|s| tokens(s, p)).collect();
            let found = run.step(&fed, &vec![p; sequences]).unwrap();
            for (s, found) in found.chunks(vocab).enumerate() {
                let expected = &expected[p * sequences + s];
                let largest = expected.iter().fold(0f32, |m, z| m.max(z.abs()));
                let apart = found.iter().zip(expected).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                let name = device.name();
                assert!(apart <= TOLERANCE * largest, "{name}, sequence {s}, position {p}: {apart:.1e}");
            }
        }
    }
}

#[test]
fn scores_of_a_text_are_the_hosts() {
    /// Relative, of perplexity and divergence: what logits apart by 1e-3 of their size may change.
    const TOLERANCE: f64 = 1e-3;
    let checkpoint = embedded();
    let original = Decoder::load(&checkpoint).unwrap();
    let mut packed = original.clone();
    pack_block(&mut packed, 2);
    let params = CalibrationParams { window: 60, fit_tokens: Some(600), heldout_tokens: Some(60) };
    let windows = calibration(&checkpoint, params).windows;
    let score = |device: &Device| {
        let original = Some(Original::Loaded(&original));
        let scores = evaluate_on(device, &packed, original, &windows, &|_| ()).unwrap();
        let divergence = scores.divergence.unwrap();
        let alone = evaluate_on(device, &packed, None, &windows, &|_| ()).unwrap();
        [scores.perplexity, divergence.mean_kl, divergence.original_perplexity, alone.perplexity]
    };
    let expected = score(&Device::Host);
    for device in common::devices().into_iter().filter(|device| !matches!(device, Device::Host)) {
        for (found, expected) in score(&device).into_iter().zip(expected) {
            println!("{}: {found} against {expected}", device.name());
            assert!((found / expected - 1.0).abs() < TOLERANCE, "{}: {found}, {expected}", device.name());
        }
    }
}

/// Counts the tokens that were written.
#[derive(Default)]
struct Heard(AtomicUsize);

impl Observer for Heard {
    fn event(&self, event: Event<'_>) {
        if let Event::Wrote { tokens } = event {
            self.0.fetch_add(tokens, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_text_may_fill_the_context() {
    let checkpoint = embedded();
    let (decoder, tokenizer) = (Decoder::load(&checkpoint).unwrap(), checkpoint.tokenizer().unwrap());
    let most = decoder.config().max_positions;
    for device in common::devices() {
        let params = WriteParams::default();
        let text =
            self_written::write(&decoder, &tokenizer, &device, (1, most), params, &[], &Silent).unwrap();
        assert_eq!(text.len(), most);
    }
}

#[test]
fn stored_predictions_are_the_hosts() {
    /// Nats: what logits apart by 1e-3 of their size may change.
    const TOLERANCE: f64 = 2e-3;
    let checkpoint = embedded();
    let original = Decoder::load(&checkpoint).unwrap();
    let params = CalibrationParams { window: 60, fit_tokens: Some(300), heldout_tokens: Some(60) };
    let windows = calibration(&checkpoint, params).windows;
    let info = BaseInfo::new("original".into(), "abc".into(), original.config().vocab, &windows);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("base.safetensors");
    for device in common::devices() {
        KlBase::store(&device, &file, &info, &original, &windows, &|_| ()).unwrap();
        let base = KlBase::open(&file, &info).unwrap();
        let scores = evaluate(&original, Some(Original::Stored(&base)), &windows, &|_| ()).unwrap();
        let divergence = scores.divergence.unwrap();
        let apart = divergence.original_perplexity.ln() - scores.nll;
        println!("{}: KL {}, apart {apart}", device.name(), divergence.mean_kl);
        assert!(divergence.mean_kl.abs() < TOLERANCE && apart.abs() < TOLERANCE, "{}", device.name());
    }
}

#[test]
fn a_model_writes_its_text_by_the_seed_alone() {
    let checkpoint = embedded();
    let (decoder, tokenizer) = (Decoder::load(&checkpoint).unwrap(), checkpoint.tokenizer().unwrap());
    let write = |device: &Device, count: usize, seed: u64| {
        let params = WriteParams { seed, ..WriteParams::default() };
        let heard = Heard::default();
        let text =
            self_written::write(&decoder, &tokenizer, device, (count, 40), params, &[], &heard).unwrap();
        assert_eq!((text.len(), heard.0.into_inner()), (count * 40, count * 40));
        text
    };
    let expected = write(&Device::Host, 6, 1);
    assert_eq!(write(&Device::Host, 4, 1), expected[..160], "texts do not depend on how many there are");
    assert_ne!(write(&Device::Host, 6, 2), expected);
    // What the model learned: sentences about days, months, hours and numbers.
    let words = tokenizer.decode(&expected).unwrap();
    let known = ["hour", "o'clock", "earlier", "later", "Friday", "twenty"];
    assert!(known.iter().filter(|word| words.contains(**word)).count() >= 4, "{words}");
    for device in common::devices() {
        let found = write(&device, 6, 1);
        // Two tokens may be nearly equally likely: from there on a text is another.
        let same = found.chunks(40).zip(expected.chunks(40)).filter(|(a, b)| a == b).count();
        assert!(same >= 5, "{}: {same} of 6 texts", device.name());
    }
}

#[test]
fn a_text_does_not_depend_on_the_others() {
    let decoder = Decoder::load(&embedded()).unwrap();
    let vocab = decoder.config().vocab as u32;
    let prompts: Vec<Vec<u32>> =
        (0..7).map(|s| (0..1 + s % 3).map(|p| (s * 97 + p * 13 + 2) % vocab).collect()).collect();
    let ends = [7];
    let drawn = SampleParams { temperature: 0.9, ..SampleParams::default() };
    let nucleus = SampleParams { top_p: 0.95, ..drawn };
    let requests: Vec<Request<'_>> = (prompts.iter().enumerate())
        .map(|(s, prompt)| Request {
            prompt,
            // Drawn on the device, on the host, and the most likely one.
            sample: SampleParams { seed: s as u64, ..[drawn, nucleus, SampleParams::default()][s % 3] },
            most: 3 + 2 * s,
            ends: &ends,
        })
        .collect();
    for device in common::devices() {
        let write = |sequences: usize| {
            let params = DecodeParams { sequences, positions: 12 };
            DeviceDecoder::new(&device, &decoder, params).unwrap().generate(&requests, &|_| ()).unwrap()
        };
        let alone = write(1);
        assert_eq!(alone, write(3), "{}", device.name());
        assert_eq!(alone, write(70), "{}", device.name());
        for (text, request) in alone.iter().zip(&requests) {
            let room = 12 - request.prompt.len() + 1;
            let ended = text.last().is_some_and(|token| ends.contains(token));
            assert!(ended || text.len() == request.most.min(room), "{} of {}", text.len(), request.most);
        }
    }
}

#[test]
fn a_logit_that_is_not_finite_is_named() {
    let checkpoint = random_model(|config, weights| {
        weights.get_mut("model.embed_tokens.weight").unwrap().1[83 * config.hidden + 5] = f32::NAN;
    });
    let decoder = Decoder::load(&checkpoint).unwrap();
    for device in common::devices() {
        let params = DecodeParams { sequences: 2, positions: 4 };
        let mut run = DeviceDecoder::new(&device, &decoder, params).unwrap();
        let sample = SampleParams { temperature: 1.0, ..SampleParams::default() };
        let request = Request { prompt: &[1, 2], sample, most: 2, ends: &[] };
        let error = run.generate(&[request.clone(), request], &|_| ()).unwrap_err();
        let named = matches!(error, ForwardError::Logit { sequence: 0, position: 0, token: 83, .. });
        assert!(named, "{}: {error}", device.name());
    }
}

#[test]
fn bad_requests_are_named() {
    let decoder = Decoder::load(&embedded()).unwrap();
    let params = DecodeParams { sequences: 2, positions: 4 };
    let mut run = DeviceDecoder::new(&Device::Host, &decoder, params).unwrap();
    fn request(prompt: &[u32]) -> Request<'_> {
        Request { prompt, sample: SampleParams::default(), most: 1, ends: &[] }
    }
    let mut error =
        |prompt: &[u32]| run.generate(&[request(&[1]), request(prompt)], &|_| ()).unwrap_err().to_string();
    assert!(error(&[]).contains("prompt 1 is empty"));
    assert!(error(&[1; 5]).contains("5 positions"));
    assert!(error(&[1, 99_999]).contains("token 99999 at position 1"));
}
