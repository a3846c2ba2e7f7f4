//! Packing small models of random weights, with everything that can be wrong or odd about them, and a real block.

mod common;
#[path = "common/model.rs"]
mod model;
#[path = "common/tiny.rs"]
mod tiny;

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use lapidary::compress::calibration::{CalibrationParams, Source};
use lapidary::compress::journal::Journal;
use lapidary::compress::observer::{Event, Observer, Silent};
use lapidary::compress::plan::Plan;
use lapidary::compress::recipe::{PathChoice, Recipe};
use lapidary::compress::{Encoder, PackError, PackParams, check, pack};
use lapidary::model::text::Text;
use lapidary::model::{Checkpoint, Config, Decoder, Family, Linear, LinearName};
use model::{Model, assert_runs, dense, quality};

#[test]
fn every_family_is_packed_and_runs() {
    for family in Family::ALL {
        let mut model = Model::new(|_| {});
        model.config = Config { vocab: 864, ..tiny::family(family) };
        model.weights = tiny::weights(&model.config);
        let packing = model.pack().unwrap();
        assert_eq!(dense(&packing), Vec::<String>::new(), "{family:?}");
        assert_runs(&model.output());
        let (source, output) = (model.checkpoint(), Checkpoint::open(model.output()).unwrap());
        assert_eq!(output.config(), source.config());
        let [source, output] = [source, output].map(|checkpoint| Decoder::load(&checkpoint).unwrap());
        for name in LinearName::ALL {
            assert!(matches!(output.linear(2, name), Linear::Packed { .. }), "{family:?}, {name:?}");
            let (old, new) = (source.block(2).bias(name), output.block(2).bias(name));
            assert_eq!(old.is_some(), new.is_some(), "{family:?}, {name:?}");
            // Kept in 16 bits.
            for (old, new) in old.into_iter().flatten().zip(new.into_iter().flatten()) {
                assert!((old - new).abs() <= old.abs() / 1000.0, "{family:?}, {name:?}: {old}, {new}");
            }
        }
    }
}

#[test]
fn widths_that_are_no_multiple_of_8_are_padded_in_the_payload_alone() {
    let model = Model::new(|config| (config.intermediate, config.hidden, config.head_dim) = (85, 50, 10));
    let packing = model.pack().unwrap();
    assert_eq!(dense(&packing), Vec::<String>::new());
    let down = packing.tensors.iter().find(|entry| entry.name == "model.layers.1.mlp.down_proj").unwrap();
    assert_eq!(down.shape, [50, 85]);
    let output = Decoder::load(&Checkpoint::open(model.output()).unwrap()).unwrap();
    let Linear::Packed { payload, in_features } = output.linear(1, LinearName::Down) else {
        panic!("it is dense")
    };
    assert_eq!((payload.cols(), *in_features), (88, 85));
    assert!(payload.paths().all(|path| path.g.iter().skip(85).all(|g| g.to_f32() == 0.0)));
    // The product with the stored factors has the error that is on record.
    let weight = &model.weights["model.layers.1.mlp.down_proj.weight"].1;
    let fitted = payload.dequantise();
    let (mut error, mut energy) = (0.0, 0.0);
    for (i, row) in weight.chunks_exact(85).enumerate() {
        for (j, w) in row.iter().enumerate() {
            error += (f64::from(*w) - fitted[i * 88 + j]).powi(2);
            energy += f64::from(*w).powi(2);
        }
    }
    let recorded = quality(&packing, "model.layers.1.mlp.down_proj").weight_rel;
    assert!(((error / energy).sqrt() / recorded - 1.0).abs() < 1e-9);
    assert_runs(&model.output());
}

