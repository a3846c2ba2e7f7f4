//! Runs that are killed, run out of disk, or find their journal changed.

use std::fs;
use std::time::{Duration, Instant};

use crate::folder::{Folder, PLAN, assert_same_files, failure, limited, records, success};

#[test]
fn killed_at_any_moment_it_resumes_to_the_same_bytes() {
    killed_at_any_moment(&[]);
}

#[test]
fn killed_with_two_streams_and_a_text_of_its_own_it_resumes_to_the_same_bytes() {
    killed_at_any_moment(&["--recipe", "nvg2", "--fit-tokens", "1024", "--heldout-tokens", "256"]);
}

/// Weights that make up for earlier blocks before they are packed.
const MITIGATED: [&str; 12] = [
    "--recipe",
    "nvg2",
    "--fit-tokens",
    "1024",
    "--heldout-tokens",
    "256",
    "--set",
    "mitigate.passes=1",
    "--set",
    "mitigate.batch=512",
    "--set",
    "blend=0",
];

#[test]
fn killed_among_mitigated_blocks_it_resumes_to_the_same_bytes() {
    killed_at_any_moment(&MITIGATED);
}

#[test]
fn blocks_that_make_up_for_earlier_ones_are_on_record() {
    let folder = Folder::new();
    let output = success(folder.pack("out", &MITIGATED));
    assert!(output.contains("before") && output.contains("of 2 blocks: held-out loss"), "{output}");
    let packing = fs::read(folder.path("out/packing.json")).unwrap();
    let packing: serde_json::Value = serde_json::from_slice(&packing).unwrap();
    let mitigated = packing["mitigated"].as_array().unwrap();
    assert_eq!(mitigated.iter().map(|block| block["layer"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1]);
    // The first block has nothing to make up for, the second does.
    let [before, after] = [0, 1].map(|k| mitigated[1]["heldout"][k].as_f64().unwrap());
    assert!(mitigated[1]["dropped"].is_null() && after < before, "{before} to {after}");
}

/// Gradients, as short as they may be.
const BEST: [&str; 16] = [
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
    "--set",
    "more=0.5",
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
    // A number of what tuning did, and the record of another block.
    let record = partial.join("reconstructed-0.json");
    let whole = fs::read_to_string(&record).unwrap();
    let resume = || failure(folder.pack("out", &[&BEST[..], &["--resume"]].concat()));
    let changed = whole.replacen("\"steps\": ", "\"steps\": 1", 1);
    assert_ne!(changed, whole);
    for other in [changed, fs::read_to_string(partial.join("reconstructed-1.json")).unwrap()] {
        fs::write(&record, other).unwrap();
        let said = resume();
        assert!(said.contains("reconstructed-0.json is damaged"), "{said}");
    }
    fs::write(&record, whole).unwrap();
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
    assert!(failure(resume("out")).contains("no identity.json"));
    assert!(failure(folder.pack("out", &["--recipe", "dual-svid"])).contains("no identity.json"));
    // A folder of somebody else's where the unfinished run would be kept.
    fs::create_dir(folder.path("own.partial")).unwrap();
    fs::write(folder.path("own.partial/notes.txt"), "mine").unwrap();
    let said = failure(folder.pack("own", &["--recipe", "dual-svid"]));
    assert!(said.contains("choose another") && !said.contains("delete"), "{said}");
    assert_eq!(fs::read_dir(folder.path("own.partial")).unwrap().count(), 1, "nothing is left in it");
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
