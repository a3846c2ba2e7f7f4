//! The decoder against candle's Llama and Gemma 3 on the CPU, over the same weights in f32; block formats against candle's.

mod common;
#[path = "common/tiny.rs"]
mod tiny;

use std::collections::HashMap;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use candle_transformers::models::{gemma3, llama};
use lapidary::model::{Cache, Capture, Checkpoint, Config, Decoder, NoCapture, Run, Site, SplitMix64};
use lapidary::ops::dtype::{Dtype, dequantise};

/// Largest difference of a logit: both sides compute in f32, in different orders, over up to 30 blocks.
const TOLERANCE: f32 = 1e-3;

/// Candle's logits of every position: it gives those of the last one only, so tokens go in one at a time.
fn candle_logits(config: &Config, weights: HashMap<String, Tensor>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let device = Device::Cpu;
    let llama_config = llama::Config {
        hidden_size: config.hidden,
        intermediate_size: config.intermediate,
        vocab_size: config.vocab,
        num_hidden_layers: config.layers,
        num_attention_heads: config.heads,
        num_key_value_heads: config.kv_heads,
        use_flash_attn: false,
        rms_norm_eps: config.rms_eps,
        rope_theta: config.rope.theta as f32,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: config.max_positions,
        tie_word_embeddings: config.tied,
    };
    let builder = candle_nn::VarBuilder::from_tensors(weights, DType::F32, &device);
    let model = llama::Llama::load(builder, &llama_config).unwrap();
    let mut cache = llama::Cache::new(true, DType::F32, &llama_config, &device).unwrap();
    let step = |(position, token): (usize, &u32)| {
        let input = Tensor::new(&[[*token]], &device).unwrap();
        model.forward(&input, position, &mut cache).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    };
    tokens.iter().enumerate().map(step).collect()
}

fn to_candle(shape: &[usize], numbers: Vec<f32>) -> Tensor {
    Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap()
}

fn largest_difference(ours: &[f32], theirs: &[Vec<f32>]) -> f32 {
    let theirs: Vec<f32> = theirs.concat();
    assert_eq!(ours.len(), theirs.len());
    assert!(ours.iter().all(|z| z.is_finite()));
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Logits of all positions: one window, then through the cache in pieces of these lengths.
fn our_logits(decoder: &Decoder, tokens: &[u32], pieces: &[usize]) -> [Vec<f32>; 2] {
    let window = decoder.forward(tokens, Run::Windows { len: tokens.len() }, &mut NoCapture).unwrap();
    let mut cache = Cache::new(decoder.config(), 4);
    let (mut cached, mut rest) = (Vec::new(), tokens);
    let mut pieces = pieces.iter().cycle();
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(rest.len().min(*pieces.next().unwrap()));
        cached.extend(decoder.forward(piece, Run::Cache(&mut cache), &mut NoCapture).unwrap());
        rest = later;
    }
    assert_eq!(cache.len(), tokens.len());
    [window, cached]
}

#[test]
fn a_small_model_has_candles_logits() {
    for tied in [true, false] {
        let config = tiny::config(tied);
        let weights = tiny::weights(&config);
        let decoder = Decoder::load(&tiny::checkpoint(&config, &tiny::stored(&weights))).unwrap();
        let weights = weights.into_iter().map(|(name, (shape, numbers))| (name, to_candle(&shape, numbers)));
        let tokens: Vec<u32> = (0..100).map(|k| (k * 37 + 5) % 101).collect();
        let theirs = candle_logits(&config, weights.collect(), &tokens);
        for ours in our_logits(&decoder, &tokens, &[1, 7, 30]) {
            let worst = largest_difference(&ours, &theirs);
            assert!(worst <= TOLERANCE, "tied {tied}: largest difference {worst:e}");
        }
    }
}

#[test]
fn smollm2_has_candles_logits() {
    let Some(path) = common::smollm2() else { return };
    let checkpoint = Checkpoint::open(path).unwrap();
    let config = checkpoint.config();
    let weights = checkpoint.names().map(|name| {
        let tensor = checkpoint.tensor(name).unwrap();
        (name.to_owned(), to_candle(&tensor.shape, tensor.to_f32()))
    });
    let decoder = Decoder::load(&checkpoint).unwrap();
    // "The capital of France is", then every 769th token of the vocabulary.
    let mut tokens = vec![504, 3575, 282, 4649, 314];
    tokens.extend((0..59).map(|k| k * 769 % config.vocab as u32));
    let theirs = candle_logits(config, weights.collect(), &tokens);
    for ours in our_logits(&decoder, &tokens, &[1, 3, 20]) {
        let worst = largest_difference(&ours, &theirs);
        println!("largest difference of {} logits: {worst:e}", ours.len());
        assert!(worst <= TOLERANCE, "largest difference {worst:e}");
    }
}