#[test]
fn bad_weights_and_activations_are_named() {
    let mut model = Model::new(|_| ());
    model.tensor("model.layers.1.mlp.up_proj.weight")[48 * 3 + 5] = f32::INFINITY;
    let error = model.pack().unwrap_err().to_string();
    assert!(error.contains("model.layers.1.mlp.up_proj.weight"), "{error}");
    let mut model = Model::new(|_| ());
    model.tensor("model.embed_tokens.weight").fill(f32::NAN);
    let error = model.pack().unwrap_err().to_string();
    assert!(error.contains("model.embed_tokens.weight` holds NaN"), "{error}");
    let mut model = Model::new(|config| config.tied = false);
    model.tensor("lm_head.weight")[48 * 2 + 1] = 1e5;
    let error = model.pack().unwrap_err().to_string();
    assert!(error.contains("row 2, column 1") && error.contains("BF16"), "{error}");
    assert!(!Journal::folder_of(&model.output()).exists());
    // Finite weights, overflowing activations.
    let mut model = Model::new(|_| ());
    model.tensor("model.layers.1.self_attn.o_proj.weight").fill(3e38);
    let error = model.pack().unwrap_err().to_string();
    assert!(error.contains("mlp.gate_proj, mlp.up_proj in block 1"), "{error}");
    assert!(!model.output().exists());
}

#[test]
fn what_cannot_be_packed_stays_dense_with_its_reason() {
    let mut model = Model::new(|config| (config.heads, config.kv_heads, config.head_dim) = (6, 1, 4));
    model.tensor("model.layers.0.mlp.gate_proj.weight").fill(0.0);
    model.tensor("model.layers.1.input_layernorm.weight").fill(0.0);
    let packing = model.pack().unwrap();
    let small = "a side of 4x48 is below 8, the smallest rank";
    let zero = "the Gram is zero: the calibration text never reached this input";
    // A gate of zero makes the gated unit zero, and a zero input makes q, k, v and the heads' outputs so.
    assert_eq!(
        dense(&packing),
        [
            format!("model.layers.0.self_attn.k_proj: {small}"),
            format!("model.layers.0.self_attn.v_proj: {small}"),
            "model.layers.0.mlp.gate_proj: the weight is zero wherever its input is not".into(),
            format!("model.layers.0.mlp.down_proj: {zero}"),
            format!("model.layers.1.self_attn.q_proj: {zero}"),
            format!("model.layers.1.self_attn.k_proj: {zero}"),
            format!("model.layers.1.self_attn.v_proj: {zero}"),
            format!("model.layers.1.self_attn.o_proj: {zero}"),
        ]
    );
    assert_eq!((packing.totals.packed_tensors, packing.totals.dense_tensors), (6, 8));
    assert_runs(&model.output());
}

#[test]
fn weights_of_any_usual_size_are_packed_as_well() {
    let mut errors = Vec::new();
    for size in [1.0, 1e-5, 1e5] {
        let mut model = Model::new(|_| ());
        model.tensor("model.layers.1.self_attn.v_proj.weight").iter_mut().for_each(|w| *w *= size);
        let packing = model.pack().unwrap();
        errors.push(quality(&packing, "model.layers.1.self_attn.v_proj").heldout_rel.unwrap());
    }
    assert!(errors.iter().all(|error| (error / errors[0] - 1.0).abs() < 0.01), "{errors:?}");
}

#[test]
fn dead_inputs_are_packed_like_any_other() {
    let mut model = Model::new(|_| ());
    model.tensor("model.layers.0.post_attention_layernorm.weight")[7] = 0.0;
    let packing = model.pack().unwrap();
    assert_eq!(dense(&packing), Vec::<String>::new());
    assert!(quality(&packing, "model.layers.0.mlp.up_proj").heldout_rel.unwrap() < 0.9);
    assert_runs(&model.output());
}

#[test]
fn the_baseline_needs_no_text_and_one_path_can_be_asked_for() {
    let model = Model::new(|_| ());
    let packing = pack(&model.checkpoint(), model.params(Recipe::dual_svid()), &Silent).unwrap();
    let q = quality(&packing, "model.layers.0.self_attn.q_proj");
    assert_eq!((q.paths, q.heldout_rel, packing.calibration), (2, None, None));
    assert_runs(&model.output());
    let one = Model::new(|_| ());
    let recipe = Recipe { paths: PathChoice::One, ..Recipe::nvg() };
    let packing = pack(&one.checkpoint(), one.params(recipe), &Silent).unwrap();
    assert!(packing.tensors.iter().all(|entry| quality(&packing, &entry.name).paths == 1));
}

