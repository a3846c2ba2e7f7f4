//! Divergence from an original's stored predictions, against that from the original itself.

mod common;
#[path = "common/tiny.rs"]
mod tiny;

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use lapidary::device::Device;
use lapidary::eval::{BaseInfo, HEAD, KlBase, KlKind, Original, evaluate};
use lapidary::model::text::{Text, Windows};
use lapidary::model::{Checkpoint, Config, Decoder, NoCapture, Run};
use lapidary::ops::coarse::Coarse;
use lapidary::ops::log_softmax::divergence;
use serde_json::Value;

/// Rounding of a stored log-probability (f32, magnitudes below 32), and of [`divergence`]'s own sum (see its test).
const LOG_ROUNDING: f64 = 2e-6;
const SUM_ROUNDING: f64 = 1e-5;

/// Two models of random weights over the embedded tokenizer, the second a disturbed copy of the first.
fn models() -> [Decoder; 2] {
    let config = Config { vocab: 864, layers: 2, max_positions: 512, ..tiny::config(true) };
    let mut weights = tiny::weights(&config);
    // Flat enough for much to lie outside of the head.
    let (_, norm) = weights.get_mut("model.norm.weight").unwrap();
    norm.iter_mut().for_each(|w| *w *= 0.3);
    let mut other = weights.clone();
    for (name, (_, numbers)) in &mut other {
        if name.contains("mlp") {
            numbers.iter_mut().step_by(3).for_each(|w| *w = -*w);
        }
    }
    [weights, other].map(|w| Decoder::load(&tiny::checkpoint(&config, &tiny::stored(&w))).unwrap())
}

fn windows(len: usize, count: usize, bos: Option<u32>) -> Windows {
    let text = fs::read_to_string(common::tiny("test.txt")).unwrap();
    let text = Text::from_memory("test.txt", &text).unwrap();
    let tokenizer = Checkpoint::open(common::tiny("")).unwrap().tokenizer().unwrap();
    let mut windows = Windows::cut(&text, &tokenizer, len, bos).unwrap();
    windows.truncate(count);
    windows
}

fn info(windows: &Windows) -> BaseInfo {
    BaseInfo::new("original".into(), "abc".into(), 864, windows)
}

fn store(file: &Path, original: &Decoder, windows: &Windows) -> KlBase {
    KlBase::store(&Device::Host, file, &info(windows), original, windows, &|_| ()).unwrap();
    KlBase::open(file, &info(windows)).unwrap()
}

#[test]
fn stored_predictions_give_the_bound_and_the_rest_is_what_it_misses() {
    let folder = tempfile::tempdir().unwrap();
    let [original, model] = models();
    for (len, count, bos) in [(64, 4, None), (300, 2, Some(0))] {
        let windows = windows(len, count, bos);
        let base = store(&folder.path().join("base.safetensors"), &original, &windows);
        let stored = evaluate(&model, Some(Original::Stored(&base)), &windows, &|_| ()).unwrap();
        let loaded = evaluate(&model, Some(Original::Loaded(&original)), &windows, &|_| ()).unwrap();
        let (bound, exact) = (stored.divergence.clone().unwrap(), loaded.divergence.clone().unwrap());
        assert_eq!((bound.kl_kind, exact.kl_kind), (KlKind::LowerBound, KlKind::Exact));
        assert_eq!((stored.nll, bound.top1_agreement), (loaded.nll, exact.top1_agreement));
        let original_nll = [&bound, &exact].map(|d| d.original_perplexity.ln());
        assert!((original_nll[0] - original_nll[1]).abs() < LOG_ROUNDING);

        let mut missing = 0.0;
        for index in 0..windows.count() {
            let tokens = windows.window(index);
            let [p, q] = [&original, &model]
                .map(|d| d.forward(tokens, Run::Windows { len: tokens.len() }, &mut NoCapture).unwrap());
            let rows = p.chunks_exact(864).zip(q.chunks_exact(864)).take(tokens.len() - 1);
            missing += rows.map(|(p, q)| within_the_rest(p, q)).sum::<f64>();
        }
        missing /= stored.scored as f64;
        println!("KL {}, bound {}, missing {missing}", exact.mean_kl, bound.mean_kl);
        let tolerance = LOG_ROUNDING + SUM_ROUNDING * exact.mean_kl;
        assert!(missing > 100.0 * tolerance, "the test would not notice what the bound misses");
        assert!((bound.mean_kl + missing - exact.mean_kl).abs() < tolerance);

        for scores in [&stored, &loaded] {
            assert_eq!(scores.per_window.len(), count);
            let mean = |of: &dyn Fn(usize) -> f64| (0..count).map(of).sum::<f64>() / count as f64;
            assert!((mean(&|k| scores.per_window[k].nll) - scores.nll).abs() < 1e-12);
            let kl = mean(&|k| scores.per_window[k].mean_kl.unwrap());
            assert!((kl - scores.divergence.as_ref().unwrap().mean_kl).abs() < 1e-12);
            assert!((scores.per_window[1].nll.exp() - scores.per_window[1].perplexity).abs() < 1e-9);
        }
        // From itself an original diverges by rounding alone.
        let own = evaluate(&original, Some(Original::Stored(&base)), &windows, &|_| ()).unwrap();
        assert!(own.divergence.unwrap().mean_kl < LOG_ROUNDING);
    }
}