/// Candle's Gemma 3 over the weights of a checkpoint.
fn candle_gemma(checkpoint: &Checkpoint) -> gemma3::Model {
    let config = checkpoint.config();
    let sliding = config.sliding.as_ref().unwrap();
    let weights: HashMap<String, Tensor> = (checkpoint.names())
        .map(|name| {
            let tensor = checkpoint.tensor(name).unwrap();
            (name.to_owned(), to_candle(&tensor.shape, tensor.to_f32()))
        })
        .collect();
    let gemma_config = gemma3::Config {
        attention_bias: false,
        head_dim: config.head_dim,
        hidden_activation: candle_nn::Activation::GeluPytorchTanh,
        hidden_size: config.hidden,
        intermediate_size: config.intermediate,
        num_attention_heads: config.heads,
        num_hidden_layers: config.layers,
        num_key_value_heads: config.kv_heads,
        rms_norm_eps: config.rms_eps,
        rope_theta: config.rope.theta,
        rope_local_base_freq: sliding.rope.theta,
        vocab_size: config.vocab,
        final_logit_softcapping: None,
        attn_logit_softcapping: None,
        query_pre_attn_scalar: config.score_scalar.unwrap() as usize,
        sliding_window: sliding.window,
        sliding_window_pattern: 6,
        max_position_embeddings: 1024,
    };
    let builder = candle_nn::VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu);
    gemma3::Model::new(false, &gemma_config, builder).unwrap()
}

/// The next token's logits after each of the tokens.
fn candle_steps<'a>(
    model: &'a mut gemma3::Model,
    tokens: &'a [u32],
) -> impl Iterator<Item = Vec<f32>> + use<'a> {
    tokens.iter().enumerate().map(|(position, token)| {
        let input = Tensor::new(&[[*token]], &Device::Cpu).unwrap();
        model.forward(&input, position).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    })
}

#[test]
fn gemma3_has_candles_logits() {
    let Some(path) = common::gemma3() else { return };
    let checkpoint = Checkpoint::open(path).unwrap();
    let config = checkpoint.config();
    let sliding = config.sliding.as_ref().unwrap();
    assert_eq!((sliding.window, &sliding.layers[..6]), (512, &[true, true, true, true, true, false][..]));
    // The start token and "The capital of France is", then every 4,099th token of the vocabulary.
    let mut tokens = vec![2, 818, 5279, 529, 7001, 563];
    tokens.extend((0..26).map(|k| 4099 * (k + 1) % config.vocab as u32));
    let theirs: Vec<Vec<f32>> = candle_steps(&mut candle_gemma(&checkpoint), &tokens).collect();
    let decoder = Decoder::load(&checkpoint).unwrap();
    for ours in our_logits(&decoder, &tokens, &[1, 3, 20]) {
        let worst = largest_difference(&ours, &theirs);
        println!("largest difference of {} logits: {worst:e}", ours.len());
        assert!(worst <= TOLERANCE, "largest difference {worst:e}");
    }
}

#[test]
fn gemma3_has_candles_perplexity_beyond_its_window() {
    /// Largest relative difference of the perplexities.
    const WITHIN: f64 = 1e-3;
    let (Some(path), Some(text)) = (common::gemma3(), common::data("text/wikitext2-test.txt")) else {
        return;
    };
    let checkpoint = Checkpoint::open(path).unwrap();
    let text = std::fs::read_to_string(text).unwrap();
    let mut tokens = vec![2];
    tokens.extend(&checkpoint.tokenizer().unwrap().encode(&text[..4000]).unwrap()[..700]);
    let nll = |logits: &[f32], next: u32| -> f64 {
        let most = logits.iter().fold(f32::MIN, |most, z| most.max(*z));
        let sum: f64 = logits.iter().map(|z| f64::from(z - most).exp()).sum();
        sum.ln() - f64::from(logits[next as usize] - most)
    };
    let next = tokens[1..].iter().copied();
    let theirs: f64 = candle_steps(&mut candle_gemma(&checkpoint), &tokens)
        .zip(next.clone())
        .map(|(logits, next)| nll(&logits, next))
        .sum();
    let decoder = Decoder::load(&checkpoint).unwrap();
    let hidden = decoder.hidden(&tokens, Run::Windows { len: tokens.len() }, &mut NoCapture).unwrap();
    let rows = hidden.chunks_exact(checkpoint.config().hidden);
    let ours: f64 = rows.zip(next).map(|(row, next)| nll(&decoder.logits(row), next)).sum();
    let count = (tokens.len() - 1) as f64;
    let [ours, theirs] = [ours, theirs].map(|sum| (sum / count).exp());
    println!("perplexity {ours}, candle's {theirs}");
    assert!((ours / theirs - 1.0).abs() <= WITHIN, "perplexity {ours}, candle's {theirs}");
}