#[test]
fn budgets_and_their_factor_are_reported() {
    let model = Model::new(|_| ());
    let plan = "bits = 2.0\nkv_factor = 1.5\n[tensors.\"model.layers.0.mlp.up_proj\"]\nbits = 16.0\n";
    let params = PackParams { plan: Plan::from_toml(plan, None).unwrap(), ..model.params(Recipe::nvg()) };
    let packing = pack(&model.checkpoint(), params, &Silent).unwrap();
    let k = quality(&packing, "model.layers.0.self_attn.k_proj");
    assert_eq!((k.requested_bits, k.factor), (2.0, 1.5));
    let up = serde_json::to_value(quality(&packing, "model.layers.0.mlp.up_proj")).unwrap();
    assert_eq!((up["clipped"].as_str(), up["rank"].as_u64()), (Some("cap"), Some(48)));
    let spent = |entry: &lapidary::compress::packing::TensorEntry| {
        quality(&packing, &entry.name).delivered_bits * (entry.shape[0] * entry.shape[1]) as f64
    };
    let total: f64 = packing.tensors.iter().map(spent).sum();
    let totals = &packing.totals;
    assert!((totals.body_bits * totals.packed_weights as f64 / total - 1.0).abs() < 1e-12);
}

struct Warnings(Mutex<Vec<String>>);

impl Observer for Warnings {
    fn event(&self, event: Event<'_>) {
        if let Event::Warning(text) = event {
            self.0.lock().unwrap().push(text.to_owned());
        }
    }
}

#[test]
fn too_few_calibration_tokens_are_warned_about() {
    let model = Model::new(|_| ());
    let warnings = Warnings(Mutex::default());
    let mut params = model.params(Recipe::nvg());
    params.calibration.fit_tokens = Some(64);
    pack(&model.checkpoint(), params, &warnings).unwrap();
    let warnings = warnings.0.into_inner().unwrap();
    assert!(matches!(warnings.as_slice(), [one] if one.contains("give at least 88")), "{warnings:?}");
}

#[test]
fn what_no_calibration_can_tell_is_refused_before_anything_is_done() {
    let model = Model::new(|_| ());
    let mut without = model.params(Recipe::fast());
    without.texts.clear();
    let error = pack(&model.checkpoint(), without, &Silent).unwrap_err().to_string();
    assert!(error.contains("the recipe fast fits to calibration text"), "{error}");
    for (recipe, window, refused) in [(Recipe::fast(), 1, true), (Recipe::nvg2(), 1, false)] {
        let mut params = model.params(recipe);
        params.calibration.window = window;
        let checked = check(&model.checkpoint(), &params);
        let says = checked.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(says.contains("a window of 1 has none"), refused, "{says}");
    }
    let wide = Model::new(|config| (config.heads, config.kv_heads, config.head_dim) = (1, 1, 320));
    let error = check(&wide.checkpoint(), &wide.params(Recipe::fast())).unwrap_err().to_string();
    assert!(error.contains("the heads have 320 numbers"), "{error}");
    assert!(check(&wide.checkpoint(), &wide.params(Recipe::nvg2())).is_ok());
    // A run that is taken up may have found them before.
    let resumed = PackParams { resume: true, ..wide.params(Recipe::fast()) };
    assert!(check(&wide.checkpoint(), &resumed).is_ok());
    assert!(!model.output().exists() && !Journal::folder_of(&model.output()).exists());
}

#[test]
fn what_a_devices_decoder_lacks_is_calibrated_on_the_host() {
    for device in common::devices().into_iter().skip(1) {
        let mut model = Model::new(|_| ());
        let wide = Config { vocab: 864, layers: 1, heads: 1, kv_heads: 1, ..tiny::family(Family::Qwen3) };
        model.config = Config { head_dim: 264, ..wide };
        model.weights = tiny::weights(&model.config);
        let warnings = Warnings(Mutex::default());
        let mut params = model.params(Recipe::nvg());
        params.encoder = Encoder::Batch(device);
        pack(&model.checkpoint(), params, &warnings).unwrap();
        let warnings = warnings.0.into_inner().unwrap();
        let expected = "calibration runs on the host: the heads have 264 numbers";
        assert!(matches!(warnings.as_slice(), [one] if one.contains(expected)), "{warnings:?}");
        assert_runs(&model.output());
    }
}

