//! Files that lie, one lie each, and what the error must say.

use std::path::Path;

use lapidary::model::Checkpoint;
use serde_json::json;

use crate::fixtures::{Files, GgufFile, HfModel, Meta, SafeTensor, safetensors, with_header};

const Q: &str = "model.layers.1.self_attn.q_proj.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

/// The error of opening `path`, or of building its tokenizer.
fn error(path: &Path) -> String {
    match Checkpoint::open(path).and_then(|checkpoint| checkpoint.tokenizer()) {
        Err(error) => error.to_string(),
        Ok(_) => "opened without an error".into(),
    }
}

fn check(case: &str, error: &str, expected: &[&str]) {
    for part in expected {
        assert!(error.contains(part), "{case}: `{part}` is not in: {error}");
    }
}

fn check_gguf(case: &str, bytes: &[u8], expected: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiny.gguf");
    std::fs::write(&file, bytes).unwrap();
    let error = error(&file);
    check(case, &error, expected);
    check(case, &error, &["tiny.gguf: "]);
}

fn check_folder(case: &str, files: &Files, expected: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    check(case, &error(folder.path()), expected);
}

type GgufCase = (&'static str, fn(&mut GgufFile), &'static [&'static str]);

fn check_gguf_cases(cases: &[GgufCase]) {
    for (case, lie, expected) in cases {
        let mut model = GgufFile::tiny();
        lie(&mut model);
        check_gguf(case, &model.write().bytes, expected);
    }
}

#[test]
fn gguf_headers_that_lie() {
    check_gguf_cases(&[
        ("magic", |f| f.magic = *b"GGML", &["does not start with the letters GGUF"]),
        ("version 1", |f| f.version = 1, &["GGUF version 1; versions 2 and 3"]),
        ("big-endian", |f| f.version = 3 << 24, &["big-endian"]),
        (
            "2^63 tensors",
            |f| f.tensor_count = Some(1 << 63),
            &["says 9223372036854775808 tensors", "at most"],
        ),
        ("2^63 entries", |f| f.entry_count = Some(1 << 63), &["says 9223372036854775808 metadata entries"]),
        ("one tensor more", |f| f.tensor_count = Some(21), &["tiny.gguf: "]),
        ("one entry more", |f| f.entry_count = Some(22), &["tiny.gguf: "]),
        ("alignment 0", |f| f.set("general.alignment", Meta::U32(0)), &["`general.alignment` is 0"]),
        ("alignment 24", |f| f.set("general.alignment", Meta::U32(24)), &["`general.alignment` is 24"]),
        (
            "alignment 2^63",
            |f| f.set("general.alignment", Meta::U64(1 << 63)),
            &["`general.alignment` is 92233720"],
        ),
        (
            "alignment of text",
            |f| f.set("general.alignment", Meta::Text("32".into())),
            &["not a whole number"],
        ),
        (
            "a key twice",
            |f| f.metadata.push(("llama.block_count".into(), Meta::U32(2))),
            &["metadata `llama.block_count` is there twice"],
        ),
        ("not UTF-8", |f| f.set("x", Meta::Text(vec![0xC3, 0x28])), &["metadata `x`", "not UTF-8"]),
        (
            "unknown value type",
            |f| f.set("x", Meta::Raw(99, vec![])),
            &["metadata `x`: value type 99 is unknown"],
        ),
        ("a truth value of 2", |f| f.set("x", Meta::Bool(2)), &["metadata `x`", "neither 0 nor 1"]),
        (
            "a text of 2^63 bytes",
            |f| f.set("x", Meta::Raw(8, (1u64 << 63).to_le_bytes().into())),
            &["metadata `x`: it ends too early: 9223372036854775808 bytes"],
        ),
        (
            "an array of 2^63 elements",
            |f| f.set("x", Meta::Raw(9, [&4u32.to_le_bytes()[..], &(1u64 << 63).to_le_bytes()].concat())),
            &["metadata `x`", "says 9223372036854775808 array elements"],
        ),
        (
            "arrays nested too deep",
            |f| {
                let level = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
                f.set("x", Meta::Raw(9, level.repeat(100_000)));
            },
            &["metadata `x`: arrays are nested deeper than 4"],
        ),
    ]);
}

#[test]
fn gguf_tensors_that_lie() {
    check_gguf_cases(&[
        (
            "past the end",
            |f| f.tensor("blk.1.ffn_down.weight").offset = Some(1 << 40),
            &["`blk.1.ffn_down.weight`", "past the end"],
        ),
        (
            "offset 2^63",
            |f| f.tensor("output_norm.weight").offset = Some(1 << 63),
            &["`output_norm.weight`", "past the end"],
        ),
        (
            "offset near 2^64",
            |f| f.tensor("output_norm.weight").offset = Some(u64::MAX - 31),
            &["`output_norm.weight`", "overflows"],
        ),
        (
            "overlap",
            |f| f.tensor("output_norm.weight").offset = Some(0),
            &["`token_embd.weight`", "overlaps"],
        ),
        (
            "misaligned",
            |f| f.tensor("output_norm.weight").offset = Some(8),
            &["`output_norm.weight`", "8 is not a multiple of the alignment 32"],
        ),
        (
            "overflowing shape",
            |f| f.tensor("blk.0.attn_q.weight").dims = vec![1 << 40, 1 << 40],
            &["`blk.0.attn_q.weight`", "overflows"],
        ),
        (
            "five dimensions",
            |f| f.tensor("blk.0.attn_q.weight").dims = vec![1; 5],
            &["`blk.0.attn_q.weight`", "5 dimensions"],
        ),
        (
            "2^32 dimensions",
            |f| f.set("llama.rope.dimension_count", Meta::U32(u32::MAX)),
            &["`llama.rope.dimension_count` is 4294967295"],
        ),
        (
            "half a block",
            |f| f.tensor("token_embd.weight").dims = vec![16, 24],
            &["`token_embd.weight`", "not whole Q8_0 blocks of 32"],
        ),
        (
            "another shape",
            |f| f.tensor("blk.1.ffn_up.weight").dims = vec![64, 32],
            &["`blk.1.ffn_up.weight`", "has shape [32, 64], the configuration says [64, 32]"],
        ),
        (
            "a type to come",
            |f| f.tensor("blk.0.ffn_up.weight").kind = 14,
            &["`blk.0.ffn_up.weight`", "Q6_K", "F32, F16, BF16, Q8_0, Q4_0 and Q4_1"],
        ),
        (
            "no such type",
            |f| f.tensor("blk.0.ffn_up.weight").kind = 77,
            &["`blk.0.ffn_up.weight`", "type 77"],
        ),
        (
            "a tensor twice",
            |f| f.tensor("blk.0.ffn_up.weight").name = "blk.0.ffn_gate.weight".into(),
            &["`blk.0.ffn_gate.weight`", "twice"],
        ),
        (
            "two missing",
            |f| f.tensors.retain(|t| t.name != "blk.1.ffn_up.weight" && t.name != "output_norm.weight"),
            &["2 tensors", "output_norm.weight, blk.1.ffn_up.weight"],
        ),
        (
            "a bias",
            |f| f.tensor("output_norm.weight").name = "blk.0.attn_q.bias".into(),
            &["1 tensors that a llama model needs are missing: output_norm.weight"],
        ),
        (
            "a name of a megabyte",
            |f| f.tensor("output_norm.weight").name = "\n".repeat(1 << 20),
            &["output_norm.weight"],
        ),
        ("no tensors", |f| f.tensors.clear(), &["20 tensors", "token_embd.weight, output_norm.weight"]),
    ]);
}

#[test]
fn gguf_metadata_that_the_decoder_or_the_tokenizer_cannot_use() {
    check_gguf_cases(&[
        (
            "family",
            |f| f.set("general.architecture", Meta::Text("mamba".into())),
            &["mamba", "reads only llama"],
        ),
        ("no family", |f| f.metadata.clear(), &["architecture is not stated"]),
        (
            "no width",
            |f| f.metadata.retain(|(key, _)| key != "llama.embedding_length"),
            &["`llama.embedding_length` is missing"],
        ),
        (
            "width 0",
            |f| f.set("llama.embedding_length", Meta::U32(0)),
            &["`hidden_size` is 0", "positive multiple"],
        ),
        (
            "width 2^63",
            |f| f.set("llama.embedding_length", Meta::U64(1 << 63)),
            &["`hidden_size` is 9223372036854775808"],
        ),
        (
            "width of text",
            |f| f.set("llama.embedding_length", Meta::Text("32".into())),
            &["must be a whole number"],
        ),
        ("heads 0", |f| f.set("llama.attention.head_count", Meta::U32(0)), &["multiple of the 0 heads"]),
        (
            "heads 5",
            |f| f.set("llama.attention.head_count_kv", Meta::U32(3)),
            &["`num_key_value_heads` is 3"],
        ),
        (
            "layers 2^32",
            |f| f.set("llama.block_count", Meta::U32(u32::MAX)),
            &["`num_hidden_layers` is 4294967295"],
        ),
        (
            "layers 9999",
            |f| f.set("llama.block_count", Meta::U32(9_999)),
            &["89973 tensors", "and 89873 more"],
        ),
        ("theta NaN", |f| f.set("llama.rope.freq_base", Meta::F32(f32::NAN)), &["`rope_theta` is NaN"]),
        (
            "scaling",
            |f| f.set("llama.rope.scaling.type", Meta::Text("yarn".into())),
            &["rope.scaling.type` is yarn"],
        ),
        ("experts", |f| f.set("llama.expert_count", Meta::U32(8)), &["experts are not supported"]),
        ("partial rope", |f| f.set("llama.rope.dimension_count", Meta::U32(4)), &["must be 8", "whole head"]),
        (
            "SPM",
            |f| f.set("tokenizer.ggml.model", Meta::Text("llama".into())),
            &["of the kind llama", "gpt2"],
        ),
        ("split", |f| f.set("tokenizer.ggml.pre", Meta::Text("qwen2".into())), &["qwen2", "smollm, gpt-2"]),
        (
            "no tokens",
            |f| f.metadata.retain(|(key, _)| key != "tokenizer.ggml.tokens"),
            &["`tokenizer.ggml.tokens` is missing"],
        ),
        (
            "a token twice",
            |f| f.set("tokenizer.ggml.tokens", Meta::Texts(vec!["a".into(); 12])),
            &["`a` is there twice"],
        ),
        ("types", |f| f.set("tokenizer.ggml.token_type", Meta::I32s(vec![1])), &["12 tokens have 1 types"]),
        (
            "a merge into nothing",
            |f| f.set("tokenizer.ggml.merges", Meta::Texts(vec!["abc abc".into()])),
            &["merge 0", "`abcabc`", "the vocabulary lacks"],
        ),
        (
            "half a merge",
            |f| f.set("tokenizer.ggml.merges", Meta::Texts(vec!["ab".into()])),
            &["merge 0 is not two tokens"],
        ),
        (
            "more tokens than rows",
            |f| {
                let tokens = crate::fixtures::tokens().into_iter().chain(["zz".into()]).collect();
                f.set("tokenizer.ggml.tokens", Meta::Texts(tokens));
                f.set("tokenizer.ggml.token_type", Meta::I32s(vec![1; 13]));
            },
            &["ids reach 13", "only 12 rows"],
        ),
    ]);
}

#[test]
fn gguf_files_cut_anywhere() {
    let whole = GgufFile::tiny().write();
    let last = GgufFile::tiny().tensors.last().unwrap().data.len();
    for len in (0..whole.bytes.len()).step_by(37).chain([whole.bytes.len() - last, whole.bytes.len() - 1]) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cut.gguf");
        std::fs::write(&file, &whole.bytes[..len]).unwrap();
        check(&format!("{len} bytes"), &error(&file), &["cut.gguf: "]);
    }
}

type HfCase = (&'static str, fn(&mut HfModel), &'static [&'static str]);

#[test]
fn safetensors_that_lie() {
    let cases: &[HfCase] = &[
        ("past the end", |m| m.tensor(Q).offsets = Some([0, 1 << 40]), &[Q, "do not fit"]),
        (
            "a huge tensor",
            |m| {
                let last = m.tensors.pop().unwrap();
                let start = m.tensors.iter().map(|tensor| tensor.data.len() as u64).sum();
                let (shape, offsets) = (vec![1 << 20, 1 << 20], Some([start, start + (2 << 40)]));
                m.tensors.push(SafeTensor { shape, offsets, ..last });
            },
            &["model.layers.1.mlp.down_proj.weight", "past the end"],
        ),
        (
            "overlap",
            |m| m.tensor("model.norm.weight").offsets = Some([64, 192]),
            &["model.norm.weight", "overlaps"],
        ),
        ("backwards", |m| m.tensor(EMBEDDING).offsets = Some([768, 0]), &[EMBEDDING, "do not fit"]),
        ("overflow", |m| m.tensor(Q).shape = vec![1 << 40, 1 << 40], &[Q, "overflows"]),
        ("2^63 rows", |m| m.tensor(Q).shape = vec![1 << 63, 1], &[Q, "overflows"]),
        ("a short shape", |m| m.tensor(Q).shape = vec![16, 32], &[Q, "do not fit"]),
        (
            "another shape",
            |m| m.tensor(Q).shape = vec![16, 64],
            &["model.safetensors", Q, "has shape [16, 64], the configuration says [32, 32]"],
        ),
        (
            "a scalar",
            |m| *m.tensor(Q) = SafeTensor { data: vec![0; 4], shape: vec![], ..scalar() },
            &[Q, "has shape []"],
        ),
        ("a type", |m| m.tensor(Q).dtype = "F8_E4M3", &[Q, "F8_E4M3", "F32, F16, BF16"]),
        ("bytes", |m| *m.tensor(EMBEDDING) = bytes(EMBEDDING, &[12, 32]), &[EMBEDDING, "raw bytes (U8)"]),
        (
            "a payload of numbers",
            |m| {
                m.tensor(Q).name = Q.replace(".weight", ".blr");
            },
            &["q_proj.blr", "a packed payload is a U8 vector"],
        ),
        (
            "missing",
            |m| m.tensors.truncate(1),
            &["20 tensors", "model.norm.weight, lm_head.weight, model.layers.0"],
        ),
        (
            "an adapter",
            |m| m.tensors.push(bytes("model.layers.0.self_attn.q_proj.lora_A", &[8])),
            &["1 tensors belong to nothing", "lora_A"],
        ),
        (
            "packed and dense",
            |m| m.tensors.push(bytes("model.layers.0.self_attn.q_proj.blr", &[8])),
            &["belong to nothing", "q_proj.blr"],
        ),
        ("a tensor twice", |m| m.tensors.push(bytes(EMBEDDING, &[8])), &[EMBEDDING, "twice"]),
    ];
    for (case, lie, expected) in cases {
        let mut model = HfModel::tiny();
        lie(&mut model);
        check_folder(case, &model.write(), expected);
    }
}

fn scalar() -> SafeTensor {
    SafeTensor { name: Q.into(), dtype: "F32", shape: vec![], offsets: None, data: vec![] }
}

fn bytes(name: &str, shape: &[u64]) -> SafeTensor {
    SafeTensor::random(name, shape, "U8", &mut crate::fixtures::Rng(4))
}

#[test]
fn safetensors_headers_that_lie() {
    let whole = HfModel::tiny().write().remove("model.safetensors").unwrap();
    let u64s = |value: u64| value.to_le_bytes().to_vec();
    let cases = [
        ("empty", vec![], "0 bytes are too few"),
        ("seven bytes", vec![0; 7], "7 bytes are too few"),
        ("no header", u64s(0), "header is damaged"),
        ("2^63 bytes of header", u64s(1 << 63), "says 9223372036854775808 bytes of JSON"),
        ("2^64 - 1 bytes of header", u64s(u64::MAX), "but only 0 bytes follow"),
        ("not UTF-8", [u64s(2), vec![0xFF, 0xFE]].concat(), "not text"),
        ("not JSON", with_header("{]", &[]), "header is damaged"),
        ("not an object", with_header("[1]", &[]), "header is damaged"),
        ("deep", with_header(&format!("{{\"a\":{}", "[".repeat(1 << 20)), &[]), "tensor `a`"),
        (
            "negative",
            with_header(r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, &[0; 4]),
            "tensor `a`",
        ),
        ("half", with_header(r#"{"a":{"dtype":"F32","shape":[1]}}"#, &[0; 4]), "tensor `a`"),
        (
            "a gap",
            with_header(r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}}"#, &[0; 4]),
            "0..3 before it",
        ),
        ("more data", [whole.clone(), vec![0]].concat(), "1 bytes after the last tensor"),
        ("less data", whole[..whole.len() - 1].to_vec(), "past the end"),
        // Eight tensors of 2^61 bytes: a sum of sizes in 64 bits comes back to zero.
        ("a sum that wraps", with_header(&wrapping_header(), &[]), "past the end"),
    ];
    for (case, file, expected) in cases {
        let mut files = HfModel::tiny().write();
        files.insert("model.safetensors".into(), file);
        check_folder(case, &files, &["model.safetensors", expected]);
    }
}

fn wrapping_header() -> String {
    let size = 1u64 << 61;
    let entry = |k: u64| {
        let offsets = [k * size, (k + 1).wrapping_mul(size)];
        format!("\"t{k}\":{}", json!({"dtype": "U8", "shape": [size], "data_offsets": offsets}))
    };
    format!("{{{}}}", (0..8).map(entry).collect::<Vec<_>>().join(","))
}

#[test]
fn indices_that_lie() {
    let index = |map: &str| format!("{{\"weight_map\":{map}}}");
    let cases = [
        ("not JSON", "{".into(), "no index of shards"),
        ("no map", "{}".into(), "weight_map"),
        ("a map of numbers", index(r#"{"a":1}"#), "tensor `a`"),
        ("a missing shard", index(r#"{"a":"model-9.safetensors"}"#), "model-9.safetensors: cannot be read"),
        (
            "up and away",
            index(r#"{"a":"../model-0.safetensors"}"#),
            "`../model-0.safetensors` is not a file name inside",
        ),
        ("an absolute path", index(r#"{"a":"/etc/passwd"}"#), "`/etc/passwd` is not a file name inside"),
        ("a subfolder", index(r#"{"a":"x/model-0.safetensors"}"#), "is not a file name inside"),
        ("a backslash", index(r#"{"a":"..\\x"}"#), "is not a file name inside"),
        ("a zero byte", index(r#"{"a":"x\u0000"}"#), "is not a file name inside"),
        ("the folder", index(r#"{"a":"."}"#), "is not a file name inside"),
        ("the parent", index(r#"{"a":".."}"#), "is not a file name inside"),
        ("nothing", index(r#"{"a":""}"#), "is not a file name inside"),
        ("itself", index(r#"{"a":"model.safetensors.index.json"}"#), "index.json: its header says"),
        ("a tensor twice", index(r#"{"a":"x","a":"y"}"#), "tensor `a`: is in the index twice"),
        ("elsewhere", index(r#"{"a":"model-0.safetensors"}"#), "tensor `a`: is not in model-0.safetensors"),
        (
            "left out",
            index(r#"{"model.embed_tokens.weight":"model-0.safetensors"}"#),
            "is in the file, but not in model.safetensors.index.json",
        ),
        ("empty", index("{}"), "21 tensors that a llama model needs are missing"),
    ];
    for (case, text, expected) in cases {
        let mut files = HfModel { shards: 2, ..HfModel::tiny() }.write();
        files.insert("model.safetensors.index.json".into(), text.into_bytes());
        check_folder(case, &files, &[expected]);
    }
    let mut files = HfModel { shards: 2, ..HfModel::tiny() }.write();
    files.insert("model-1.safetensors".into(), safetensors(&[]));
    check_folder("an emptied shard", &files, &["is not in model-1.safetensors"]);
}

#[test]
fn settings_that_lie() {
    let cases: &[(&str, &str, &[u8], &str)] = &[
        ("not JSON", "config.json", b"{", "config.json: it is no model configuration"),
        ("empty", "config.json", b"", "config.json: it is no model configuration"),
        ("not UTF-8", "config.json", b"\xFF", "config.json: invalid utf-8"),
        ("deep", "config.json", &[b'['; 100_000], "config.json: it is no model configuration"),
        ("two megabytes", "config.json", &[b' '; 2 << 20], "config.json: 2097152 bytes are more than"),
        ("generation", "generation_config.json", b"{\"eos_token_id\": \"x\"}", "generation_config.json: "),
        ("an id past the vocabulary", "generation_config.json", b"{\"eos_token_id\": 12}", "has 12 tokens"),
        ("tokenizer_config", "tokenizer_config.json", b"[", "tokenizer_config.json: "),
        ("chat template", "chat_template.jinja", b"\xFF", "chat_template.jinja: invalid utf-8"),
        ("tokenizer not JSON", "tokenizer.json", b"{", "tokenizer.json: "),
        (
            "tokenizer without a model",
            "tokenizer.json",
            b"{}",
            "tokenizer.json: the tokenizer cannot be built",
        ),
        (
            "a merge that is longer than every token",
            "tokenizer.json",
            br#"{"model":{"type":"BPE","vocab":{"aa":0,"bb":1},"merges":[["aa","bb"]]}}"#,
            "tokenizer.json: the tokenizer cannot be built: merge 0",
        ),
        (
            "a tokenizer larger than the embedding",
            "tokenizer.json",
            br#"{"model":{"type":"BPE","vocab":{"aa":0,"bb":4000000000},"merges":[]}}"#,
            "ids reach 4000000001, but the embedding has only 12 rows",
        ),
    ];
    for (case, name, bytes, expected) in cases {
        let mut files = HfModel::tiny().write();
        files.insert((*name).into(), bytes.to_vec());
        check_folder(case, &files, &[expected]);
    }
    let missing = [
        ("config.json", "not a checkpoint: give a folder with config.json"),
        ("model.safetensors", "neither model.safetensors nor model.safetensors.index.json is there"),
        ("tokenizer.json", "tokenizer.json: cannot be read"),
    ];
    for (name, expected) in missing {
        let mut files = HfModel::tiny().write();
        files.remove(name);
        check_folder(name, &files, &[expected]);
    }
}

#[test]
fn paths_that_are_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "hello").unwrap();
    check("a text file", &error(&text), &["notes.txt: not a checkpoint", "or a .gguf file"]);
    check("nothing", &error(&folder.path().join("absent.gguf")), &["absent.gguf: cannot be read"]);
    check("nothing at all", &error(&folder.path().join("absent")), &["absent: cannot be read"]);
    std::fs::create_dir(folder.path().join("dir.gguf")).unwrap();
    check("a folder", &error(&folder.path().join("dir.gguf")), &["not a checkpoint: give a folder"]);
}
