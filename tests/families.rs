//! Every family against logits of the reference implementation (`tools/families`), from a Hugging Face folder and from
//! GGUF files made of it.

mod common;
#[allow(dead_code)]
#[path = "readers/fixtures.rs"]
mod fixtures;

use std::fs;
use std::path::{Path, PathBuf};

use fixtures::{GgufFile, GgufTensor, Meta};
use lapidary::device::Bytes;
use lapidary::model::on_device::{DecodeParams, DeviceDecoder, DeviceForward};
use lapidary::model::{
    Cache, Checkpoint, Config, Decoder, Family, LinearName, NoCapture, RowOrder, Run, Tensor,
};
use lapidary::ops::Dtype;
use safetensors::SafeTensors;
use serde_json::{Value, json};

/// Largest difference of a logit: both sides compute in f32, in different orders.
const TOLERANCE: f32 = 1e-3;

const FIXTURES: [(&str, Family); 5] = [
    ("llama3", Family::Llama),
    ("mistral", Family::Mistral),
    ("qwen2", Family::Qwen2),
    ("qwen3", Family::Qwen3),
    ("gemma3", Family::Gemma3),
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/families").join(name)
}

/// The fixture, with these entries of its config.json changed.
fn checkpoint(name: &str, changes: &[(&str, Value)]) -> Checkpoint {
    let folder = folder(name);
    let read = |file: &str| {
        let bytes = fs::read(folder.join(file))?;
        if file != "config.json" {
            return Ok(Bytes::from(bytes));
        }
        let mut config: Value = serde_json::from_slice(&bytes).unwrap();
        changes.iter().for_each(|(key, value)| config[*key] = value.clone());
        Ok(Bytes::from(config.to_string().into_bytes()))
    };
    Checkpoint::from_folder(&folder, &read).unwrap()
}

