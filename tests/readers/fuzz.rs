//! Random damage to valid files: no panic, no hang, and no allocation beyond a small multiple of the file.
//!
//! `LAPIDARY_FUZZ_CASES` sets the number of cases (10,000 unless set), half of them GGUF; a tenth more in parts. The cases are the same on
//! every run: a case is the state of its random numbers.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use lapidary::device::Bytes;
use lapidary::model::{Checkpoint, CheckpointError};
use lapidary::ops::Dtype;

use crate::allocations::peak_during;
use crate::fixtures::{Files, GgufFile, HfModel, Rng};

/// Most heap that opening may take: this, and [`PER_BYTE`] times the size of the files.
const BASE: usize = 64 << 10;
/// A name of one byte costs an entry in a map; a list of one-digit numbers eight bytes an element, twice while it grows.
const PER_BYTE: usize = 32;
const SLOWEST: Duration = Duration::from_secs(1);

#[test]
fn damaged_gguf_files_never_panic_hang_or_fill_the_memory() {
    let whole = [GgufFile::tiny().write(), GgufFile::spm().write()];
    let mut tally = Tally::default();
    for case in 0..cases() / 2 {
        let mut rng = Rng(case << 1);
        let valid = &whole[(case % 4 == 3) as usize];
        let mut bytes = valid.bytes.clone();
        for _ in 0..1 + rng.below(3) {
            damage_binary(&mut bytes, &valid.fields, &mut rng);
        }
        let (size, file) = (bytes.len(), Bytes::from(bytes));
        tally.run(case, size, || Checkpoint::from_gguf(Path::new("fuzz.gguf"), file));
    }
    tally.finish("GGUF");
}

#[test]
fn damaged_parts_never_panic_hang_or_fill_the_memory() {
    let parts: Vec<_> =
        GgufFile::tiny().parts(3).into_iter().map(|(name, part)| (name, part.write())).collect();
    let mut tally = Tally::default();
    for case in 0..cases() / 10 {
        let mut rng = Rng(case << 8 | 7);
        let mut files: BTreeMap<&str, Vec<u8>> =
            parts.iter().map(|(name, part)| (name.as_str(), part.bytes.clone())).collect();
        for _ in 0..1 + rng.below(3) {
            let (name, part) = &parts[rng.below(3)];
            damage_binary(files.get_mut(name.as_str()).unwrap(), &part.fields, &mut rng);
        }
        let size = files.values().map(Vec::len).sum();
        let files: BTreeMap<&str, Bytes> =
            files.into_iter().map(|(name, bytes)| (name, bytes.into())).collect();
        let read = |name: &str| files.get(name).cloned().ok_or_else(|| std::io::ErrorKind::NotFound.into());
        let path = Path::new("fuzz/tiny-00001-of-00003.gguf");
        tally.run(case, size, || Checkpoint::from_gguf_parts(path, &read));
    }
    tally.finish("GGUF in parts");
}

#[test]
fn damaged_folders_never_panic_hang_or_fill_the_memory() {
    let whole = HfModel::tiny().write();
    let sharded = HfModel { shards: 2, ..HfModel::tiny() }.write();
    let mut tally = Tally::default();
    for case in 0..cases() / 2 {
        let mut rng = Rng(case << 1 | 1);
        let mut files: Files = rng.pick(&[&whole, &sharded]).clone();
        for _ in 0..1 + rng.below(3) {
            damage_folder(&mut files, &mut rng);
        }
        let size = files.values().map(Vec::len).sum();
        let files: BTreeMap<String, Bytes> =
            files.into_iter().map(|(name, bytes)| (name, bytes.into())).collect();
        let read = |name: &str| files.get(name).cloned().ok_or_else(|| std::io::ErrorKind::NotFound.into());
        tally.run(case, size, || Checkpoint::from_folder(Path::new("fuzz"), &read));
    }
    tally.finish("folder");
}

fn cases() -> u64 {
    match std::env::var("LAPIDARY_FUZZ_CASES") {
        Ok(text) => text.parse().expect("LAPIDARY_FUZZ_CASES is a number"),
        Err(_) => 10_000,
    }
}

/// What the cases of one test came to.
#[derive(Default)]
struct Tally {
    opened: usize,
    refused: usize,
    most_allocated: usize,
    slowest: Duration,
}

