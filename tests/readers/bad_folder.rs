//! Hugging Face folders that lie, one lie each, and what the error must say.

use serde_json::{Value, json};

use crate::bad_input::{check, error};
use crate::fixtures::{Files, HfModel, SafeTensor, safetensors, with_header};

const Q: &str = "model.layers.1.self_attn.q_proj.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

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
        (
            "a missing shard",
            index(r#"{"a":"model-9.safetensors"}"#),
            "1 files that it lists are not in the folder, fetch them: model-9.safetensors",
        ),
        (
            "missing shards, all named",
            index(r#"{"a":"x-2.safetensors","b":"model-0.safetensors","c":"x-1.safetensors"}"#),
            "2 files that it lists are not in the folder, fetch them: x-1.safetensors, x-2.safetensors",
        ),
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
    // An index that forgets a whole shard, and a shard with a type that no other has.
    let mut files = HfModel { shards: 2, ..HfModel::tiny() }.write();
    let index: Value = serde_json::from_slice(&files["model.safetensors.index.json"]).unwrap();
    let mut map = index["weight_map"].as_object().unwrap().clone();
    map.retain(|_, shard| shard != "model-1.safetensors");
    let index = json!({"weight_map": map}).to_string();
    files.insert("model.safetensors.index.json".into(), index.into_bytes());
    check_folder(
        "a forgotten shard",
        &files,
        &["10 tensors that a llama model needs are missing: model.norm"],
    );
    let mut model = HfModel { shards: 2, ..HfModel::tiny() };
    model.tensor("model.norm.weight").dtype = "I32";
    let expected =
        ["model-1.safetensors: tensor `model.norm.weight` is stored as I32", "reads F32, F16, BF16"];
    check_folder("a shard of another type", &model.write(), &expected);
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
        ("a special token", "tokenizer_config.json", b"{\"eos_token\": 3}", "tokenizer_config.json: a token, or an object"),
        ("a chat template in JSON", "chat_template.json", b"{\"chat_template\": 3}", "chat_template.json: "),
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
            "half a character in the decoder",
            "tokenizer.json",
            br#"{"decoder":{"x":"\uD800"},"model":{"type":"BPE","vocab":{},"merges":[]}}"#,
            "tokenizer.json: the tokenizer cannot be built: ",
        ),
        (
            "a precompiled normaliser",
            "tokenizer.json",
            br#"{"normalizer":{"type":"Sequence","normalizers":[{"type":"Precompiled","precompiled_charsmap":"!"}]},
                "model":{"type":"BPE","vocab":{},"merges":[]}}"#,
            "tokenizer.json: the tokenizer cannot be built: precompiled normalisers",
        ),
        ("another kind", "tokenizer.json", br#"{"model":{"type":"Unigram","vocab":[["a",0.0]]}}"#, "of the kind Unigram"),
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
fn configurations_that_contradict_the_tensors_or_the_decoder() {
    let cases: &[(&str, &str, Value, &[&str])] = &[
        (
            "unknown scaling",
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 4.0}),
            &["config.json: `rope_scaling` is yarn, but default, linear and llama3 are known"],
        ),
        (
            "a wider model",
            "hidden_size",
            json!(64),
            &[EMBEDDING, "has shape [12, 32], the configuration says [12, 64]"],
        ),
        (
            "more heads of keys",
            "num_key_value_heads",
            json!(4),
            &["self_attn.k_proj.weight", "has shape [16, 32], the configuration says [32, 32]"],
        ),
        (
            "more layers",
            "num_hidden_layers",
            json!(3),
            &[
                "9 tensors that a llama model needs are missing: model.layers.2.input_layernorm.weight",
                "model.layers.2.mlp.down_proj.weight",
            ],
        ),
        ("fewer layers", "num_hidden_layers", json!(1), &["9 tensors belong to nothing", "model.layers.1"]),
        ("biases", "attention_bias", json!(true), &["8 tensors", "model.layers.0.self_attn.q_proj.bias"]),
        ("a smaller vocabulary", "vocab_size", json!(11), &["`bos_token_id or eos_token_id` is 11"]),
    ];
    for (case, key, value, expected) in cases {
        let mut model = HfModel::tiny();
        model.config[*key] = value.clone();
        check_folder(case, &model.write(), expected);
    }
}

fn check_folder(case: &str, files: &Files, expected: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    check(case, &error(folder.path()), expected);
}
