//! A packed model runs as the same model with its payloads written out, and bad models are refused with the reason.

#[path = "common/tiny.rs"]
mod tiny;

use std::collections::BTreeMap;

use lapidary::model::{Cache, Decoder, DecoderError, Linear, LinearName, NoCapture, Run, SplitMix64};
use tiny::{Stored, Weights};

/// Largest difference of a logit of order one: f32 sums over r latents in two stages instead of over n inputs in one.
const TOLERANCE: f32 = 1e-4;

/// The tiny model with every linear layer packed, and the same with the payloads written out as f32.
fn packed_and_dense() -> (BTreeMap<String, Stored>, Weights) {
    // An intermediate width that is no multiple of 8 pads the payload of `down`.
    let config = lapidary::model::Config { intermediate: 85, ..tiny::config(true) };
    let mut weights = tiny::weights(&config);
    let mut packed = tiny::stored(&weights);
    let mut random = SplitMix64::new(9);
    for layer in 0..config.layers {
        for (k, name) in LinearName::ALL.into_iter().enumerate() {
            let [rows, in_features] = name.shape(&config);
            let payload = tiny::payload([rows, in_features], 1 + k % 2, &mut random);
            let weight = format!("{}.weight", name.prefix(layer));
            let dense = payload.dequantise();
            let kept = dense.chunks_exact(payload.cols()).flat_map(|row| &row[..in_features]);
            weights.get_mut(&weight).unwrap().1 = kept.map(|w| *w as f32).collect();
            let bytes = payload.bytes().as_slice().to_vec();
            packed.remove(&weight);
            let stored = Stored { dtype: safetensors::Dtype::U8, shape: vec![bytes.len()], bytes };
            packed.insert(format!("{}.blr", name.prefix(layer)), stored);
        }
    }
    (packed, weights)
}

fn config() -> lapidary::model::Config {
    lapidary::model::Config { intermediate: 85, ..tiny::config(true) }
}

#[test]
fn a_packed_model_equals_its_payloads_written_out() {
    let (packed, weights) = packed_and_dense();
    let packed = Decoder::load(&tiny::checkpoint(&config(), &packed)).unwrap();
    let dense = Decoder::load(&tiny::checkpoint(&config(), &tiny::stored(&weights))).unwrap();
    assert!(matches!(packed.linear(2, LinearName::Down), Linear::Packed { in_features: 85, .. }));
    let tokens: Vec<u32> = (0..40).map(|k| k * 31 % 101).collect();
    let expected = dense.forward(&tokens, Run::Windows { len: 40 }, &mut NoCapture).unwrap();
    let whole = packed.forward(&tokens, Run::Windows { len: 40 }, &mut NoCapture).unwrap();
    let mut cache = Cache::new(packed.config(), 40);
    let cached: Vec<f32> =
        tokens.iter().flat_map(|token| packed.next_logits(&[*token], &mut cache).unwrap()).collect();
    for ours in [whole, cached] {
        let worst = ours.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= TOLERANCE, "largest difference {worst:e}");
    }
}

#[test]
fn layers_can_be_replaced_one_by_one() {
    let (packed, weights) = packed_and_dense();
    let packed = Decoder::load(&tiny::checkpoint(&config(), &packed)).unwrap();
    let mut decoder = Decoder::load(&tiny::checkpoint(&config(), &tiny::stored(&weights))).unwrap();
    for layer in 0..config().layers {
        for name in LinearName::ALL {
            decoder.set_linear(layer, name, packed.linear(layer, name).clone()).unwrap();
        }
    }
    let tokens: Vec<u32> = (0..9).collect();
    let run = |decoder: &Decoder| decoder.forward(&tokens, Run::Windows { len: 9 }, &mut NoCapture).unwrap();
    assert_eq!(run(&decoder), run(&packed));
    let wrong = decoder.linear(0, LinearName::Q).clone();
    let error = decoder.set_linear(0, LinearName::Down, wrong).unwrap_err();
    assert!(error.to_string().contains("model.layers.0.mlp.down_proj"), "{error}");
}

#[test]
fn bad_input_is_named() {
    let decoder = Decoder::load(&tiny::checkpoint(&config(), &packed_and_dense().0)).unwrap();
    let window =
        |tokens: &[u32], len| decoder.forward(tokens, Run::Windows { len }, &mut NoCapture).unwrap_err();
    assert!(matches!(window(&[5, 101], 2), DecoderError::Token { id: 101, position: 1, vocab: 101 }));
    assert!(matches!(window(&[5; 3], 2), DecoderError::Windows { tokens: 3, len: 2 }));
    assert!(matches!(window(&[5; 3], 0), DecoderError::Windows { tokens: 3, len: 0 }));
    assert!(matches!(window(&[5; 257], 257), DecoderError::TooLong { needed: 257, most: 256 }));
}

#[test]
fn damaged_weights_are_named() {
    let (packed, weights) = packed_and_dense();
    let load = |tensors: &BTreeMap<String, Stored>| Decoder::load(&tiny::checkpoint(&config(), tensors));

    let mut tensors = packed;
    tensors.get_mut("model.layers.1.mlp.up_proj.blr").unwrap().bytes[0] = 0;
    let error = load(&tensors).unwrap_err().to_string();
    assert!(error.contains("model.layers.1.mlp.up_proj.blr") && error.contains("not 4c 01"), "{error}");

    let mut infinite = weights.clone();
    infinite.get_mut("model.layers.2.self_attn.v_proj.weight").unwrap().1[7] = f32::INFINITY;
    let decoder = load(&tiny::stored(&infinite)).unwrap();
    let error = decoder.forward(&[1, 2], Run::Windows { len: 2 }, &mut NoCapture).unwrap_err();
    assert!(matches!(error, DecoderError::Activation { layer: 2, row: 0, .. }), "{error}");

    let mut nan = weights;
    nan.get_mut("model.norm.weight").unwrap().1[3] = f32::NAN;
    let error = load(&tiny::stored(&nan)).unwrap_err();
    assert!(matches!(error, DecoderError::Weight { index: 3, .. }), "{error}");
}