/// `P_R KL(p(·|R) ‖ q(·|R))` for what is not in the head of p.
fn within_the_rest(p: &[f32], q: &[f32]) -> f64 {
    let coarse = Coarse::of(p, HEAD);
    let rest: Vec<usize> = (0..p.len()).filter(|k| !coarse.tokens.contains(&(*k as u32))).collect();
    let [p, q] = [p, q].map(|z| rest.iter().map(|k| z[*k]).collect::<Vec<_>>());
    f64::from(coarse.log_rest).exp() * divergence(&p, &q)
}

#[test]
fn predictions_of_something_else_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("base.safetensors");
    let [original, _] = models();
    let cut = windows(64, 3, None);
    drop(store(&file, &original, &cut));
    let shifted = {
        let text = fs::read_to_string(common::tiny("test.txt")).unwrap();
        let text = Text::from_memory("test.txt", &text[5..]).unwrap();
        let tokenizer = Checkpoint::open(common::tiny("")).unwrap().tokenizer().unwrap();
        let mut windows = Windows::cut(&text, &tokenizer, 64, None).unwrap();
        windows.truncate(3);
        windows
    };
    let cases = [
        ("another model: abc there, abd here", BaseInfo { fingerprint: "abd".into(), ..info(&cut) }),
        ("another window: 64 there, 32 here", info(&windows(32, 3, None))),
        ("another number of windows: 3 there, 2 here", info(&windows(64, 2, None))),
        ("another use of a start token: 63 there, 64 here", info(&windows(64, 3, Some(0)))),
        ("another vocabulary: 864 there, 865 here", BaseInfo { vocab: 865, ..info(&cut) }),
        ("another text or tokenizer", info(&shifted)),
    ];
    for (expected, asked) in cases {
        let error = KlBase::open(&file, &asked).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // Whoever does not say which model it was takes any.
    KlBase::open(&file, &BaseInfo { fingerprint: String::new(), ..info(&cut) }).unwrap();
}

#[test]
fn damaged_predictions_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("base.safetensors");
    let [original, model] = models();
    let cut = windows(32, 2, None);
    drop(store(&file, &original, &cut));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let good = fs::read(&file).unwrap();
    let data = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let head = 31 * HEAD * 4;
    let with = |at: usize, word: u32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        bytes
    };
    let cases = [
        ("short", good[..good.len() - 1].to_vec()),
        ("only a header", good[..data].to_vec()),
        ("empty", Vec::new()),
        ("another file", fs::read(common::tiny("model.safetensors")).unwrap()),
        ("a token past the vocabulary", with(data, 864)),
        ("a probability that is none", with(data + head, f32::NAN.to_bits())),
        ("a rest that is none", with(data + 2 * head, f32::NAN.to_bits())),
        ("a probability above 1", with(data + head, 5f32.to_bits())),
        ("another token", with(data, u32::from(good[data] == 0))),
    ];
    for (case, bytes) in cases {
        fs::write(&file, bytes).unwrap();
        let error = match KlBase::open(&file, &info(&cut)) {
            Err(error) => error.to_string(),
            Ok(base) => {
                evaluate(&model, Some(Original::Stored(&base)), &cut, &|_| ()).unwrap_err().to_string()
            }
        };
        assert!(error.contains("base.safetensors") && error.contains("damaged"), "{case}: {error}");
    }
}

#[test]
fn eval_stores_predictions_once_and_uses_them_after() {
    let folder = tempfile::tempdir().unwrap();
    let (file, tiny) = (folder.path().join("base.safetensors"), common::tiny(""));
    let eval = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lapidary"));
        command.arg("eval").arg(&tiny).arg("--text").arg(common::tiny("test.txt"));
        command.args(["--window", "64", "--windows", "3", "--json", "--kl-base"]).arg(&file).args(more);
        command
    };
    let error = String::from_utf8(eval(&[]).assert().failure().get_output().stderr.clone()).unwrap();
    assert!(error.contains("does not exist: name the original with --against"), "{error}");
    let against = ["--against", tiny.to_str().unwrap()];
    let json = |mut command: Command| -> Value {
        serde_json::from_slice(&command.assert().success().get_output().stdout).unwrap()
    };
    let first = json(eval(&against));
    assert!(file.is_file());
    let second = json(eval(&[]));
    let third = json(eval(&against));
    for scores in [&first, &second, &third] {
        assert_eq!(scores["kl_kind"], "lower_bound");
        assert_eq!((&scores["mean_kl"], &scores["per_window"]), (&first["mean_kl"], &first["per_window"]));
        assert_eq!(scores["top1_agreement"], 1.0);
        assert_eq!(scores["per_window"].as_array().unwrap().len(), 3);
        assert!(scores["kl_base"]["definition"].as_str().unwrap().contains("lower bound"));
    }
    // Another original than the one whose predictions are there.
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(common::tiny(name), other.join(name)).unwrap();
    }
    let output = eval(&["--against", other.to_str().unwrap()]).assert().failure().get_output().clone();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("was stored for another model"), "{error}");
}
