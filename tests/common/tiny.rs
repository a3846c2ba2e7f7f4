//! A small Llama of random weights, as a checkpoint in memory.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use half::f16;
use lapidary::blr::Payload;
use lapidary::blr::payload::PathParts;
use lapidary::device::Bytes;
use lapidary::model::{Biases, Checkpoint, Config, Family, LinearName, Sliding, SplitMix64};
use lapidary::ops::Dtype;
use lapidary::ops::rope::Frequencies;

/// Tensors by Hugging Face name: shape and row-major numbers.
pub type Weights = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The same sizes in another family, with every feature that it may have.
pub fn family(family: Family) -> Config {
    let plain = config(true);
    let rope = plain.rope;
    let slides = |window, rope| Some(Sliding { window, layers: vec![true, false, true], rope });
    let (sliding, biases) = match family {
        Family::Llama => (None, Biases { qkv: true, o: true, mlp: true }),
        Family::Mistral => (slides(20, rope), Biases::default()),
        Family::Qwen2 => (None, Biases { qkv: true, ..Biases::default() }),
        Family::Qwen3 => (None, Biases { qkv: true, o: true, mlp: false }),
        Family::Gemma3 => (slides(20, Frequencies::unscaled(500.0)), Biases::default()),
    };
    let score_scalar = (family == Family::Gemma3).then_some(12.0);
    Config { family, head_dim: 10, sliding, biases, score_scalar, ..plain }
}

/// Grouped-query attention, sizes that are no powers of two.
pub fn config(tied: bool) -> Config {
    Config {
        family: Family::Llama,
        hidden: 48,
        intermediate: 88,
        layers: 3,
        heads: 6,
        kv_heads: 2,
        head_dim: 8,
        vocab: 101,
        rope: Frequencies::unscaled(10_000.0),
        sliding: None,
        biases: Biases::default(),
        score_scalar: None,
        rms_eps: 1e-5,
        tied,
        max_positions: 256,
        bos: None,
        eos: vec![],
        add_bos: false,
    }
}

/// Random weights whose activations stay of order one.
pub fn weights(config: &Config) -> Weights {
    let mut random = SplitMix64::new(42);
    let mut weights = Weights::new();
    let mut add = |name: String, shape: Vec<usize>, centre: f64, spread: f64| {
        let count = shape.iter().product();
        let numbers = (0..count).map(|_| (centre + spread * (2.0 * random.uniform() - 1.0)) as f32).collect();
        weights.insert(name, (shape, numbers));
    };
    add("model.embed_tokens.weight".into(), vec![config.vocab, config.hidden], 0.0, 1.0);
    if !config.tied {
        add("lm_head.weight".into(), vec![config.vocab, config.hidden], 0.0, 1.0);
    }
    let traits = config.family.traits();
    let centre = 1.0 - f64::from(traits.norm_offset);
    add("model.norm.weight".into(), vec![config.hidden], centre, 0.3);
    for layer in 0..config.layers {
        let mut norms = vec![("input_layernorm", config.hidden), ("post_attention_layernorm", config.hidden)];
        if traits.post_norms {
            norms.push(("pre_feedforward_layernorm", config.hidden));
            norms.push(("post_feedforward_layernorm", config.hidden));
        }
        if traits.qk_norms {
            norms.push(("self_attn.q_norm", config.head_dim));
            norms.push(("self_attn.k_norm", config.head_dim));
        }
        for (norm, len) in norms {
            add(format!("model.layers.{layer}.{norm}.weight"), vec![len], centre, 0.3);
        }
        for name in LinearName::ALL {
            let shape = name.shape(config).to_vec();
            let spread = 2.0 / (shape[1] as f64).sqrt();
            if config.has_bias(name) {
                add(format!("{}.bias", name.prefix(layer)), vec![shape[0]], 0.0, 0.5);
            }
            add(format!("{}.weight", name.prefix(layer)), shape, 0.0, spread);
        }
    }
    weights
}

/// One tensor as it is stored.
pub struct Stored {
    pub dtype: safetensors::Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub fn stored(weights: &Weights) -> BTreeMap<String, Stored> {
    let store = |(shape, numbers): &(Vec<usize>, Vec<f32>)| Stored {
        dtype: safetensors::Dtype::F32,
        shape: shape.clone(),
        bytes: numbers.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    weights.iter().map(|(name, tensor)| (name.clone(), store(tensor))).collect()
}

/// A Hugging Face folder of these tensors, in memory.
pub fn checkpoint(config: &Config, tensors: &BTreeMap<String, Stored>) -> Checkpoint {
    let views = tensors.iter().map(|(name, tensor)| {
        let view =
            safetensors::tensor::TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).unwrap();
        (name.clone(), view)
    });
    let model = safetensors::serialize(views, None).unwrap();
    let config = config.to_hf_json(Dtype::F32).to_string();
    let read = |name: &str| match name {
        "config.json" => Ok(Bytes::from(config.clone().into_bytes())),
        "model.safetensors" => Ok(Bytes::from(model.clone())),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    Checkpoint::from_folder(Path::new("tiny"), &read).unwrap()
}

/// A random payload for a layer of this shape, about as large as the weights of [`weights`].
pub fn payload([rows, in_features]: [usize; 2], paths: usize, random: &mut SplitMix64) -> Payload {
    let cols = in_features.next_multiple_of(8);
    let rank = 8.max(rows.min(cols) / 16 * 8);
    let size = 1.0 / (rank * paths * in_features) as f64;
    let mut scales = |len: usize, size: f64| -> Vec<f16> {
        (0..len).map(|_| f16::from_f64(size * (0.5 + random.uniform()))).collect()
    };
    let vectors: Vec<_> =
        (0..paths).map(|_| [scales(rows, 1.0), scales(cols, size.sqrt()), scales(rank, 1.0)]).collect();
    let mut signs = |len: usize| (0..len).map(|_| if random.next_u64() & 1 == 1 { 1 } else { -1 }).collect();
    let factors: Vec<[Vec<i8>; 2]> = (0..paths).map(|_| [signs(rows * rank), signs(cols * rank)]).collect();
    let parts = vectors.iter().zip(&factors);
    let parts: Vec<_> = parts.map(|([h, g, l], [u, v])| PathParts { h, g, l, u, v }).collect();
    Payload::build(rows, cols, rank, &parts).unwrap()
}