#[test]
fn block_formats_hold_what_candle_reads() {
    let formats = [
        (Dtype::Q4_0, GgmlDType::Q4_0),
        (Dtype::Q4_1, GgmlDType::Q4_1),
        (Dtype::Q5_0, GgmlDType::Q5_0),
        (Dtype::Q5_1, GgmlDType::Q5_1),
        (Dtype::Q8_0, GgmlDType::Q8_0),
        (Dtype::Q2K, GgmlDType::Q2K),
        (Dtype::Q3K, GgmlDType::Q3K),
        (Dtype::Q4K, GgmlDType::Q4K),
        (Dtype::Q5K, GgmlDType::Q5K),
        (Dtype::Q6K, GgmlDType::Q6K),
    ];
    let mut random = SplitMix64::new(3);
    for (dtype, theirs) in formats {
        let count = 64 * dtype.block_len();
        let numbers: Vec<f32> = (0..count).map(|_| (random.uniform() * 2.0 - 1.0) as f32).collect();
        let tensor = Tensor::from_vec(numbers, count, &Device::Cpu).unwrap();
        let quantised = QTensor::quantize(&tensor, theirs).unwrap();
        let expected: Vec<f32> = quantised.dequantize(&Device::Cpu).unwrap().to_vec1().unwrap();
        let mut found = vec![f32::NAN; count];
        dequantise(dtype, &quantised.data().unwrap(), &mut found);
        for (k, (a, b)) in found.iter().zip(&expected).enumerate() {
            assert!((a - b).abs() <= 1e-6 * b.abs().max(1e-3), "{dtype}, number {k}: {a}, {b}");
        }
    }
}

/// Counts what passes by, and sets one block's output to zero.
#[derive(Default)]
struct Spy {
    sites: Vec<(usize, Site, usize)>,
    blocks: Vec<(usize, usize)>,
}

impl Capture for Spy {
    fn linear_input(&mut self, layer: usize, site: Site, x: &[f32], width: usize) {
        assert_eq!(x.len() / width, 12);
        self.sites.push((layer, site, width));
    }

    fn block_output(&mut self, layer: usize, x: &mut [f32], width: usize) {
        self.blocks.push((layer, width));
        if layer == 1 {
            x.fill(0.0);
        }
    }
}

#[test]
fn every_capture_point_is_passed_and_outputs_can_be_replaced() {
    let config = tiny::config(true);
    let decoder = Decoder::load(&tiny::checkpoint(&config, &tiny::stored(&tiny::weights(&config)))).unwrap();
    let tokens: Vec<u32> = (0..12).collect();
    let mut spy = Spy::default();
    // Two windows at once.
    let hidden = decoder.hidden(&tokens, Run::Windows { len: 6 }, &mut spy).unwrap();
    let widths = [config.hidden, config.heads * config.head_dim, config.hidden, config.intermediate];
    let expected: Vec<_> = (0..3)
        .flat_map(|layer| Site::ALL.into_iter().zip(widths).map(move |(site, w)| (layer, site, w)))
        .collect();
    assert_eq!(spy.sites, expected);
    assert_eq!(spy.blocks, [(0, 48), (1, 48), (2, 48)]);
    // From a stream of zeros the last block makes zeros: silu(0)·0 and an average of zeros.
    assert!(hidden.iter().all(|v| *v == 0.0));
}

#[test]
fn windows_do_not_see_each_other() {
    let config = tiny::config(true);
    let decoder = Decoder::load(&tiny::checkpoint(&config, &tiny::stored(&tiny::weights(&config)))).unwrap();
    let tokens: Vec<u32> = (0..80).map(|k| k * 13 % 101).collect();
    let together = decoder.forward(&tokens, Run::Windows { len: 20 }, &mut NoCapture).unwrap();
    let alone: Vec<f32> = tokens
        .chunks(20)
        .flat_map(|window| decoder.forward(window, Run::Windows { len: 20 }, &mut NoCapture).unwrap())
        .collect();
    let worst = together.iter().zip(alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= TOLERANCE / 10.0, "{worst:e}");
}
