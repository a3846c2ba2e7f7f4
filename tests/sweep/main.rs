//! Batteries of fits as a user runs them: the table, failures apart, kills at any moment, streamed shards.

mod refused;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use faer::{Mat, MatRef};
use lapidary::atoms::file::{Activations, read_activations, read_dictionary, write_activations};
use lapidary::atoms::wide::{Battery, Heap, Job, WideParams, predicted_bytes};
use lapidary::atoms::zoo::Case;
use lapidary::device::Device;
use lapidary::explain::sweep::{Record, State};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

const LAPIDARY: &str = env!("CARGO_BIN_EXE_lapidary");

/// Long before this a battery of these tests has its next fit.
const PATIENCE: Duration = Duration::from_secs(120);

fn write_rows(file: &Path, width: usize, x: &[f64]) {
    let bytes: Vec<u8> = x.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![x.len() / width, width], &bytes).unwrap();
    safetensors::serialize_to_file([("rows", view)], None, file).unwrap();
}

/// A folder with planted rows and a battery over them.
fn folder(battery: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, case) in [("circle", Case::Circle), ("two", Case::TwoCircles)] {
        let planted = case.plant(0);
        write_rows(&folder.path().join(format!("{name}.safetensors")), planted.width, &planted.x);
    }
    std::fs::write(folder.path().join("battery.toml"), battery).unwrap();
    folder
}

fn sweep(folder: &Path, output: &str, more: &[&str]) -> Command {
    let mut command = Command::new(LAPIDARY);
    command.arg("sweep").arg(folder.join("battery.toml")).arg("-o").arg(folder.join(output));
    command.args(["--device", "host"]).args(more).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn table(folder: &Path, output: &str) -> String {
    std::fs::read_to_string(folder.join(output).join("table.csv")).unwrap()
}

fn records(folder: &Path, output: &str) -> Vec<Record> {
    let text = std::fs::read_to_string(folder.join(output).join("table.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn explained(record: &Record) -> f64 {
    match &record.state {
        State::Fitted { explained, .. } => *explained,
        State::Failed { error } => panic!("{:?}: {error}", record.cell),
    }
}

const RACES: &str = r#"
[rows]
files = ["circle.safetensors", "missing.safetensors", "two.safetensors"]

[fits]
atoms = [1, 2]
shapes = ["circle", "ray+line"]
seeds = [0, 1]
active = 2
"#;

#[test]
fn a_battery_has_one_table_and_its_failures_apart() {
    let folder = folder(RACES);
    assert!(sweep(folder.path(), "out", &[]).status().unwrap().success());
    let records = records(folder.path(), "out");
    assert_eq!(records.len(), 3 * 2 * 2 * 2);
    for record in &records {
        match (&record.state, record.cell.rows.as_str()) {
            (State::Failed { error }, "missing.safetensors") => {
                assert!(error.contains("cannot be read"), "{error}")
            }
            (State::Fitted { found, .. }, "circle.safetensors") if record.cell.shapes == "circle" => {
                assert_eq!(found, "1 circle");
                assert!(explained(record) > 0.9, "{record:?}");
            }
            (State::Fitted { .. }, rows) => assert_ne!(rows, "missing.safetensors"),
            (State::Failed { error }, rows) => panic!("{rows}: {error}"),
        }
    }
    let page = std::fs::read_to_string(folder.path().join("out/report.html")).unwrap();
    assert_eq!(page.matches("<tr>").count(), 1 + records.len());
    assert!(page.contains("8 failed"), "{page}");
    assert_eq!(table(folder.path(), "out").lines().count(), 1 + records.len());
    // Not again by accident.
    assert!(!sweep(folder.path(), "out", &[]).status().unwrap().success());
}

#[test]
fn a_killed_battery_goes_on_to_the_same_table() {
    let battery = RACES.replace("\"circle\", \"ray+line\"", "\"circle\"");
    let folder = folder(&battery);
    assert!(sweep(folder.path(), "whole", &[]).status().unwrap().success());
    let fits = |output: &str| -> usize {
        std::fs::read_dir(folder.path().join(output).join("fits")).map_or(0, |files| {
            files
                .filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|e| e == "json"))
                .count()
        })
    };
    for kill_at in [1, 4, 9] {
        let mut child = sweep(folder.path(), "killed", &["--resume"]).spawn().unwrap();
        let began = Instant::now();
        while fits("killed") < kill_at && child.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < PATIENCE, "no {kill_at} fits in time");
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(fits("killed") >= kill_at);
    }
    assert!(sweep(folder.path(), "killed", &["--resume"]).status().unwrap().success());
    assert_eq!(table(folder.path(), "killed"), table(folder.path(), "whole"));
    // A folder of another battery stays what it is.
    std::fs::write(folder.path().join("battery.toml"), battery.replace("seeds = [0, 1]", "seeds = [0]"))
        .unwrap();
    assert!(!sweep(folder.path(), "killed", &["--resume"]).status().unwrap().success());
    // So does one of something else.
    std::fs::create_dir(folder.path().join("mine")).unwrap();
    std::fs::write(folder.path().join("mine/notes.txt"), "mine").unwrap();
    let output = sweep(folder.path(), "mine", &[]).stderr(Stdio::piped()).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.contains("holds no battery's fits"), "{message}");
    assert_eq!(std::fs::read_dir(folder.path().join("mine")).unwrap().count(), 1);
}

fn wide(files: &str) -> String {
    format!(
        "[rows]\nfiles = {files}\nheld_out = 0.25\n[fits]\nmethod = \"wide\"\natoms = [2, 8]\nshapes = [\"circle\", \
         \"ray\"]\nseeds = [0, 1]\nactive = 1\nbulk = 4\nrounds = 4\n"
    )
}

