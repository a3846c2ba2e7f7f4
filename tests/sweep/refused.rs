use super::*;

#[test]
fn a_battery_that_makes_no_sense_is_refused_with_the_place() {
    for (from, to, what) in [
        ("\"ray+line\"", "\"ray+blob\"", "blob"),
        ("atoms = [1, 2]", "atoms = []", "one value at least"),
        ("active = 2", "actve = 2", "actve"),
        (
            "files = [\"circle.safetensors\", \"missing.safetensors\", \"two.safetensors\"]",
            "",
            "one of the two",
        ),
        ("[fits]", "held_out = 1.5\n[fits]", "held_out = 1.5"),
        ("active = 2", "active = 2\nseconds = inf", "seconds = "),
        ("active = 2", "active = 2\nseconds = -1.0", "seconds = "),
        ("active = 2", "active = 2\nseconds = 1e19", "seconds = "),
        ("active = 2", "active = 0", "active = 0"),
        ("active = 2", "active = 9", "active = 9"),
        ("atoms = [1, 2]", "atoms = [0]", "atoms = 0"),
        ("atoms = [1, 2]", "atoms = [1, 65]", "atoms = 65"),
        ("active = 2", "bulk = 0", "`bulk`"),
        ("active = 2", "rank = 8", "`rank`"),
        ("active = 2", "rounds = 8", "`rounds`"),
        ("active = 2", "stages = 1", "`stages`"),
        ("[fits]", "text = \"a.txt\"\n[fits]", "`text`"),
        ("[fits]", "layers = [1]\n[fits]", "`layers`"),
        ("[fits]", "tokens = 4096\n[fits]", "`tokens`"),
        ("files = [", "tensor = \"x\"\nmodel = \"m\"\ntext = \"t\"\nlayers = [1]\n# [", "`tensor`"),
        (
            "atoms = [1, 2]\nshapes = [\"circle\", \"ray+line\"]",
            "method = \"wide\"\natoms = [0]\nshapes = [\"ray\"]",
            "atoms = 0",
        ),
        (
            "atoms = [1, 2]\nshapes = [\"circle\", \"ray+line\"]",
            "method = \"wide\"\natoms = [1]\nshapes = [\"ray\"]",
            "active = 2",
        ),
    ] {
        assert!(RACES.contains(from), "{from}");
        let folder = folder(&RACES.replace(from, to));
        let output = sweep(folder.path(), "out", &[]).stderr(Stdio::piped()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(what) && text.contains("battery.toml"), "{text}");
    }
}

/// What a run that is refused says, on one line.
fn refused(folder: &Path, output: &str, more: &[&str]) -> String {
    let output = sweep(folder, output, more).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{text}");
    text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
}

fn set_battery(folder: &Path, battery: &str) {
    std::fs::write(folder.join("battery.toml"), battery).unwrap();
}

fn error(record: &Record) -> &str {
    match &record.state {
        State::Failed { error } => error,
        State::Fitted { .. } => panic!("{record:?}"),
    }
}

const SMALL: &str = "[rows]\nfiles = [\"circle.safetensors\", \"two.safetensors\"]\n[fits]\natoms = [1]\nshapes = [\"circle\"]\n";

/// The embedded model and a text, copied to where a test may change them.
fn with_model(battery: &str) -> tempfile::TempDir {
    let folder = folder(battery);
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny");
    std::fs::create_dir(folder.path().join("tiny")).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tiny.join(name), folder.path().join("tiny").join(name)).unwrap();
    }
    std::fs::copy(tiny.join("test.txt"), folder.path().join("text.txt")).unwrap();
    folder
}

const MODEL: &str = "[rows]\nmodel = \"tiny\"\ntext = \"text.txt\"\nlayers = [1]\ntokens = 256\n[fits]\nmethod = \"wide\"\n\
                     atoms = [4]\nshapes = [\"ray\"]\nactive = 1\nrounds = 2\n";

