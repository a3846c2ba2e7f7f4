//! Both encoders from the same Grams, and a comparison that is carried on.

mod common;
#[path = "common/model.rs"]
mod model;
#[path = "common/tiny.rs"]
mod tiny;

use std::fs;

use lapidary::compress::PackError;
use lapidary::compress::calibration::CalibrationParams;
use lapidary::compress::compare::{CompareParams, Comparison, compare};
use lapidary::compress::journal::{Journal, JournalError};
use lapidary::compress::recipe::Recipe;
use lapidary::device::Device;
use lapidary::model::text::Text;
use lapidary::model::{Linear, LinearName};
use model::Model;

/// On the host, with kept results beside the model's output.
fn compared(
    model: &Model,
    device: Option<&Device>,
    blocks: usize,
    bits: f64,
) -> Result<Comparison, PackError> {
    let text = fs::read_to_string(common::tiny("calibration.txt")).unwrap();
    let params = CompareParams {
        text: Text::from_memory("calibration.txt", &text[..20_000]).unwrap(),
        calibration: CalibrationParams { window: 64, fit_tokens: Some(1024), heldout_tokens: Some(256) },
        recipe: Recipe::nvg(),
        bits,
        blocks,
        kept: Some(model.output()),
    };
    compare(&model.checkpoint(), device, params, &|_| ())
}

#[test]
fn a_comparison_is_carried_on_from_what_the_reference_did() {
    let model = Model::new(|_| {});
    let alone = compared(&model, None, 1, 2.0).unwrap();
    assert_eq!((alone.tensors.len(), alone.kept, alone.missing.len()), (0, 0, 0));
    let both = compared(&model, Some(&Device::Host), 2, 2.0).unwrap();
    assert_eq!((both.tensors.len(), both.kept, both.missing), (14, 7, Vec::<String>::new()));
    let again = compared(&model, Some(&Device::Host), 2, 2.0).unwrap();
    assert_eq!((again.tensors.len(), again.kept), (14, 14));
    for (one, other) in both.tensors.iter().zip(&again.tensors) {
        assert_eq!((&one.name, one.reference, one.device), (&other.name, other.reference, other.device));
        assert!((one.device / one.reference - 1.0).abs() < 0.05, "{one:?}");
    }
    for decoder in [&both.by_reference, &both.by_device] {
        assert!(LinearName::ALL.iter().all(|name| matches!(decoder.linear(1, *name), Linear::Packed { .. })));
    }
    let other = compared(&model, None, 1, 1.5).err().unwrap();
    assert!(matches!(other, PackError::Journal(JournalError::Foreign { .. })), "{other}");
    assert!(Journal::folder_of(&model.output()).is_dir());
}
