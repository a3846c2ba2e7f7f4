//! Packing the embedded model as a process: the result, interruptions, full disks.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Two blocks packed, two kept dense: long enough to be interrupted many times, short enough for a test.
const PLAN: &str = "bits = 1.0\n[layers.\"2-3\"]\nkeep_dense = true\n";

struct Folder {
    temporary: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        fs::write(temporary.path().join("plan.toml"), PLAN).unwrap();
        Self { temporary }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    fn pack(&self, output: &str, more: &[&str]) -> Command {
        let mut command = self.pack_without_text(output, &[]);
        command.arg("--text").arg(common::tiny("calibration.txt")).args(more);
        command
    }

    fn pack_without_text(&self, output: &str, more: &[&str]) -> Command {
        let mut command = lapidary();
        command.arg("pack").arg(common::tiny("")).arg("--plan").arg(self.path("plan.toml"));
        command.args(["--window", "128", "-o"]).arg(self.path(output));
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn lapidary() -> Command {
    Command::new(env!("CARGO_BIN_EXE_lapidary"))
}

/// The command under a limit on file sizes, in blocks of 512 bytes, which stands for a full disk: a write fails in the
/// middle of a file.
#[cfg(unix)]
fn limited(pack: &Command, blocks: usize) -> Command {
    let words: Vec<String> = pack.get_args().map(|arg| format!("'{}'", arg.to_str().unwrap())).collect();
    let program = pack.get_program().to_str().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("trap '' XFSZ; ulimit -f {blocks}; exec '{program}' {}", words.join(" "))]);
    command
}

