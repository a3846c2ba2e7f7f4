//! Outputs that count by the original's gradients.

use lapidary::compress::calibration::Source;
use lapidary::model::text::Text;

use super::*;

fn packed(share: f64) -> Decoder {
    let checkpoint = Checkpoint::open(common::tiny("")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("packed");
    let params = PackParams {
        recipe: Recipe { output_weights: share, ..Recipe::nvg() },
        encoder: Encoder::Batch(Device::Host),
        texts: Source::text(Text::read(&[common::tiny("calibration.txt")]).unwrap()),
        calibration: CalibrationParams { window: 48, fit_tokens: Some(4800), heldout_tokens: Some(480) },
        ..without_data(&output)
    };
    let packing = pack(&checkpoint, params, &Silent).unwrap();
    assert_eq!(packing.recipe.output_weights, share);
    Decoder::load(&Checkpoint::open(&output).unwrap()).unwrap()
}

#[test]
fn outputs_that_matter_more_are_closer() {
    let original = Decoder::load(&Checkpoint::open(common::tiny("")).unwrap()).unwrap();
    let text = tokens(POSITIONS * 100);
    let found = Tuner::new(&Device::Host).unwrap().sensitivities(&original, &text, POSITIONS).unwrap();
    // Σ f_i ‖row i of W − Ŵ‖² / Σ f_i ‖row i of W‖², in the mean over all layers.
    let distance = |decoder: &Decoder| {
        let mut sum = 0.0;
        for (layer, squares) in found.iter().enumerate() {
            for name in LinearName::ALL {
                let Linear::Dense(weight) = original.linear(layer, name) else { panic!("it is dense") };
                let Linear::Packed { payload, .. } = decoder.linear(layer, name) else { panic!("{name:?}") };
                let (w, stored, cols) = (weight.to_f32(), payload.dequantise(), payload.cols());
                let (mut error, mut energy) = (0.0, 0.0);
                for (i, f) in squares[name as usize].iter().enumerate() {
                    for (j, w) in w[i * weight.cols()..][..weight.cols()].iter().enumerate() {
                        error += f * (f64::from(*w) - stored[i * cols + j]).powi(2);
                        energy += f * f64::from(*w).powi(2);
                    }
                }
                sum += error / energy / (7 * found.len()) as f64;
            }
        }
        sum
    };
    let [alike, weighted] = [0.0, 1.0].map(|share| distance(&packed(share)));
    println!("{alike} and {weighted}");
    assert!(weighted < 0.97 * alike, "{weighted}, where all count alike {alike}");
}