#[test]
fn shards_are_one_file() {
    let folder = folder(&wide("[\"two.safetensors\"]"));
    assert!(sweep(folder.path(), "one", &[]).status().unwrap().success());
    let planted = Case::TwoCircles.plant(0);
    let cut = 211 * planted.width;
    let shards: Vec<PathBuf> = (0..2).map(|k| folder.path().join(format!("shard{k}.safetensors"))).collect();
    write_rows(&shards[0], planted.width, &planted.x[..cut]);
    write_rows(&shards[1], planted.width, &planted.x[cut..]);
    let battery = wide("[[\"shard0.safetensors\", \"shard1.safetensors\"]]");
    std::fs::write(folder.path().join("battery.toml"), battery).unwrap();
    assert!(sweep(folder.path(), "shards", &[]).status().unwrap().success());
    let (one, shards) = (records(folder.path(), "one"), records(folder.path(), "shards"));
    assert_eq!(one.len(), 8);
    for (a, b) in one.iter().zip(&shards) {
        assert_eq!((&a.state, &a.cell.shapes), (&b.state, &b.cell.shapes));
    }
    let circles = one.iter().filter(|record| record.cell.shapes == "circle" && record.cell.atoms == 2);
    circles.for_each(|record| assert!(explained(record) > 0.5, "{record:?}"));
}

#[test]
fn dictionaries_that_are_kept_explain_what_the_table_says() {
    let races = RACES.replace(", \"missing.safetensors\"", "").replace("[0, 1]", "[0]");
    let wide = wide("[\"two.safetensors\"]");
    for battery in [&races, &wide] {
        let folder = folder(&format!("{battery}dictionaries = true\n"));
        assert!(sweep(folder.path(), "out", &[]).status().unwrap().success());
        for (number, record) in records(folder.path(), "out").iter().enumerate() {
            let file = folder.path().join(format!("out/dictionaries/{number:06}.safetensors"));
            let rows = folder.path().join(&record.cell.rows);
            let Activations { x, width, .. } = read_activations(&rows, None).unwrap();
            let held_out = if *battery == wide { 0.25 } else { 0.2 };
            let split = x.len() / width - (held_out * (x.len() / width) as f64) as usize;
            let rest = &x[split * width..];
            if *battery == races {
                let measured = read_dictionary(&file).unwrap().measure(rest, width).unwrap();
                assert!((measured.explained - explained(record)).abs() < 1e-12, "{record:?}");
                continue;
            }
            // A linear map through all that it holds explains no less.
            let bytes = std::fs::read(&file).unwrap();
            let (tensors, (_, head)) =
                (SafeTensors::deserialize(&bytes).unwrap(), SafeTensors::read_metadata(&bytes).unwrap());
            assert_eq!(head.metadata().as_ref().unwrap()["shape"], record.cell.shapes);
            let read = |name: &str| -> Vec<f64> {
                let data = tensors.tensor(name).unwrap().data().as_chunks::<4>().0.iter();
                data.map(|b| f64::from(f32::from_le_bytes(*b))).collect()
            };
            let a_circle = if record.cell.shapes == "circle" { 2 } else { 1 };
            assert_eq!(tensors.tensor("decoder").unwrap().shape(), [record.cell.atoms * a_circle, width]);
            assert_eq!(read("activity").len(), record.cell.atoms);
            let (both, mean) = ([read("decoder"), read("bulk")].concat(), read("mean"));
            let basis = MatRef::from_row_major_slice(&both, both.len() / width, width);
            let svd = basis.thin_svd().unwrap();
            let rank = svd.S().column_vector().iter().filter(|s| **s > 1e-4 * svd.S()[0]).count();
            let axes = svd.V().subcols(0, rank);
            let centred = Mat::from_fn(rest.len() / width, width, |i, j| rest[i * width + j] - mean[j]);
            let left = &centred - &centred * axes * axes.transpose();
            let heldout_mean: Vec<f64> =
                (0..width).map(|j| centred.col(j).sum() / centred.nrows() as f64).collect();
            let spread = Mat::from_fn(centred.nrows(), width, |i, j| centred[(i, j)] - heldout_mean[j]);
            let most = 1.0 - left.squared_norm_l2() / spread.squared_norm_l2();
            assert!(most > explained(record) - 1e-3 && explained(record) > 0.2, "{most}: {record:?}");
        }
    }
}

#[test]
fn what_failed_is_tried_again_and_fits_without_their_battery_are_not_touched() {
    let battery = RACES.replace("[1, 2]", "[1]").replace("[0, 1]", "[0]").replace(", \"ray+line\"", "");
    let folder = folder(&battery);
    assert!(sweep(folder.path(), "out", &[]).status().unwrap().success());
    let failed = |record: &Record| matches!(record.state, State::Failed { .. });
    assert_eq!(records(folder.path(), "out").iter().filter(|record| failed(record)).count(), 1);
    // The file is back.
    let [there, back] = ["circle.safetensors", "missing.safetensors"].map(|name| folder.path().join(name));
    std::fs::copy(there, back).unwrap();
    assert!(sweep(folder.path(), "out", &["--resume"]).status().unwrap().success());
    let mended = records(folder.path(), "out");
    assert!(!mended.iter().any(failed));
    assert_eq!(explained(&mended[0]), explained(&mended[1]), "the same rows");
    // The same battery by another way to it.
    let mut elsewhere = Command::new(LAPIDARY);
    elsewhere.current_dir(folder.path()).args(["sweep", "./battery.toml", "-o", "out", "--resume"]);
    elsewhere.args(["--device", "host"]).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(elsewhere.status().unwrap().success());
    std::fs::remove_file(folder.path().join("out/battery.json")).unwrap();
    let output = sweep(folder.path(), "out", &["--resume"]).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("is missing"), "{text}");
}
