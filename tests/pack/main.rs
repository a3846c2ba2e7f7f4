//! Packing the embedded model as a process: the result, interruptions, full disks.

#[path = "../common/mod.rs"]
mod common;
mod folder;
mod resume;

use std::fs;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use folder::{Folder, failure, lapidary, success};

#[test]
fn the_whole_model_is_packed_verified_and_runs() {
    let folder = Folder::new();
    fs::write(folder.path("plan.toml"), "bits = 1.5\n").unwrap();
    success(folder.pack("out", &[]));
    let out = folder.path("out");
    assert!(!folder.path("out.partial").exists());

    let packing: Value = serde_json::from_slice(&fs::read(out.join("packing.json")).unwrap()).unwrap();
    assert_eq!(packing["totals"]["packed_tensors"], 28);
    assert_eq!(packing["totals"]["dense_tensors"], 0);
    assert!(packing["totals"]["body_bits"].as_f64().unwrap() <= 1.5);
    let config: Value = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["quantization_config"]["quant_method"], "lapidary");
    assert_eq!(config["hidden_size"], 192);

    let run = |words: &[&str]| {
        let mut command = lapidary();
        command.args(words);
        success(command)
    };
    let verified: Value = serde_json::from_str(&run(&["verify", out.to_str().unwrap(), "--json"])).unwrap();
    assert_eq!(verified["faults"], serde_json::json!([]));
    let eval = |model: &Path, more: &[&str]| -> Value {
        let (text, model) = (common::tiny("test.txt"), model.to_str().unwrap());
        let mut words = vec![
            "eval",
            model,
            "--text",
            text.to_str().unwrap(),
            "--window",
            "128",
            "--windows",
            "40",
            "--json",
        ];
        words.extend(more);
        serde_json::from_str(&run(&words)).unwrap()
    };
    let tiny = common::tiny("");
    let original = eval(&tiny, &["--against", tiny.to_str().unwrap()]);
    let packed = eval(&out, &["--against", tiny.to_str().unwrap()]);
    assert!(original["mean_kl"].as_f64().unwrap() < 1e-6);
    assert_eq!(original["top1_agreement"], 1.0);
    let (before, after) = (original["perplexity"].as_f64().unwrap(), packed["perplexity"].as_f64().unwrap());
    assert!(before < 2.8 && after < 2.0 * before, "perplexity {before} became {after}");
    assert_eq!(packed["original_perplexity"], original["perplexity"]);
    let inspected: Value = serde_json::from_str(&run(&["inspect", out.to_str().unwrap(), "--json"])).unwrap();
    assert_eq!(inspected["linear_layers"].as_array().unwrap().len(), 28);
    let text = run(&["generate", out.to_str().unwrap(), "-p", "Two days after Monday is", "-n", "1"]);
    assert_eq!(text, "Two days after Monday is Wednesday\n");
}