#[test]
fn fits_of_other_data_are_not_mixed() {
    let folder = folder(SMALL);
    let file = |name: &str| folder.path().join(name);
    assert!(sweep(folder.path(), "out", &[]).status().unwrap().success());
    let whole = table(folder.path(), "out");
    std::fs::copy(file("two.safetensors"), file("kept")).unwrap();
    std::fs::copy(file("circle.safetensors"), file("two.safetensors")).unwrap();
    std::fs::remove_file(file("out/fits/000001.json")).unwrap();
    // Without fits of it, it may be another file; the other one may be away.
    std::fs::rename(file("circle.safetensors"), file("away")).unwrap();
    assert!(sweep(folder.path(), "out", &["--resume"]).status().unwrap().success());
    assert_ne!(table(folder.path(), "out"), whole);
    std::fs::rename(file("away"), file("circle.safetensors")).unwrap();
    // With fits it may not, though its size be the same.
    let mut bytes = std::fs::read(file("two.safetensors")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(file("two.safetensors"), bytes).unwrap();
    let text = refused(folder.path(), "out", &["--resume"]);
    assert!(text.contains("two.safetensors is not the file") && text.contains("put that one back"), "{text}");
    std::fs::copy(file("circle.safetensors"), file("two.safetensors")).unwrap();
    assert!(sweep(folder.path(), "out", &["--resume"]).status().unwrap().success());
}

#[test]
fn fits_of_another_model_or_text_are_not_mixed() {
    let folder = with_model(MODEL);
    let file = |name: &str| folder.path().join(name);
    assert!(sweep(folder.path(), "out", &[]).status().unwrap().success());
    for name in ["text.txt", "tiny/tokenizer_config.json"] {
        let bytes = std::fs::read(file(name)).unwrap();
        std::fs::write(file(name), [&bytes[..], b"\n"].concat()).unwrap();
        let text = refused(folder.path(), "out", &["--resume"]);
        let changed = name.split('/').next().unwrap();
        assert!(text.contains(&format!("{changed} is not the file")), "{text}");
        std::fs::write(file(name), bytes).unwrap();
        assert!(sweep(folder.path(), "out", &["--resume"]).status().unwrap().success());
    }
}

#[test]
fn what_cannot_be_opened_claims_no_folder() {
    let folder = with_model(MODEL);
    for (battery, what) in [
        (MODEL.replace("layers = [1]", "layers = [99]"), "no block 99"),
        (MODEL.replace("tiny", "tinny"), "tinny"),
        (MODEL.replace("text.txt", "test.txt"), "test.txt"),
        (SMALL.replace("circle.", "a.").replace("two.", "b."), "a.safetensors: cannot be read"),
    ] {
        set_battery(folder.path(), &battery);
        let text = refused(folder.path(), "out", &[]);
        assert!(text.contains(what) && !folder.path().join("out").exists(), "{text}");
    }
    // Files of a wrong kind fail in their lines, and that folder is free too.
    set_battery(
        folder.path(),
        "[rows]\nfiles = [\"text.txt\", \"x\"]\n[fits]\natoms = [1]\nshapes = [\"ray\"]\n",
    );
    refused(folder.path(), "out", &[]);
    assert_eq!(records(folder.path(), "out").len(), 2);
    set_battery(folder.path(), SMALL);
    assert!(sweep(folder.path(), "out", &[]).status().unwrap().success());
    assert!(refused(folder.path(), "out", &[]).contains("--resume"));
    set_battery(folder.path(), MODEL);
    assert!(refused(folder.path(), "out", &["--resume"]).contains("holds another battery"));
    // A .npy file has no tensors to pick from, whatever its name.
    let header = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }");
    let npy = [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &[0; 8]].concat();
    std::fs::write(folder.path().join("array"), npy).unwrap();
    set_battery(
        folder.path(),
        "[rows]\nfiles = [\"array\"]\ntensor = \"x\"\n[fits]\natoms = [1]\nshapes = [\"ray\"]\n",
    );
    assert!(refused(folder.path(), "npy", &[]).contains("`tensor` does nothing"));
}

#[test]
fn the_first_result_that_cannot_be_kept_ends_the_run() {
    let lanes = std::thread::available_parallelism().unwrap().get();
    let seeds = |count: usize| format!("{:?}", (0..count).collect::<Vec<_>>());
    let wide = wide("[\"two.safetensors\"]").replace("[0, 1]", &seeds(4)).replace(", \"ray\"", "");
    let races = SMALL.replace("[\"circle\"]\n", &format!("[\"circle\"]\nseeds = {}\n", seeds(8 * lanes)));
    for (battery, most) in [(races, 4 * lanes), (wide, 0)] {
        let folder = folder(&battery);
        let fits = folder.path().join("out/fits");
        std::fs::create_dir_all(&fits).unwrap();
        let mut child = sweep(folder.path(), "out", &["--resume"]).spawn().unwrap();
        while std::fs::read_dir(&fits).unwrap().next().is_none() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_dir_all(&fits).unwrap();
        // No file can replace a folder, as none can be written to a full disk.
        std::fs::create_dir_all(fits.join("000000.json")).unwrap();
        let text = refused(folder.path(), "out", &["--resume"]);
        assert!(text.contains("000000.json: cannot be written"), "{text}");
        let kept = std::fs::read_dir(&fits).unwrap().count() - 1;
        assert!(kept <= most, "{kept} fits were kept after the first that could not be");
    }
    // Nor are further launches begun.
    let planted = Case::TwoCircles.plant(0);
    let x = planted.x.iter().map(|x| *x as f32).collect();
    let source = &Heap::new(x, planted.width).unwrap();
    let params = WideParams { atoms: 8, active: 1, stages: 1, rounds: 2, ..WideParams::default() };
    let job = |seed| Job { source, fit: 300, params: WideParams { seed, ..params } };
    let (jobs, host) = ([job(0), job(1), job(2)], Device::Host);
    let one = Some(predicted_bytes(&jobs[0], &host, usize::MAX).unwrap());
    for (most, launches) in [(1, 1), (3, 3)] {
        let battery = Battery::fit_while(&host, &jobs, one, &|at, _| at + 1 < most);
        assert_eq!((battery.fits.len(), battery.usage.arenas), (most, launches));
    }
}