impl Tally {
    fn run(&mut self, case: u64, size: usize, open: impl FnOnce() -> Result<Checkpoint, CheckpointError>) {
        let _named = NamedInPanic(case);
        let start = Instant::now();
        let (result, peak) = peak_during(open);
        let bound = BASE + PER_BYTE * size;
        assert!(peak <= bound, "{peak} bytes were allocated for {size} bytes of files, more than {bound}");
        match result {
            Ok(checkpoint) => {
                read_all(&checkpoint);
                self.opened += 1;
            }
            Err(error) => {
                let message = error.to_string();
                assert!(message.contains("fuzz") && message.len() < 20_000, "{message}");
                self.refused += 1;
            }
        }
        let taken = start.elapsed();
        assert!(taken < SLOWEST, "it took {taken:?}");
        self.most_allocated = self.most_allocated.max(peak);
        self.slowest = self.slowest.max(taken);
    }

    fn finish(self, what: &str) {
        let Self { opened, refused, most_allocated, slowest } = self;
        println!(
            "{what}: {opened} opened, {refused} refused; at most {most_allocated} bytes allocated, {slowest:?} taken"
        );
        assert!(
            refused > opened / 10 && opened > 0,
            "the damage is of no use: {opened} opened, {refused} refused"
        );
    }
}

/// Says which case it was when something panics.
struct NamedInPanic(u64);

impl Drop for NamedInPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in fuzz case {}", self.0);
        }
    }
}

/// Uses everything that a checkpoint which opened promises.
fn read_all(checkpoint: &Checkpoint) {
    for name in checkpoint.names() {
        let tensor = checkpoint.tensor(name).expect("a listed tensor");
        if tensor.dtype != Dtype::U8 {
            assert_eq!(tensor.to_f32().len(), tensor.rows() * tensor.cols());
        }
    }
    assert_eq!(checkpoint.fingerprint().len(), 64);
    checkpoint.chat_template();
    if let Ok(tokenizer) = checkpoint.tokenizer() {
        let ids = tokenizer.encode("abc a12\n").unwrap_or_default();
        assert!(ids.iter().all(|id| (*id as usize) < checkpoint.config().vocab));
    }
}

/// Numbers that trip readers: borders of integer types, and of this file.
fn extreme(len: usize, rng: &mut Rng) -> u64 {
    let len = len as u64;
    let powers = [7, 8, 15, 16, 31, 32, 52, 60, 61, 62, 63].map(|power| 1u64 << power);
    match rng.below(6) {
        0 => rng.pick(&[0, 1, 2, 3, 8, 9, 12, 32]),
        1 => rng.pick(&powers).wrapping_sub(rng.next() % 3),
        2 => u64::MAX - rng.next() % 64,
        3 => len.wrapping_add(rng.next() % 65).wrapping_sub(32),
        4 => rng.next() % len.max(1),
        _ => rng.next(),
    }
}

fn damage_binary(bytes: &mut Vec<u8>, fields: &[(usize, usize)], rng: &mut Rng) {
    if bytes.is_empty() {
        return;
    }
    match rng.below(8) {
        0 => {
            let at = rng.below(bytes.len());
            bytes.truncate(at);
        }
        1 => {
            // Most of the file is weights, where every bit is valid; half the flips go to the header.
            let end = if rng.below(2) == 0 { bytes.len() } else { bytes.len().min(3_000) };
            let at = rng.below(end);
            bytes[at] ^= 1 << rng.below(8);
        }
        2 => {
            let (from, to) = (rng.below(bytes.len()), rng.below(bytes.len()));
            let len = (1 + rng.below(64)).min(bytes.len() - from.max(to));
            bytes.copy_within(from..from + len, to);
        }
        3 => {
            let (from, len) = (rng.below(bytes.len()), 1 + rng.below(16));
            bytes.drain(from..(from + len).min(bytes.len()));
        }
        _ => {
            let Some((at, len)) = (!fields.is_empty()).then(|| rng.pick(fields)) else { return };
            let value = extreme(bytes.len(), rng).to_le_bytes();
            if let Some(field) = bytes.get_mut(at..at + len) {
                field.copy_from_slice(&value[..len]);
            }
        }
    }
}

fn damage_folder(files: &mut Files, rng: &mut Rng) {
    let name = rng.pick(&files.keys().cloned().collect::<Vec<_>>());
    if rng.below(50) == 0 {
        files.remove(&name);
        return;
    }
    let bytes = files.get_mut(&name).expect("the name was just listed");
    let json = match (name.ends_with(".safetensors"), bytes.first_chunk::<8>()) {
        (true, Some(len)) => {
            8..usize::try_from(u64::from_le_bytes(*len)).unwrap_or(0).saturating_add(8).min(bytes.len())
        }
        (true, None) => 0..0,
        (false, _) => 0..bytes.len(),
    };
    if json.is_empty() || rng.below(4) == 0 {
        let fields = if name.ends_with(".safetensors") { &[(0, 8)][..] } else { &[] };
        return damage_binary(bytes, fields, rng);
    }
    let mut header = bytes[json.clone()].to_vec();
    damage_json(&mut header, bytes.len(), rng);
    // Usually the length before the header is put right, so that the damage reaches the parser behind it.
    if name.ends_with(".safetensors") && rng.below(8) > 0 {
        bytes[..8].copy_from_slice(&(header.len() as u64).to_le_bytes());
    }
    bytes.splice(json, header);
}