struct Expected {
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

fn expected(name: &str) -> Expected {
    let bytes = fs::read(folder(name).join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let data = |tensor: &str| file.tensor(tensor).unwrap().data().to_vec();
    let ids = data("tokens").as_chunks::<8>().0.iter().map(|id| i64::from_le_bytes(*id) as u32).collect();
    let logits = data("logits").as_chunks::<4>().0.iter().map(|z| f32::from_le_bytes(*z)).collect();
    Expected { tokens: ids, logits }
}

/// Logits of all positions: in one window, and through a cache in pieces of several lengths.
fn logits(decoder: &Decoder, tokens: &[u32]) -> [Vec<f32>; 2] {
    let window = decoder.forward(tokens, Run::Windows { len: tokens.len() }, &mut NoCapture).unwrap();
    let mut cache = Cache::new(decoder.config(), 4);
    let (mut cached, mut rest) = (Vec::new(), tokens);
    for length in [1, 3, 9, 2].into_iter().cycle() {
        let (piece, later) = rest.split_at(rest.len().min(length));
        if piece.is_empty() {
            break;
        }
        cached.extend(decoder.forward(piece, Run::Cache(&mut cache), &mut NoCapture).unwrap());
        rest = later;
    }
    [window, cached]
}

#[track_caller]
fn assert_close(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().all(|z| z.is_finite()));
    let worst = found.iter().zip(expected).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
    println!("{what}: largest difference {worst:.1e}");
    assert!(worst <= TOLERANCE, "{what}: largest difference {worst:e}");
}

#[test]
fn logits_are_those_of_the_reference() {
    for (name, family) in FIXTURES {
        let checkpoint = checkpoint(name, &[]);
        assert_eq!(checkpoint.config().family, family);
        let Expected { tokens, logits: expected } = expected(name);
        if let Some(sliding) = &checkpoint.config().sliding {
            assert!(tokens.len() > 2 * sliding.window, "{name}: the text is longer than the window");
        }
        let decoder = Decoder::load(&checkpoint).unwrap();
        for (what, found) in ["window", "cache"].iter().zip(logits(&decoder, &tokens)) {
            assert_close(&format!("{name}, {what}"), &found, &expected);
        }
    }
}

#[test]
fn logits_on_devices_are_those_of_the_reference() {
    for (name, _) in FIXTURES {
        let Expected { tokens, logits: expected } = expected(name);
        let decoder = Decoder::load(&checkpoint(name, &[])).unwrap();
        for device in common::devices() {
            let what = format!("{name} on {}", device.name());
            let mut window = DeviceForward::run(&device, &decoder, &tokens, tokens.len()).unwrap();
            let found = window.logits(0, tokens.len()).unwrap();
            assert_close(&format!("{what}, window"), &found, &expected);
            let params = DecodeParams { sequences: 1, positions: tokens.len() };
            let mut cached = DeviceDecoder::new(&device, &decoder, params).unwrap();
            let found: Vec<f32> = (tokens.iter().enumerate())
                .flat_map(|(position, token)| cached.step(&[*token], &[position]).unwrap())
                .collect();
            assert_close(&format!("{what}, cache"), &found, &expected);
        }
    }
}

#[test]
fn a_written_configuration_reads_back_the_same() {
    for (name, _) in FIXTURES {
        let config = checkpoint(name, &[]).config().clone();
        let written = config.to_hf_json(Dtype::F32).to_string();
        assert_eq!(Config::from_hf_json(&written).unwrap(), config, "{name}");
    }
}

#[test]
fn embeddings_are_scaled_in_the_type_that_they_are_stored_in() {
    let rounded = |dtype: &'static str| {
        let (folder, mut values) = (folder("gemma3"), Vec::new());
        let bytes = fs::read(folder.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors: Vec<_> = (file.iter())
            .map(|(name, view)| {
                let embedding = name == "model.embed_tokens.weight";
                let numbers = view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
                let data = match dtype {
                    "BF16" if embedding => {
                        numbers.flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect()
                    }
                    "F16" if embedding => {
                        numbers.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect()
                    }
                    _ => view.data().to_vec(),
                };
                let shape = view.shape().iter().map(|size| *size as u64).collect();
                let dtype = if embedding { dtype } else { "F32" };
                fixtures::SafeTensor { name: name.into(), dtype, shape, offsets: None, data }
            })
            .collect();
        let model = fixtures::safetensors(&tensors.iter().collect::<Vec<_>>());
        let read = |file: &str| match file {
            "model.safetensors" => Ok(Bytes::from(model.clone())),
            file => fs::read(folder.join(file)).map(Bytes::from),
        };
        let checkpoint = Checkpoint::from_folder(&folder, &read).unwrap();
        let embedding = checkpoint.tensor("model.embed_tokens.weight").unwrap();
        values.resize(embedding.cols(), 0.0);
        embedding.read_row(5, &mut values);
        let embedded = Decoder::load(&checkpoint).unwrap().embed(&[5]).unwrap();
        (embedded[3] / values[3], 32f32.sqrt())
    };
    let (scale, exact) = rounded("F32");
    assert!((scale / exact - 1.0).abs() < 1e-6);
    for (dtype, expected) in [
        ("BF16", half::bf16::from_f32(32f32.sqrt()).to_f32()),
        ("F16", half::f16::from_f32(32f32.sqrt()).to_f32()),
    ] {
        let (scale, exact) = rounded(dtype);
        assert!((scale / expected - 1.0).abs() < 1e-6 && expected != exact, "{dtype}: {scale}");
    }
}

/// What GGUF cannot say is changed in config.json: single layers that slide, a divisor of scores that is not the size of
/// a head, Llama 3's constants.
fn changes(family: Family) -> Vec<(&'static str, Value)> {
    match family {
        Family::Llama => vec![(
            "rope_parameters",
            json!({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
        )],
        Family::Qwen2 => vec![("use_sliding_window", json!(false))],
        Family::Gemma3 => vec![("query_pre_attn_scalar", json!(16))],
        Family::Mistral | Family::Qwen3 => vec![],
    }
}

/// The checkpoint as a GGUF file, in the order and with the offsets that GGUF has.
fn gguf(checkpoint: &Checkpoint, architecture: &str) -> GgufFile {
    let config = checkpoint.config();
    let mut file = GgufFile::tiny();
    file.metadata.retain(|(key, _)| key.starts_with("tokenizer."));
    file.set("general.architecture", Meta::Text(architecture.into()));
    let sizes = [
        ("block_count", config.layers),
        ("context_length", config.max_positions),
        ("embedding_length", config.hidden),
        ("feed_forward_length", config.intermediate),
        ("attention.head_count", config.heads),
        ("attention.head_count_kv", config.kv_heads),
        ("attention.key_length", config.head_dim),
        ("vocab_size", config.vocab),
    ];
    let mut set = |key: &str, value| file.set(&format!("{architecture}.{key}"), value);
    for (key, size) in sizes {
        set(key, Meta::U32(size as u32));
    }
    set("rope.freq_base", Meta::F32(config.rope.theta as f32));
    set("attention.layer_norm_rms_epsilon", Meta::F32(config.rms_eps as f32));
    if let Some(sliding) = &config.sliding {
        set("attention.sliding_window", Meta::U32(sliding.window as u32));
    }
    if config.family == Family::Gemma3 {
        set("attention.sliding_window_pattern", Meta::U32(2));
        set("rope.scaling.type", Meta::Text("linear".into()));
        set("rope.scaling.factor", Meta::F32(8.0));
    }
    file.tensors =
        checkpoint.names().map(|name| gguf_tensor(config, &checkpoint.tensor(name).unwrap())).collect();
    if config.family == Family::Llama {
        let plain = lapidary::ops::rope::Frequencies::unscaled(config.rope.theta).values(config.head_dim);
        let scaled = config.rope.values(config.head_dim);
        let factors = plain.iter().zip(scaled).map(|(plain, scaled)| (plain / scaled) as f32).collect();
        file.tensors.push(f32_tensor("rope_freqs.weight", &[config.head_dim / 2], factors));
    }
    file
}

fn gguf_tensor(config: &Config, tensor: &Tensor) -> GgufTensor {
    let mut name = tensor.name.replace("model.layers.", "blk.");
    for (hf, gguf) in [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        (
            "post_attention_layernorm",
            if config.family == Family::Gemma3 { "post_attention_norm" } else { "ffn_norm" },
        ),
    ] {
        name = name.replace(hf, gguf);
    }
    let mut numbers = tensor.to_f32();
    if config.family == Family::Gemma3 && name.contains("norm") {
        numbers.iter_mut().for_each(|weight| *weight += 1.0);
    }
    let rotary = name.contains("attn_q.") || name.contains("attn_k.");
    if rotary && matches!(config.family, Family::Llama | Family::Mistral) {
        let order = RowOrder::Interleaved { head_dim: config.head_dim };
        // Rows of a weight, single numbers of a bias.
        let width = if tensor.shape.len() == 2 { tensor.cols() } else { 1 };
        let mut stored = numbers.clone();
        for (row, values) in numbers.chunks_exact(width).enumerate() {
            stored[order.stored(row) * width..][..width].copy_from_slice(values);
        }
        numbers = stored;
    }
    f32_tensor(&name, &tensor.shape, numbers)
}

fn f32_tensor(name: &str, shape: &[usize], numbers: Vec<f32>) -> GgufTensor {
    let dims = shape.iter().rev().map(|size| *size as u64).collect();
    let data = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
    GgufTensor { name: name.into(), dims, kind: 0, offset: None, data }
}

#[test]
fn gguf_files_are_brought_to_the_same_model() {
    for (name, family) in FIXTURES {
        let original = checkpoint(name, &changes(family));
        let tokens = expected(name).tokens;
        let [expected, _] = logits(&Decoder::load(&original).unwrap(), &tokens);
        // Most Mistral models call themselves llama.
        let also = (family == Family::Mistral).then_some("llama");
        for architecture in [family.name()].into_iter().chain(also) {
            let bytes = gguf(&original, architecture).write().bytes;
            let opened = Checkpoint::from_gguf(Path::new("model.gguf"), bytes.into()).unwrap();
            let stated =
                |config: &Config| Config { bos: None, eos: vec![], add_bos: false, ..config.clone() };
            assert_eq!(stated(opened.config()), stated(original.config()), "{name}");
            let [found, _] = logits(&Decoder::load(&opened).unwrap(), &tokens);
            assert_close(&format!("{name} as {architecture}"), &found, &expected);
            for tensor in original.names() {
                let (ours, theirs) = (opened.tensor(tensor).unwrap(), original.tensor(tensor).unwrap());
                assert_close(tensor, &ours.to_f32(), &theirs.to_f32());
            }
        }
    }
}

#[test]
fn packed_layers_keep_their_bias() {
    let decoder = Decoder::load(&checkpoint("llama3", &[])).unwrap();
    let other = Decoder::load(&checkpoint("qwen3", &[])).unwrap();
    for name in LinearName::ALL {
        assert!(decoder.block(1).bias(name).is_some_and(|bias| bias.iter().any(|b| *b != 0.0)));
        assert!(other.block(1).bias(name).is_none());
    }
    let mut changed = decoder.clone();
    let up = decoder.linear(0, LinearName::Up).clone();
    changed.set_linear(1, LinearName::Gate, up).unwrap();
    assert_eq!(changed.block(1).bias(LinearName::Gate), decoder.block(1).bias(LinearName::Gate));
}
