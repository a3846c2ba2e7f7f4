//! Packing on every device that is there: what it cannot encode, and what it has no room for.

mod common;
#[path = "common/model.rs"]
mod model;
#[path = "common/tiny.rs"]
mod tiny;

use std::fs;

use lapidary::compress::encoder::EncodedBy;
use lapidary::compress::fit::{FitError, check_fits};
use lapidary::compress::journal::Journal;
use lapidary::compress::observer::Silent;
use lapidary::compress::packing::Packing;
use lapidary::compress::plan::{Entry, Plan};
use lapidary::compress::recipe::Recipe;
use lapidary::compress::{Encoder, PackError, PackParams, pack};
use lapidary::device::Device;
use lapidary::device::arena::Arena;
use lapidary::model::{Config, Family};
use model::{Model, assert_runs, dense, quality};

#[test]
fn what_a_device_cannot_encode_is_retried_on_the_host_and_the_record_says_so() {
    let mut model = Model::new(|_| ());
    let deficient = "model.layers.1.self_attn.q_proj";
    // Rows 8 and above repeat the first 8: the rotation of a rank above 8 is singular.
    let weight = model.tensor(&format!("{deficient}.weight"));
    (8 * 48..weight.len()).for_each(|at| weight[at] = weight[at - 8 * 48]);
    model.tensor("model.layers.0.mlp.gate_proj.weight").fill(0.0);
    for device in common::devices() {
        let params = PackParams { encoder: Encoder::Batch(device.clone()), ..model.params(Recipe::nvg()) };
        let packing = pack(&model.checkpoint(), params, &Silent).unwrap();
        let reason = "the gauge rotation is singular in f32";
        assert_eq!(packing.retried().collect::<Vec<_>>(), [(deficient, reason)], "{}", device.name());
        let [retried, other] =
            [deficient, "model.layers.1.self_attn.k_proj"].map(|name| quality(&packing, name));
        assert_eq!((retried.encoded_by, other.encoded_by), (EncodedBy::F64Host, EncodedBy::of(&device)));
        let zero = "the weight is zero wherever its input is not";
        assert!(dense(&packing).contains(&format!("model.layers.0.mlp.gate_proj: {zero}")));
        assert_eq!(Packing::read(&model.output()).unwrap(), packing);
        assert_runs(&model.output());
        fs::remove_dir_all(model.output()).unwrap();
    }
}

/// How far the mean error of a small model may be from the reference's: its first block starts from Grams that differ by
/// [`GRAM_TOLERANCE`](lapidary::compress::device_calibration::GRAM_TOLERANCE), and a sign that turns for that changes what
/// all later layers are fitted to.
const MEAN_ERROR: f64 = 0.02;

#[test]
fn two_streams_reach_the_references_errors_on_every_device() {
    two_streams(Family::Llama, Recipe::nvg2());
    two_streams(Family::Gemma3, Recipe::nvg2());
}

/// Also where the device has no kernels for the gradients.
#[test]
fn outputs_count_the_same_on_every_device() {
    two_streams(Family::Gemma3, Recipe { output_weights: 1.0, ..Recipe::nvg2() });
}

fn two_streams(family: Family, recipe: Recipe) {
    let model = Model::new(|config| {
        let mut plain = Config { vocab: config.vocab, layers: 2, ..tiny::family(family) };
        plain.sliding.iter_mut().for_each(|sliding| sliding.layers.truncate(2));
        // Layers of these sizes have errors that a few signs do not change much.
        *config = Config { hidden: 96, intermediate: 160, head_dim: 24, ..plain };
    });
    let pack_with = |encoder: Encoder, recipe: Recipe| {
        let params = PackParams { encoder, ..model.params(recipe) };
        let packing = pack(&model.checkpoint(), params, &Silent).unwrap();
        assert_runs(&model.output());
        fs::remove_dir_all(model.output()).unwrap();
        packing
    };
    let expected = pack_with(Encoder::Reference, recipe.clone());
    let alone = pack_with(Encoder::Reference, Recipe { blend: 0.0, ..recipe.clone() });
    let [error, other] = [&expected, &alone].map(|packing| packing.totals.mean_heldout_rel.unwrap());
    assert_ne!(error, other, "the second stream decides something");
    for device in common::devices() {
        let found = pack_with(Encoder::Batch(device.clone()), recipe.clone());
        assert_eq!(found.retried().count(), 0, "{}", device.name());
        let found = found.totals.mean_heldout_rel.unwrap();
        println!("{family:?} on {}: {found:.4}, the reference {error:.4}", device.name());
        assert!((found / error - 1.0).abs() < MEAN_ERROR, "{}: {found} against {error}", device.name());
    }
}

#[test]
fn a_device_without_room_refuses_before_anything_is_written() {
    for device in common::devices() {
        // The Gram of so wide an input fills the largest arena of this device alone.
        let widest = (Arena::largest(&device).unwrap() as f64).sqrt() as usize;
        let model = Model::new(|config| (config.layers, config.intermediate) = (1, widest));
        let params = PackParams { encoder: Encoder::Batch(device.clone()), ..model.params(Recipe::nvg()) };
        let error = pack(&model.checkpoint(), params, &Silent).unwrap_err();
        assert!(matches!(error, PackError::Fit(FitError::NoRoom { .. })), "{error}");
        let text = error.to_string();
        let tensor = format!("model.layers.0.mlp.down_proj (48x{widest}, ");
        assert!(text.starts_with(&tensor) && text.contains(" MiB on "), "{text}");
        assert!(!model.output().exists() && !Journal::folder_of(&model.output()).exists());
    }
}

#[test]
fn a_binding_of_128_mib_holds_smollm2_and_refuses_a_7b_model() {
    let smollm2 = Config {
        hidden: 576,
        intermediate: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        layers: 30,
        ..tiny::config(true)
    };
    let seven_b = Config {
        hidden: 4096,
        intermediate: 11008,
        heads: 32,
        kv_heads: 32,
        head_dim: 128,
        layers: 32,
        ..tiny::config(true)
    };
    let mut only_down = Plan::uniform(1.0);
    only_down.layers.insert("0-31".into(), Entry { keep_dense: Some(true), bits: None });
    let down = Entry { keep_dense: None, bits: Some(1.0) };
    only_down.tensors.insert("model.layers.0.mlp.down_proj".into(), down);
    let fits = |device: &Device, config: &Config, plan: &Plan| {
        check_fits(device, &Recipe::nvg(), config, &plan.resolve(config.layers).unwrap())
    };
    for device in common::devices() {
        fits(&device, &smollm2, &Plan::uniform(1.0)).unwrap_or_else(|error| panic!("{error}"));
        let bytes = 4 * Arena::largest(&device).unwrap();
        println!("{}: {} MiB", device.name(), bytes >> 20);
        if bytes <= 128 << 20 {
            let text = fits(&device, &seven_b, &only_down).unwrap_err().to_string();
            let expected = "model.layers.0.mlp.down_proj (4096x11008, 1 x rank 2960) alone needs ";
            assert!(text.starts_with(expected) && text.contains("has 128 MiB for it"), "{text}");
        }
    }
}