#[track_caller]
fn success(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn failure(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    // miette wraps its lines.
    String::from_utf8_lossy(&output.stderr)
        .replace("\n  │ ", " ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

#[track_caller]
fn assert_same_files(one: &Path, other: &Path) {
    let names = |folder: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(one), names(other));
    for name in names(one) {
        assert!(
            fs::read(one.join(&name)).unwrap() == fs::read(other.join(&name)).unwrap(),
            "{name:?} differs"
        );
    }
}

fn records(partial: &Path) -> usize {
    let Ok(entries) = fs::read_dir(partial) else { return 0 };
    entries
        .filter(|entry| entry.as_ref().is_ok_and(|e| e.path().extension().is_some_and(|x| x == "json")))
        .count()
}

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
fn killed_at_any_moment_it_resumes_to_the_same_bytes() {
    killed_at_any_moment(&[]);
}

#[test]
fn killed_with_two_streams_and_a_text_of_its_own_it_resumes_to_the_same_bytes() {
    killed_at_any_moment(&["--recipe", "nvg2", "--fit-tokens", "1024", "--heldout-tokens", "256"]);
}

/// Gradients, as short as they may be.
const BEST: [&str; 14] = [
    "--recipe",
    "best",
    "--fit-tokens",
    "1024",
    "--heldout-tokens",
    "256",
    "--set",
    "reconstruct.passes=2",
    "--set",
    "reconstruct.batch=512",
    "--set",
    "distill.passes=2",
    "--set",
    "distill.batch=512",
];

#[test]
fn killed_between_gradients_it_resumes_to_the_same_bytes() {
    killed_at_any_moment(&BEST);
}

#[test]
fn what_gradients_left_is_made_again_where_it_was_deleted() {
    let folder = Folder::new();
    success(folder.pack("whole", &BEST));
    let partial = folder.path("out.partial");
    let run_until = |file: &str, resume: &[&str]| {
        let mut command = folder.pack("out", &BEST);
        let mut child = command.args(resume).spawn().unwrap();
        while !partial.join(file).exists() {
            assert!(child.try_wait().unwrap().is_none(), "finished too early");
            std::thread::sleep(Duration::from_micros(200));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    };
    run_until("reconstructed-0.json", &[]);
    fs::remove_file(partial.join("model.layers.0.mlp.up_proj.reconstructed.blr")).unwrap();
    run_until("reconstructed-1.json", &["--resume"]);
    // An encoded tensor of the first block, whose input comes from layers that were tuned since.
    fs::remove_file(partial.join("model.layers.0.mlp.down_proj.blr")).unwrap();
    success({
        let mut command = folder.pack("out", &BEST);
        command.arg("--resume");
        command
    });
    assert_same_files(&folder.path("whole"), &folder.path("out"));
}

fn killed_at_any_moment(recipe: &[&str]) {
    let folder = Folder::new();
    success(folder.pack("whole", recipe));
    let partial = folder.path("out.partial");
    let mut kills = 0;
    let began = Instant::now();
    loop {
        let mut command = folder.pack("out", recipe);
        if partial.join("identity.json").exists() {
            command.arg("--resume");
        }
        let mut child = command.spawn().unwrap();
        let before = records(&partial);
        // Killed as soon as it has made any progress: at every tensor, and in between.
        while child.try_wait().unwrap().is_none() && records(&partial) <= before {
            std::thread::sleep(Duration::from_micros(200));
        }
        if let Some(status) = child.try_wait().unwrap() {
            let mut message = String::new();
            std::io::Read::read_to_string(child.stderr.as_mut().unwrap(), &mut message).unwrap();
            assert!(status.success(), "{message}");
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        assert!(began.elapsed() < Duration::from_secs(240), "no end after {kills} kills");
    }
    assert!(kills >= 8, "only {kills} kills");
    assert!(!partial.exists());
    assert_same_files(&folder.path("whole"), &folder.path("out"));
}

#[test]
fn a_foreign_or_finished_journal_is_refused() {
    let folder = Folder::new();
    assert!(failure(folder.pack("out", &["--resume"])).contains("nothing to resume"));
    let mut child = folder.pack("out", &[]).spawn().unwrap();
    while records(&folder.path("out.partial")) < 3 {
        assert!(child.try_wait().unwrap().is_none(), "finished too early");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(failure(folder.pack("out", &[])).contains("interrupted run; continue it with --resume"));
    assert!(
        failure(folder.pack("out", &["--resume", "--fit-tokens", "2560"])).contains("another calibration")
    );
    assert!(failure(folder.pack("out", &["--resume", "--recipe", "dual-svid"])).contains("another recipe"));
    success(folder.pack("out", &["--resume"]));
    assert!(failure(folder.pack("out", &[])).contains("exists already"));
    assert!(failure(folder.pack("out", &["--resume"])).contains("exists already"));
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_a_journal_that_resumes() {
    let folder = Folder::new();
    // Payloads of the first block are below 20 KB, the large ones of the second above.
    fs::write(folder.path("plan.toml"), format!("{PLAN}[layers.1]\nbits = 4.0\n")).unwrap();
    success(folder.pack("whole", &[]));
    let message = failure(limited(&folder.pack("out", &[]), 40));
    assert!(message.contains("what was finished is safe"), "{message}");
    let partial = folder.path("out.partial");
    assert!(records(&partial) >= 8);
    let left: Vec<_> = fs::read_dir(&partial).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.iter().all(|path| path.extension().is_none_or(|e| e != "tmp")), "{left:?}");
    success(folder.pack("out", &["--resume"]));
    assert_same_files(&folder.path("whole"), &folder.path("out"));
}

#[cfg(unix)]
#[test]
fn a_journal_is_never_lost_or_mixed_up() {
    let folder = Folder::new();
    let resume = |output: &str| folder.pack(output, &["--recipe", "dual-svid", "--resume"]);
    // Above every payload, below the model.
    failure(limited(&folder.pack("out", &["--recipe", "dual-svid"]), 300));
    let (out, partial) = (folder.path("out"), folder.path("out.partial"));
    let kept = records(&partial);
    assert!(kept >= 8);

    // A folder of somebody else's where the result should go.
    fs::create_dir(&out).unwrap();
    assert!(failure(resume("out")).contains("exists already"));
    assert_eq!(records(&partial), kept);
    fs::remove_dir(&out).unwrap();
    std::os::unix::fs::symlink("nowhere", &out).unwrap();
    assert!(failure(folder.pack("out", &["--recipe", "dual-svid"])).contains("exists already"));
    fs::remove_file(&out).unwrap();
    // Another run in the same journal.
    let lock = fs::File::open(partial.join("lock")).unwrap();
    lock.try_lock().unwrap();
    assert!(failure(resume("out")).contains("in use by another run"));
    drop(lock);
    // A journal that does not say whose it is.
    let identity = fs::read(partial.join("identity.json")).unwrap();
    fs::remove_file(partial.join("identity.json")).unwrap();
    assert!(failure(resume("out")).contains("not identity.json"));
    assert!(failure(folder.pack("out", &["--recipe", "dual-svid"])).contains("not identity.json"));
    fs::write(partial.join("identity.json"), "").unwrap();
    assert!(failure(resume("out")).contains("delete the folder"));
    fs::write(partial.join("identity.json"), identity).unwrap();
    // Records and residual streams that were changed or swapped.
    let (up, gate) =
        (partial.join("model.layers.0.mlp.up_proj.json"), partial.join("model.layers.0.mlp.gate_proj.json"));
    let original = fs::read_to_string(&up).unwrap();
    fs::write(&up, original.replace("\"rank\": ", "\"rank\": 1")).unwrap();
    assert!(failure(resume("out")).contains("up_proj.json is damaged"));
    fs::copy(&gate, &up).unwrap();
    assert!(failure(resume("out")).contains("up_proj.json is damaged"));
    fs::write(&up, original).unwrap();

    success(resume("out/"));
    success(folder.pack("whole/", &["--recipe", "dual-svid"]));
    assert_same_files(&folder.path("whole"), &out);
    assert!(!folder.path("whole.partial").exists());
}

#[test]
fn a_damaged_self_written_text_is_noticed() {
    let folder = Folder::new();
    let own = ["--recipe", "nvg2", "--text", "self", "--fit-tokens", "512", "--heldout-tokens", "128"];
    let mut child = folder.pack_without_text("out", &own).spawn().unwrap();
    let tokens = folder.path("out.partial").join("self-written.tokens");
    while !tokens.exists() {
        assert!(child.try_wait().unwrap().is_none(), "finished too early");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let written = fs::read(&tokens).unwrap();
    let mut bytes = written.clone();
    bytes[101] ^= 1;
    fs::write(&tokens, bytes).unwrap();
    let resume = || {
        let mut command = folder.pack_without_text("out", &own);
        command.arg("--resume");
        command
    };
    assert!(failure(resume()).contains("self-written.tokens is damaged"));
    // Written again, it is the same.
    fs::remove_file(&tokens).unwrap();
    success(resume());
    success(folder.pack_without_text("whole", &own));
    assert_same_files(&folder.path("whole"), &folder.path("out"));
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
    let odd = folder.temporary.path().join(std::ffi::OsStr::from_bytes(b"sp\xc3\xa4te b\xff"));
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
    let cases: [(&[&str], &str); 18] = [
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
        (&["--recipe", "best", "--set", "distill.scales=0"], "nothing would be trained"),
        (&["--text", test.to_str().unwrap(), "self:0.000001"], "part is 0 tokens"),
        (&["--text", &file("short.txt"), "--plan", &file("bad.toml")], "[layers.\"9\"]"),
        (&["--text", &file("short.txt"), "--bits", "0"], "bits is 0.0"),
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