/// Replaces a number by an extreme one, a piece by another, or a byte.
fn damage_json(text: &mut Vec<u8>, file_len: usize, rng: &mut Rng) {
    let is_digit = |at: usize| text.get(at).is_some_and(u8::is_ascii_digit);
    let at = rng.below(text.len().max(1));
    match rng.below(6) {
        0 if !text.is_empty() => text[at] = rng.pick(br#"{}[]":,0-9.e\ntx"#),
        1 if !text.is_empty() => {
            // A piece doubled: names twice, lists too long.
            let piece = text[at..(at + 1 + rng.below(200)).min(text.len())].to_vec();
            text.splice(at..at, piece);
        }
        2 if !text.is_empty() => drop(text.drain(at..(at + 1 + rng.below(40)).min(text.len()))),
        _ => {
            let Some(start) = (at..text.len()).find(|at| is_digit(*at)) else { return };
            let end = (start..).find(|at| !is_digit(*at)).unwrap_or(text.len());
            let number = match rng.below(8) {
                0 => "-1".into(),
                1 => "1e400".into(),
                2 => "18446744073709551616".into(),
                3 => "null".into(),
                4 => "[[0]]".into(),
                _ => extreme(file_len, rng).to_string(),
            };
            text.splice(start..end, number.into_bytes());
        }
    }
}

/// The worst cases for the bound that can be made on purpose: much structure in few bytes.
#[test]
fn dense_structure_stays_within_the_bound() {
    let gguf = |entries: usize| {
        let mut file = GgufFile::tiny();
        file.metadata.extend((0..entries).map(|k| (k.to_string(), crate::fixtures::Meta::Bool(1))));
        file.write().bytes
    };
    let nested = [
        &9u32.to_le_bytes()[..],
        &20_000u64.to_le_bytes(),
        &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].repeat(20_000),
    ];
    let mut arrays = GgufFile::tiny();
    arrays.set("x", crate::fixtures::Meta::Raw(9, nested.concat()));
    let mut tensors = GgufFile::tiny();
    let mut rng = Rng(5);
    let scalar = |k: usize| crate::fixtures::GgufTensor::random(&k.to_string(), &[0], 0, &mut rng);
    tensors.tensors.extend((0..20_000).map(scalar));
    for bytes in [gguf(20_000), arrays.write().bytes, tensors.write().bytes] {
        let (size, file) = (bytes.len(), Bytes::from(bytes));
        let mut tally = Tally::default();
        tally.run(0, size, || Checkpoint::from_gguf(Path::new("fuzz.gguf"), file));
        println!("GGUF of {size} bytes: {} allocated", tally.most_allocated);
    }
    let shape =
        format!(r#"{{"a":{{"dtype":"F32","shape":[{}1],"data_offsets":[0,4]}}}}"#, "1,".repeat(100_000));
    let entry = |k: usize| format!(r#""{k}":{{"dtype":"U8","shape":[],"data_offsets":[0,0]}}"#);
    let entries = format!("{{{}}}", (0..20_000).map(entry).collect::<Vec<_>>().join(","));
    let map = format!(
        r#"{{"weight_map":{{{}}}}}"#,
        (0..20_000).map(|k| format!(r#""{k}":"{k}""#)).collect::<Vec<_>>().join(",")
    );
    let weights = |header: &str| ("model.safetensors", crate::fixtures::with_header(header, &[0; 4]));
    for (name, bytes) in
        [weights(&shape), weights(&entries), ("model.safetensors.index.json", map.into_bytes())]
    {
        let mut files = HfModel::tiny().write();
        files.remove("model.safetensors");
        files.insert(name.into(), bytes);
        let size = files.values().map(Vec::len).sum();
        let files: BTreeMap<String, Bytes> =
            files.into_iter().map(|(name, bytes)| (name, bytes.into())).collect();
        let read = |name: &str| files.get(name).cloned().ok_or_else(|| std::io::ErrorKind::NotFound.into());
        let mut tally = Tally::default();
        tally.run(0, size, || Checkpoint::from_folder(Path::new("fuzz"), &read));
        println!("{name} of {size} bytes: {} allocated", tally.most_allocated);
    }
}
