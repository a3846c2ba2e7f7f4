//! Small models of random weights on disk, to be packed with whatever is wrong or odd about them.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};

use lapidary::compress::calibration::{CalibrationParams, Source};
use lapidary::compress::journal::Record;
use lapidary::compress::observer::Silent;
use lapidary::compress::packing::Packing;
use lapidary::compress::plan::Plan;
use lapidary::compress::recipe::Recipe;
use lapidary::compress::tensor::Quality;
use lapidary::compress::verify::verify;
use lapidary::compress::{Encoder, PackError, PackParams, pack};
use lapidary::model::text::Text;
use lapidary::model::{Checkpoint, Config, Decoder, NoCapture, Run};
use lapidary::ops::Dtype;

use crate::tiny::Weights;
use crate::{common, tiny};

pub struct Model {
    pub folder: tempfile::TempDir,
    pub config: Config,
    pub weights: Weights,
}

impl Model {
    /// Random weights behind the embedded model's tokenizer.
    pub fn new(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config { vocab: 864, layers: 2, ..tiny::config(true) };
        change(&mut config);
        Self { folder: tempfile::tempdir().unwrap(), weights: tiny::weights(&config), config }
    }

    pub fn tensor(&mut self, name: &str) -> &mut Vec<f32> {
        &mut self.weights.get_mut(name).unwrap().1
    }

    pub fn output(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    pub fn checkpoint(&self) -> Checkpoint {
        let source = self.folder.path().join("source");
        fs::create_dir_all(&source).unwrap();
        let tensors = tiny::stored(&self.weights);
        let view = |t: &tiny::Stored| {
            safetensors::tensor::TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap().data().to_vec()
        };
        let owned: Vec<_> =
            tensors.iter().map(|(name, t)| (name, t.dtype, t.shape.clone(), view(t))).collect();
        let views = owned.iter().map(|(name, dtype, shape, bytes)| {
            (*name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        fs::write(source.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        fs::write(source.join("config.json"), self.config.to_hf_json(Dtype::F32).to_string()).unwrap();
        fs::copy(common::tiny("tokenizer.json"), source.join("tokenizer.json")).unwrap();
        Checkpoint::open(&source).unwrap()
    }

    pub fn params(&self, recipe: Recipe) -> PackParams {
        let calibration = fs::read_to_string(common::tiny("calibration.txt")).unwrap();
        PackParams {
            output: self.output(),
            plan: Plan::uniform(2.0),
            texts: match recipe.calibrates() {
                true => Source::text(Text::from_memory("calibration.txt", &calibration[..20_000]).unwrap()),
                false => Vec::new(),
            },
            recipe,
            encoder: Encoder::Reference,
            calibration: CalibrationParams { window: 64, fit_tokens: Some(1024), heldout_tokens: Some(256) },
            resume: false,
        }
    }

    pub fn pack(&self) -> Result<Packing, PackError> {
        pack(&self.checkpoint(), self.params(Recipe::nvg()), &Silent)
    }
}

pub fn quality<'a>(packing: &'a Packing, name: &str) -> &'a Quality {
    match &packing.tensors.iter().find(|entry| entry.name == name).unwrap().record {
        Record::Packed { quality, .. } => quality,
        Record::Dense { reason } => panic!("{name} stayed dense: {reason}"),
    }
}

pub fn dense(packing: &Packing) -> Vec<String> {
    packing.dense().map(|(name, reason)| format!("{name}: {reason}")).collect()
}

#[track_caller]
pub fn assert_runs(output: &Path) {
    assert_eq!(verify(output).unwrap().faults, Vec::<String>::new());
    let decoder = Decoder::load(&Checkpoint::open(output).unwrap()).unwrap();
    let logits = decoder.forward(&[1, 2, 3, 4], Run::Windows { len: 4 }, &mut NoCapture).unwrap();
    assert!(logits.iter().all(|z| z.is_finite()));
}