#[test]
fn a_deleted_dictionary_is_made_again() {
    for battery in [SMALL.to_owned(), wide("[\"two.safetensors\"]")] {
        let folder = folder(&format!("{battery}dictionaries = true\n"));
        assert!(sweep(folder.path(), "out", &[]).status().unwrap().success());
        let (whole, names) = (table(folder.path(), "out"), ["000000", "000001"]);
        let file = |name: &str| folder.path().join(format!("out/dictionaries/{name}.safetensors"));
        let tensors = |name: &str| {
            let bytes = std::fs::read(file(name)).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            tensors.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect::<Vec<_>>()
        };
        let (kept, mut before) = (std::fs::read(file(names[0])).unwrap(), tensors(names[1]));
        std::fs::remove_file(file(names[1])).unwrap();
        assert!(sweep(folder.path(), "out", &["--resume"]).status().unwrap().success());
        let mut after = tensors(names[1]);
        before.sort();
        after.sort();
        assert!(before == after && table(folder.path(), "out") == whole);
        // A race's says how long it took, so one that was made again would differ.
        assert!(std::fs::read(file(names[0])).unwrap() == kept);
    }
}

#[test]
fn held_out_rows_that_vary_by_rounding_alone_are_a_failure() {
    let planted = Case::Circle.plant(0);
    let held_out = planted.x.len() / 5 + planted.width;
    for (battery, ulp) in [(SMALL.to_owned(), 1.4e-17), (wide("[\"circle.safetensors\"]"), 7.5e-9)] {
        let folder = folder(&battery.replace(", \"two.safetensors\"", "").replace("0.25", "0.2"));
        let mut x = planted.x.clone();
        let from = x.len() - held_out;
        for (k, x) in x[from..].iter_mut().enumerate() {
            *x = 0.1 + ulp * (k % 3) as f64;
        }
        write_activations(&folder.path().join("circle.safetensors"), &x, planted.width).unwrap();
        refused(folder.path(), "out", &[]);
        for record in records(folder.path(), "out") {
            assert!(error(&record).contains("held-out rows do not vary"), "{record:?}");
        }
    }
}

#[test]
fn sizes_beyond_any_device_are_refused_with_what_they_need() {
    let battery = wide("[\"two.safetensors\"]").replace("[0, 1]", "[0]");
    let folder = folder(&battery.replace("[2, 8]", "[9223372036854775807, 2]"));
    // More memory than can be counted in bytes is all that there is.
    assert!(sweep(folder.path(), "out", &["--memory", "17592186044416"]).status().unwrap().success());
    for record in records(folder.path(), "out") {
        if record.cell.atoms == 2 {
            explained(&record);
            continue;
        }
        let text = error(&record);
        let mut mib = text.split(" MiB").filter_map(|part| part.split(' ').next_back()?.parse::<u64>().ok());
        let (needed, free) = (mib.next().unwrap(), mib.next().unwrap());
        assert!(text.contains("9223372036854775807 atoms") && needed > 1 << 40 && free > 0, "{text}");
    }
}

#[test]
fn numbers_too_large_for_f32_are_named() {
    let folder = folder(&wide("[\"large.safetensors\"]"));
    let mut planted = Case::Circle.plant(0);
    planted.x[3 * planted.width + 1] = -1e300;
    write_activations(&folder.path().join("large.safetensors"), &planted.x, planted.width).unwrap();
    refused(folder.path(), "out", &[]);
    for record in records(folder.path(), "out") {
        let text = error(&record);
        let all = ["large.safetensors: row 3, column 1 holds -1e300", "too large for f32"];
        assert!(all.iter().all(|part| text.contains(part)), "{text}");
    }
}
