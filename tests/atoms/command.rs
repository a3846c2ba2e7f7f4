use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use assert_cmd::Command;
use lapidary::atoms::file;
use lapidary::atoms::zoo::{Case, Planted};

fn lapidary(arguments: &[&str]) -> Output {
    Command::cargo_bin("lapidary").unwrap().args(arguments).output().unwrap()
}

/// NumPy's format, version 1.
fn npy(path: &Path, x: &[f64], width: usize) {
    let mut header =
        format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({}, {width}), }}", x.len() / width);
    while (header.len() + 11) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(x.iter().flat_map(|v| v.to_le_bytes()));
    fs::write(path, bytes).unwrap();
}

fn planted() -> Planted {
    Case::Circle.plant(0)
}

#[test]
fn activations_are_explained_saved_and_encoded() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let planted = planted();
    npy(at("acts.npy").as_ref(), &planted.x, planted.width);
    let labels: Vec<String> = (0..planted.truth.len()).map(|i| format!("<{}>", i % 3)).collect();
    fs::write(at("labels.txt"), labels.join("\n")).unwrap();
    let out =
        lapidary(&["explain", &at("acts.npy"), "--labels", &at("labels.txt"), "-o", &at("out"), "--json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["certificate"]["outcome"], "converged");
    assert_eq!(report["atoms"].as_array().unwrap().len(), 1);
    assert!(report["explained"].as_f64().unwrap() > 0.9);
    let page = fs::read_to_string(at("out/report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("&lt;1&gt;") && !page.contains("<1>"));
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("href="));
    assert!(fs::read_to_string(at("out/atom-0.svg")).unwrap().starts_with("<svg"));

    let out = lapidary(&[
        "encode",
        &at("out/dictionary.safetensors"),
        &at("acts.npy"),
        "-o",
        &at("codes"),
        "--json",
    ]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let encoded: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(encoded["explained"].as_f64().unwrap() > 0.9);
    let dictionary = file::read_dictionary(at("out/dictionary.safetensors").as_ref()).unwrap();
    assert_eq!(dictionary.encode(&planted.x, planted.width).unwrap().len(), planted.truth.len());
}

#[test]
fn blocks_that_are_explained_stay_when_the_rest_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tiny");
    let words = format!("{tiny}/words.json");
    let explain = |output: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lapidary"));
        command.args(["explain", tiny, "--words", &words, "--set", "weekday", "--layer", "all"]);
        command.args(["--centre", "template", "--json", "-o"]).arg(at(output));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        command
    };
    let read =
        |file: &str| -> serde_json::Value { serde_json::from_slice(&fs::read(at(file)).unwrap()).unwrap() };

    let out = explain("whole").output().unwrap();
    assert!(out.status.success());
    let whole: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let without_seconds = |mut report: serde_json::Value| {
        report["layers"].as_array_mut().unwrap().iter_mut().for_each(|layer| layer["seconds"] = 0.into());
        report
    };
    assert_eq!(read("whole/weekday/words.json"), whole[0]);
    assert_eq!(whole[0]["layers"].as_array().unwrap().len(), 4);
    for layer in 1..=4 {
        let dictionary = at(&format!("whole/weekday/block-0{layer}/dictionary.safetensors"));
        assert_eq!(file::read_dictionary(&dictionary).unwrap().space.width, 192);
    }
    for layer in whole[0]["layers"].as_array().unwrap() {
        assert!(layer["pca"].as_f64().is_some_and(|pca| pca > 0.0), "{layer}");
    }

    let mut stopped = explain("stopped").spawn().unwrap();
    while !at("stopped/weekday/words.json").exists() && stopped.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    stopped.kill().unwrap();
    stopped.wait().unwrap();
    let part = without_seconds(read("stopped/weekday/words.json"));
    let layers = part["layers"].as_array().unwrap();
    assert_eq!(layers[..], without_seconds(whole[0].clone())["layers"].as_array().unwrap()[..layers.len()]);
    assert!(at("stopped/weekday/block-01/report.html").exists());
}

#[test]
fn what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let planted = planted();
    npy(at("acts.npy").as_ref(), planted.fit_rows(), planted.width);
    let mut bad = planted.fit_rows().to_vec();
    bad[32 * 5 + 2] = f64::NAN;
    npy(at("nan.npy").as_ref(), &bad, planted.width);
    npy(at("row.npy").as_ref(), &planted.x[..32], 32);
    npy(at("narrow.npy").as_ref(), &planted.x[..32 * 30], 30);
    fs::write(at("labels.txt"), "one\ntwo\n").unwrap();
    fs::write(at("good.json"), "{\"day\": {\"words\": [\"a\", \"b\"], \"templates\": [\"{}\"]}}").unwrap();
    fs::write(at("words.json"), "{\"day\": {\"words\": [\"a\", \"b\"], \"templates\": [\"no place\"]}}")
        .unwrap();
    fs::write(at("not.npy"), b"\x93NUMPY\x01\x00\xff").unwrap();
    fs::write(at("file"), "").unwrap();
    let empty: Vec<(&str, safetensors::tensor::TensorView<'_>)> = Vec::new();
    fs::write(at("none.safetensors"), safetensors::serialize(empty, None).unwrap()).unwrap();
    // Held-out rows that do not vary, and numbers whose squares are beyond f64.
    let mut still = planted.fit_rows().to_vec();
    for row in (4..still.len() / 32).step_by(5) {
        (0..32).for_each(|j| still[row * 32 + j] = 0.1 * (j as f64));
    }
    npy(at("still.npy").as_ref(), &still, 32);
    let huge: Vec<f64> = planted.fit_rows().iter().map(|v| v * 1e200).collect();
    npy(at("huge.npy").as_ref(), &huge, 32);
    // A time beyond what the clock holds is none.
    let out = lapidary(&["explain", &at("acts.npy"), "--seconds", "1e19", "-o", &at("out")]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny");
    let model = model.to_str().unwrap();
    for (arguments, said) in [
        (vec!["explain", &at("nan.npy")], "row 5, column 2"),
        (vec!["explain", &at("row.npy")], "too few"),
        (vec!["explain", &at("not.npy")], "ends inside its header"),
        (vec!["explain", &at("missing.npy")], "cannot be read"),
        (
            vec!["explain", &at("acts.npy"), "--labels", &at("labels.txt"), "-o", &at("labelled")],
            "2 labels for 400 rows",
        ),
        (vec!["explain", &at("acts.npy"), "--labels", &at("labels.txt")], "--output"),
        (vec!["explain", &at("acts.npy"), "--tensor", "x"], "leave `x` out"),
        (vec!["explain", &at("none.safetensors")], "holds no tensors"),
        (vec!["explain", &at("still.npy")], "held-out rows"),
        (vec!["explain", &at("huge.npy")], "beyond what f64 holds"),
        (vec!["explain", &at("acts.npy"), "-o", &at("file/out")], "choose an output that can be written"),
        (
            vec!["explain", "no-model", "--words", &at("good.json"), "--set", "day", "--set", "night"],
            "has no words `night`; there are: day",
        ),
        (vec!["explain", &at("acts.npy"), "--shapes", "cube"], "there is no shape `cube`"),
        (vec!["explain", &at("acts.npy"), "--seconds=-1"], "--seconds"),
        (vec!["explain", model, "--words", &at("words.json"), "--layer", "1"], "must have one {}"),
        (vec!["explain", model], "--words or --text"),
        (vec!["explain", &at("acts.npy"), "--layer", "3"], "holds activations"),
        (vec!["explain", &at("acts.npy"), "-o", &at("out")], "out exists already"),
        (
            vec![
                "encode",
                &at("out/dictionary.safetensors"),
                &at("acts.npy"),
                "-o",
                &at("out/dictionary.safetensors"),
            ],
            "exists already",
        ),
        (vec!["explain", &at("acts.npy"), "--centre", "template"], "--words"),
        (vec!["explain", &at("acts.npy"), "--tokens", "512"], "--text"),
        (
            vec!["explain", model, "--words", &at("words.json"), "--labels", &at("labels.txt")],
            "cannot be used with",
        ),
        (
            vec!["encode", &at("out/dictionary.safetensors"), &at("narrow.npy")],
            "30 numbers where the dictionary",
        ),
        (vec!["encode", &at("acts.npy"), &at("acts.npy")], "is no dictionary"),
    ] {
        let out = lapidary(&arguments);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && text.contains(said), "{arguments:?}: {text}");
        assert!(!text.contains("panicked"), "{text}");
    }
}

#[test]
fn sets_of_words_that_cannot_be_told_apart_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("words.json");
    let set =
        |name: &str, words: &str| format!("\"{name}\": {{\"words\": [{words}], \"templates\": [\"{{}}\"]}}");
    for (sets, said) in [
        (set("..", "\"a\", \"b\""), "`..` cannot be a folder's name"),
        (set("", "\"a\", \"b\""), "cannot be a folder's name"),
        (set("a/b", "\"a\", \"b\""), "cannot be a folder's name"),
        (set("/tmp/a", "\"a\", \"b\""), "cannot be a folder's name"),
        (set("a\\\\b", "\"a\", \"b\""), "cannot be a folder's name"),
        (set("day", "\"a\", \"\""), "an empty word"),
        (set("day", "\"a\", \"b\", \"a \""), "a word twice"),
        (format!("{}, {}", set("day", "\"a\", \"b\""), set("day", "\"c\", \"d\"")), "two sets `day`"),
    ] {
        fs::write(&file, format!("{{{sets}}}")).unwrap();
        let error = ::lapidary::explain::read_words(&file).unwrap_err().to_string();
        assert!(error.contains("words.json") && error.contains(said), "{sets}: {error}");
    }
}

#[test]
fn a_text_takes_two_windows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (model, text) = (root.join("assets/tiny"), root.join("assets/tiny/test.txt"));
    let (model, text) = (model.to_str().unwrap(), text.to_str().unwrap());
    let explain = |tokens: &str| {
        lapidary(&["explain", model, "--text", text, "--layer", "1", "--seconds", "1", "--tokens", tokens])
    };
    let out = explain("255");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("--tokens") && said.contains("256"), "{said}");
    let out = explain("256");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn words_of_the_embedded_model_are_explained() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (model, words) = (root.join("assets/tiny"), root.join("assets/words.json"));
    let out = lapidary(&[
        "explain",
        model.to_str().unwrap(),
        "--layer",
        "all",
        "--words",
        words.to_str().unwrap(),
        "--set",
        "weekday",
        "--centre",
        "template",
        "--json",
    ]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(report[0]["coherence"].as_f64().unwrap() >= 0.95, "{report}");
    assert_eq!(report[0]["order_rank"], 1, "{report}");
}