#[test]
fn the_same_bits_go_further_where_responses_are_measured() {
    let folder = Folder::new();
    let original = common::tiny("");
    let divergence = |name: &str| {
        let text = common::tiny("test.txt");
        let mut command = lapidary();
        command.arg("eval").arg(folder.path(name)).arg("--text").arg(text).arg("--against").arg(&original);
        command.args(["--window", "128", "--windows", "40", "--json"]);
        let scores: Value = serde_json::from_str(&success(command)).unwrap();
        scores["mean_kl"].as_f64().unwrap()
    };
    success(folder.pack("uniform", &[]));
    let output = success(folder.pack("measured", &["--allocate", "measured"]));
    assert!(output.contains("a weight for 14 layers"), "{output}");
    let packing: Value =
        serde_json::from_slice(&fs::read(folder.path("measured/packing.json")).unwrap()).unwrap();
    assert_eq!(packing["totals"]["packed_tensors"], 14);
    assert!(packing["totals"]["body_bits"].as_f64().unwrap() <= 1.0);
    let [uniform, measured] = ["uniform", "measured"].map(divergence);
    assert!(measured < 0.9 * uniform, "{measured} nats, uniform {uniform}");
    // The plan that was written is a plan like any other, and a run that is taken up again uses it.
    let model = |name: &str| fs::read(folder.path(name).join("model.safetensors")).unwrap();
    let mut killed = folder.pack("again", &["--allocate", "measured"]).spawn().unwrap();
    while !folder.path("again.partial").exists() {
        assert!(killed.try_wait().unwrap().is_none(), "finished too early");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let said = failure(folder.pack("again", &["--allocate", "measured", "--resume", "--bits", "3"]));
    assert!(said.contains("was measured for another --bits or --plan"), "{said}");
    let output = success(folder.pack("again", &["--allocate", "measured", "--resume"]));
    assert!(!output.contains("a weight for 14 layers"), "measured again: {output}");
    assert!(model("again") == model("measured"));
    fs::copy(folder.path("measured.plan.toml"), folder.path("plan.toml")).unwrap();
    success(folder.pack("planned", &[]));
    assert!(model("planned") == model("measured"));
}

#[test]
fn a_plan_that_is_there_is_never_overwritten() {
    let folder = Folder::new();
    let plan = folder.path("out.plan.toml");
    fs::write(&plan, "bits = 2.0\n").unwrap();
    let said = failure(folder.pack("out", &["--allocate", "measured"]));
    assert!(said.contains("out.plan.toml exists already: pack with --plan"), "{said}");
    assert_eq!(fs::read_to_string(&plan).unwrap(), "bits = 2.0\n");
    let said = failure(folder.pack("out", &["--allocate", "measured", "--resume"]));
    assert!(said.contains("there is nothing to resume") && said.contains("keeps nothing"), "{said}");
    assert!(!folder.path("out").exists() && !folder.path("out.partial").exists());
    // Where no plan could be written, nothing is measured.
    fs::write(folder.path("file"), "").unwrap();
    let said = failure(folder.pack("file/out", &["--allocate", "measured"]));
    assert!(said.contains("choose an output"), "{said}");
    // Weights that make up for earlier blocks would be fitted beside one that stays as it is.
    fs::write(
        folder.path("plan.toml"),
        "bits = 1.0\n[tensors.\"model.layers.1.mlp.down_proj\"]\nkeep_dense = true\n",
    )
    .unwrap();
    let said = failure(folder.pack("out", &["--set", "mitigate.passes=1"]));
    assert!(said.contains("packs some layers of block 1 and keeps others dense"), "{said}");
}

#[test]
fn verify_checks_what_packing_json_says() {
    let folder = Folder::new();
    success(folder.pack("out", &["--recipe", "dual-svid"]));
    let file = folder.path("out").join("packing.json");
    let text = fs::read_to_string(&file).unwrap();
    let verify = |more: &str| {
        let output = lapidary().arg("verify").arg(folder.path("out")).arg("--json").output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let faults = found["faults"].to_string();
        assert!(faults.contains(more), "{faults}");
        assert_eq!(output.status.success(), more == "[]");
    };
    verify("[]");
    type Edit = fn(&mut Value);
    let edits: [(Edit, &str); 6] = [
        (|v| v["files"] = serde_json::json!({}), "model.safetensors: packing.json has no checksum"),
        (|v| v["files"]["/dev/zero"] = "0".into(), "/dev/zero: there is no such file"),
        (|v| v["tensors"][0]["shape"] = serde_json::json!([u64::MAX, 2]), "config.json"),
        (|v| v["tensors"][0]["rank"] = 16.into(), "rank and bits a weight"),
        (|v| v["totals"]["body_bits"] = 0.5.into(), "totals are not the sums"),
        (|v| v["tensors"][3]["name"] = "model.layers.0.mlp.up_proj".into(), "lists it twice"),
    ];
    for (edit, expected) in edits {
        let mut value: Value = serde_json::from_str(&text).unwrap();
        edit(&mut value);
        fs::write(&file, value.to_string()).unwrap();
        verify(expected);
    }
    fs::write(&file, &text).unwrap();
    let model = folder.path("out").join("model.safetensors");
    let bytes = fs::read(&model).unwrap();
    fs::write(&model, &bytes[..bytes.len() / 2]).unwrap();
    verify("model.safetensors: its SHA-256");
    fs::remove_file(&model).unwrap();
    verify("model.safetensors: there is no such file");
    assert!(
        failure({
            let mut command = lapidary();
            command.arg("verify").arg(folder.path("nowhere"));
            command
        })
        .contains("no such folder")
    );
}

#[cfg(unix)]
#[test]
fn output_files_have_the_usual_permissions_and_odd_paths_work() {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    success(folder.pack("out", &["--recipe", "dual-svid"]));
    let mode = |name: &str| fs::metadata(folder.path("out").join(name)).unwrap().permissions().mode();
    assert_eq!(mode("model.safetensors"), mode("config.json"));
    let odd = folder.root().join(std::ffi::OsStr::from_bytes(b"sp\xc3\xa4te b\xff"));
    fs::rename(folder.path("out"), &odd).unwrap();
    for words in [&["inspect", "--json"][..], &["verify"], &["eval", "--json", "--windows", "1", "--text"]] {
        let mut command = lapidary();
        command.arg(words[0]).arg(&odd).args(&words[1..]);
        if words[0] == "eval" {
            command.arg(common::tiny("test.txt"));
        }
        success(command);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for words in [&["inspect"][..], &["generate", "-n", "50", "-p", "The"]] {
        let mut command = lapidary();
        command
            .arg(words[0])
            .arg(common::tiny(""))
            .args(&words[1..])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn prompts_and_windows_that_do_not_fit_are_said_first() {
    let tiny = |words: &[&str]| {
        let mut command = lapidary();
        command.arg(words[0]).arg(common::tiny("")).args(&words[1..]);
        command
    };
    let long = " May".repeat(512);
    let message = failure(tiny(&["generate", "-p", &long]));
    assert!(message.contains("512 tokens, but the model's context is 512"), "{message}");
    let test = common::tiny("test.txt");
    let test = test.to_str().unwrap();
    assert!(failure(tiny(&["eval", "--text", test, "--window", "513"])).contains("--window 513 is longer"));
    assert!(success(tiny(&["eval", "--text", test, "--windows", "2"])).contains("windows of 512 tokens"));
    let output = tiny(&["generate", "-p", &" May".repeat(510), "-n", "50"]).output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("is full"));
}

#[test]
fn a_folder_that_cannot_be_written_is_said() {
    let folder = Folder::new();
    fs::write(folder.path("file"), "in the way").unwrap();
    let message = failure(folder.pack("file/out", &[]));
    assert!(message.contains("file/out.partial"), "{message}");
}

#[test]
fn bad_input_is_said_before_anything_is_written() {
    let folder = Folder::new();
    fs::write(folder.path("empty.txt"), "").unwrap();
    fs::write(folder.path("latin1.txt"), b"caf\xe9").unwrap();
    fs::write(folder.path("short.txt"), "Monday.").unwrap();
    fs::write(folder.path("bad.toml"), "bits = 1.0\n[layers.9]\nbits = 2.0\n").unwrap();
    let file = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let test = common::tiny("test.txt");
    let cases: [(&[&str], &str); 25] = [
        (&["--text", &file("empty.txt")], "the file is empty"),
        (&["--text", &file("latin1.txt")], "line 1, byte 3 is not UTF-8"),
        (&["--text", &file("missing.txt")], "cannot be read"),
        (&["--text", &file("short.txt")], "needs 1024"),
        (&["--text", &file("short.txt"), "--fit-tokens", "0"], "the fit part is 0 tokens"),
        (&["--text", &file("short.txt"), "--fit-tokens", "18446744073709551615"], "tokens, but"),
        (&["--text", test.to_str().unwrap(), "--window", "513"], "knows 512"),
        (&["--text", "self:0"], "a share is a number above 0"),
        (&["--text", "self", "self:2"], "give self once"),
        (&["--text", "self", "--window", "513"], "knows 512"),
        (&["--text", "self", "--fit-tokens", "0"], "the fit part is 0 tokens"),
        (&["--text", "self", "--temperature", "-1"], "the temperature is -1"),
        (&["--text", &file("short.txt"), "--set", "blend=2"], "give a number from 0 to 1"),
        (&["--text", &file("short.txt"), "--set", "blend"], "give KNOB=VALUE"),
        (
            &["--recipe", "best", "--set", "distill.scales=0", "--set", "distill.signs=0"],
            "nothing would be trained",
        ),
        (&["--text", &file("short.txt"), "self", "--continued", "1.5"], "a share is a number from 0 to 1"),
        (&["--text", "self", "--continued", "0.5"], "no given text to go on from"),
        (&["--text", test.to_str().unwrap(), "self:0.000001"], "part is 0 tokens"),
        (&["--text", &file("short.txt"), "--plan", &file("bad.toml")], "[layers.\"9\"]"),
        (&["--text", &file("short.txt"), "--bits", "0"], "bits is 0.0"),
        (&["--text", &file("short.txt"), "--seed", "3"], "--seed is of text that the model writes"),
        (&["--text", &file("short.txt"), "--temperature", "0.7"], "--temperature is of text that the model"),
        (&["--text", &file("short.txt"), "--continued", "0.5"], "--continued is of text that the model"),
        (&["--recipe", "dual-svid", "--allocate", "measured"], "measured on calibration text"),
        (&["--recipe", "dual-svid", "--fit-tokens", "5"], "--fit-tokens is of calibration text"),
    ];
    for (words, expected) in cases {
        let mut command = lapidary();
        command.arg("pack").arg(common::tiny("")).arg("-o").arg(folder.path("out")).args(words);
        if !words.contains(&"--plan") && !words.contains(&"--bits") {
            command.args(["--bits", "1.0"]);
        }
        let message = failure(command);
        assert!(message.contains(expected), "{words:?}: {message}");
        assert!(!folder.path("out").exists() && !folder.path("out.partial").exists(), "{words:?}");
    }
}

#[test]
fn what_is_measured_without_what_it_needs_is_said() {
    let (model, text) = (common::tiny(""), common::tiny("calibration.txt"));
    let (model, text) = (model.to_str().unwrap(), text.to_str().unwrap());
    let whole = ["--device", "host", "--no-pack", "--model", model, "--text", text];
    let cases: [(&[&str], &str); 8] = [
        (&[], "--model"),
        (&["--shapes", "--divisor", "2"], "--block7b"),
        (&["--text", text], "--model"),
        (&["--set", "damping=0.1"], "--model"),
        (&[&whole[..], &["--blocks", "0", "--test", text]].concat(), "nothing is compared"),
        (&[&whole[..], &["--set", "dampin=0.1"]].concat(), "there is no such knob"),
        (&[&whole[..], &["--blocks", "1", "--bits", "nan"]].concat(), "bits is NaN"),
        (&[&whole[..], &["--blocks", "1", "--bits=-1"]].concat(), "bits is -1"),
    ];
    for (words, expected) in cases {
        let mut command = lapidary();
        command.args(["bench", "encode"]).args(words);
        let message = failure(command);
        assert!(message.contains(expected), "{words:?}: {message}");
    }
}