#[test]
fn a_damaged_journal_is_refused_and_mended_by_deleting_the_file_it_names() {
    let model = Model::new(|_| ());
    let whole = model.pack().unwrap();
    let expected = fs::read(model.output().join("model.safetensors")).unwrap();
    fs::remove_dir_all(model.output()).unwrap();
    // A run that stops at the very end: its output folder is in the way.
    fs::write(model.output(), "in the way").unwrap();
    assert!(matches!(model.pack(), Err(PackError::OutputExists(_))));
    fs::remove_file(model.output()).unwrap();
    let stop = StopAtWriting(model.output());
    assert!(pack(&model.checkpoint(), model.params(Recipe::nvg()), &stop).is_err());
    fs::remove_dir_all(model.output()).unwrap();
    let damaged = Journal::folder_of(&model.output()).join("model.layers.0.mlp.up_proj.blr");
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[100] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let resume =
        || pack(&model.checkpoint(), PackParams { resume: true, ..model.params(Recipe::nvg()) }, &Silent);
    let message = resume().unwrap_err().to_string();
    assert!(message.contains("up_proj.blr is damaged") && message.contains("delete it"), "{message}");
    fs::remove_file(&damaged).unwrap();
    assert_eq!(resume().unwrap(), whole);
    assert_eq!(fs::read(model.output().join("model.safetensors")).unwrap(), expected);
}

/// Puts a folder that is not empty where the result should go, once everything is encoded.
struct StopAtWriting(PathBuf);

impl Observer for StopAtWriting {
    fn event(&self, event: Event<'_>) {
        if let Event::Writing = event {
            fs::create_dir(&self.0).unwrap();
            fs::write(self.0.join("in the way"), "").unwrap();
        }
    }
}

#[test]
fn the_first_block_of_smollm2() {
    let (Some(model), Some(text)) = (common::smollm2(), common::data("text/wikitext2-valid.txt")) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let plan = "bits = 1.0\n[layers.\"1-29\"]\nkeep_dense = true\n";
    let params = PackParams {
        output: folder.path().join("out"),
        plan: Plan::from_toml(plan, None).unwrap(),
        recipe: Recipe::nvg(),
        encoder: Encoder::Reference,
        texts: Source::text(Text::read(&[text]).unwrap()),
        calibration: CalibrationParams { window: 512, fit_tokens: Some(4096), heldout_tokens: Some(1024) },
        resume: false,
    };
    let packing = pack(&Checkpoint::open(model).unwrap(), params, &Silent).unwrap();
    assert_eq!(packing.totals.packed_tensors, 7);
    assert!(packing.totals.body_bits <= 1.0);
    let rank = |name: LinearName| {
        (quality(&packing, &name.prefix(0)).paths, quality(&packing, &name.prefix(0)).rank)
    };
    for name in LinearName::ALL {
        let possible: &[_] = match name {
            LinearName::K | LinearName::V => &[(1, 120), (2, 48)],
            LinearName::Q | LinearName::O => &[(1, 264), (2, 120)],
            _ => &[(1, 392), (2, 192)],
        };
        assert!(possible.contains(&rank(name)), "{name:?}: {:?}", rank(name));
        // Measured on 14,848 + 3,072 tokens; a third of them gives nearly the same.
        let measured = match name {
            LinearName::Q => 0.059,
            LinearName::K => 0.081,
            LinearName::V => 0.272,
            LinearName::O => 0.036,
            LinearName::Gate => 0.313,
            LinearName::Up => 0.466,
            LinearName::Down => 0.249,
        };
        let rel = quality(&packing, &name.prefix(0)).heldout_rel.unwrap();
        assert!((rel / measured - 1.0).abs() < 0.1, "{name:?}: held-out error {rel}");
    }
    assert_runs(&folder.path().join("out"));
}
