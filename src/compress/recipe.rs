use serde::{Deserialize, Serialize};

use super::encode::Params;
use super::tuning::Tuning;
use crate::model::Site;

/// How tensors are encoded: every knob that changes the result. Written whole into packing.json.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub name: RecipeName,
    pub paths: PathChoice,
    /// ρ of the damped Gram, relative to the mean of its diagonal. Origin: the published encoder.
    pub damping: f64,
    /// α of the two-stream target `(1−α)·W + α·W*`, see [`target`](super::target); 0 fits to the weight itself.
    #[serde(default)]
    pub blend: f64,
    /// What the layers of a block are calibrated through.
    #[serde(default)]
    pub order: BlockOrder,
    /// How far outputs count by what the original's gradients say of them, see
    /// [`output_weights`](super::output_weights): 0 takes all alike, 1 is the diagonal of its Fisher information.
    #[serde(default)]
    pub output_weights: f64,
    pub params: Params,
    /// The weights of each block brought closer to what the original gives before they are packed, in the place of a
    /// two-stream target.
    #[serde(default)]
    pub mitigate: Tuning,
    /// Each block brought closer to the original's by gradients once it is packed ([`tune`](super::tune)).
    #[serde(default)]
    pub reconstruct: Tuning,
    /// The original's distributions distilled into the whole model, at the end.
    #[serde(default)]
    pub distill: Tuning,
    /// Tokens that are distilled on beside those that calibrate the layers, for each of those that are fitted to.
    #[serde(default)]
    pub more: f64,
}

/// In which order the inputs of a block are calibrated and its layers encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockOrder {
    /// All inputs through the dense block, all layers at once.
    #[default]
    Whole,
    /// q, k, v, then o, then gate and up, then down: each input through what is packed before it.
    InBlock,
}

impl BlockOrder {
    /// The sites of each stage.
    pub fn stages(self) -> Vec<Vec<Site>> {
        match self {
            Self::Whole => vec![Site::ALL.to_vec()],
            Self::InBlock => Site::ALL.map(|site| vec![site]).to_vec(),
        }
    }
}

/// Calibration tokens to fit on and to judge by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    pub fit: usize,
    pub heldout: usize,
}

impl Tokens {
    /// Origin: the published encoder's own measurement.
    pub const PUBLISHED: Self = Self { fit: 14_848, heldout: 3_072 };

    pub fn total(self) -> usize {
        self.fit + self.heldout
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecipeName {
    /// The training-free encoder in the metric of the calibration Gram.
    Nvg,
    /// The same, fitted to where the original model's stream would go, each layer calibrated through those packed before it.
    Nvg2,
    /// `nvg2` from more text: the best without gradients.
    Fast,
    /// `fast`, then everything that gradients do for it.
    Best,
    /// The data-free baseline: latents, signs and magnitudes of the weight alone, two paths.
    DualSvid,
}

/// How many paths a tensor gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathChoice {
    One,
    Two,
    /// Both are encoded for the same bits; the lower error on the held-out Gram wins.
    Auto,
}

impl Recipe {
    pub fn nvg() -> Self {
        Self {
            name: RecipeName::Nvg,
            paths: PathChoice::Auto,
            damping: 0.03,
            blend: 0.0,
            order: BlockOrder::Whole,
            output_weights: 0.0,
            params: Params::nvg(),
            mitigate: Tuning { passes: 0, ..Tuning::mitigation() },
            reconstruct: Tuning { passes: 0, ..Tuning::reconstruction() },
            distill: Tuning { passes: 0, ..Tuning::distillation() },
            more: 0.0,
        }
    }

    pub fn nvg2() -> Self {
        Self { name: RecipeName::Nvg2, blend: 0.5, order: BlockOrder::InBlock, ..Self::nvg() }
    }

    pub fn fast() -> Self {
        Self { name: RecipeName::Fast, output_weights: 0.5, ..Self::nvg2() }
    }

    pub fn best() -> Self {
        Self {
            name: RecipeName::Best,
            reconstruct: Tuning::reconstruction(),
            distill: Tuning::distillation(),
            more: 10.0 / 3.0,
            ..Self::fast()
        }
    }

    pub fn dual_svid() -> Self {
        Self {
            name: RecipeName::DualSvid,
            paths: PathChoice::Two,
            damping: 0.0,
            params: Params::dual_svid(),
            ..Self::nvg()
        }
    }

    pub fn of(name: RecipeName) -> Self {
        match name {
            RecipeName::Nvg => Self::nvg(),
            RecipeName::Nvg2 => Self::nvg2(),
            RecipeName::Fast => Self::fast(),
            RecipeName::Best => Self::best(),
            RecipeName::DualSvid => Self::dual_svid(),
        }
    }

    /// Whether the fit itself looks at calibration text.
    pub fn needs_text(&self) -> bool {
        self.name != RecipeName::DualSvid
    }

    /// Whether the original model runs beside the packed one.
    pub fn two_streams(&self) -> bool {
        self.blend != 0.0 || self.tunes()
    }

    /// Whether gradients tune anything.
    pub fn tunes(&self) -> bool {
        [self.mitigate, self.reconstruct, self.distill].iter().any(|tuning| tuning.passes > 0)
    }

    /// Whether gradients come in.
    pub fn needs_gradients(&self) -> bool {
        self.tunes() || self.output_weights > 0.0
    }

    /// Whether anything of it looks at calibration text.
    pub fn calibrates(&self) -> bool {
        self.needs_text() || self.two_streams() || self.needs_gradients()
    }

    /// The calibration tokens where none are asked for.
    pub fn tokens(&self) -> Tokens {
        match self.name {
            RecipeName::Nvg | RecipeName::DualSvid => Tokens::PUBLISHED,
            // Cross-moments need more of them; a quarter is held out.
            RecipeName::Nvg2 => Tokens { fit: 49_152, heldout: 16_384 },
            // Signs that move need many more.
            RecipeName::Fast | RecipeName::Best => Tokens { fit: 196_608, heldout: 49_152 },
        }
    }

    /// The share of what the model writes itself that goes on from a given text.
    pub fn continued(&self) -> f64 {
        match self.name {
            RecipeName::Fast | RecipeName::Best => 0.5,
            _ => 0.0,
        }
    }

    /// The recipe with one knob set, as in packing.json: `damping`, `blend`, `order`, `paths`, `params.gauge_steps`,
    /// `params.refine.sweeps`, ...
    pub fn set(&self, key: &str, value: &str) -> Result<Self, RecipeError> {
        let error = |problem: String| RecipeError { key: key.into(), value: value.into(), problem };
        let mut whole = serde_json::to_value(self).map_err(|e| error(e.to_string()))?;
        let pointer = format!("/{}", key.replace('.', "/"));
        let knob = whole.pointer_mut(&pointer).filter(|knob| key != "name" && !knob.is_object());
        let Some(knob) = knob else {
            let known = knobs("", &serde_json::to_value(self).map_err(|e| error(e.to_string()))?);
            return Err(error(format!("there is no such knob; there are `{}`", known.join("`, `"))));
        };
        *knob = match knob.is_string() {
            true => value.into(),
            false => serde_json::from_str(value).map_err(|_| error("give a number".into()))?,
        };
        let recipe: Self = serde_json::from_value(whole).map_err(|e| error(e.to_string()))?;
        let phases = [recipe.mitigate, recipe.reconstruct, recipe.distill];
        let rates = phases.into_iter().flat_map(|Tuning { scales, signs, dense, .. }| [scales, signs, dense]);
        let ranges =
            [(recipe.damping, 1e3), (recipe.blend, 1.0), (recipe.output_weights, 1.0), (recipe.more, 1e3)]
                .into_iter()
                .chain(rates.map(|rate| (rate, 1.0)));
        match ranges.into_iter().find(|(v, most)| !(0.0..=*most).contains(v)) {
            Some((_, most)) => Err(error(format!("give a number from 0 to {most}"))),
            None => Ok(recipe),
        }
    }

    /// Whether what the recipe trains can be trained, asked before anything is done.
    pub fn check(&self) -> Result<(), RecipeError> {
        let phases =
            [("mitigate", self.mitigate), ("reconstruct", self.reconstruct), ("distill", self.distill)];
        for (key, tuning) in phases {
            let error = |knob: &str, value: f64, problem: &str| RecipeError {
                key: format!("{key}.{knob}"),
                value: value.to_string(),
                problem: problem.into(),
            };
            if tuning.passes > 0 && tuning.batch == 0 {
                return Err(error("batch", 0.0, "a step needs positions; or set passes to 0"));
            }
            let (knob, rate, of) = match key {
                "mitigate" => ("dense", tuning.dense, "dense weights"),
                _ => ("scales", tuning.scales.max(tuning.signs), "scales or signs"),
            };
            if tuning.passes > 0 && rate <= 0.0 {
                let problem = format!("nothing would be trained: give a rate for {of}, or set passes to 0");
                return Err(error(knob, rate, &problem));
            }
        }
        for (key, Tuning { dense, .. }) in [("reconstruct", self.reconstruct), ("distill", self.distill)] {
            if dense > 0.0 {
                let problem = "what stays dense is kept as it is; weights are trained before they are packed (mitigate.dense)";
                let key = format!("{key}.dense");
                return Err(RecipeError { key, value: dense.to_string(), problem: problem.into() });
            }
        }
        if self.mitigate.passes > 0 && self.blend > 0.0 {
            let problem = "weights that make up for earlier blocks are packed as they are: set blend to 0, or mitigate.passes";
            return Err(RecipeError {
                key: "blend".into(),
                value: self.blend.to_string(),
                problem: problem.into(),
            });
        }
        Ok(())
    }
}

/// A knob that cannot be set so.
#[derive(Debug, thiserror::Error)]
#[error("{key}={value}: {problem}")]
pub struct RecipeError {
    pub key: String,
    pub value: String,
    pub problem: String,
}

/// All knobs below a value, by their paths.
fn knobs(path: &str, value: &serde_json::Value) -> Vec<String> {
    let Some(fields) = value.as_object() else { return vec![path.to_owned()] };
    let fields = fields.iter().filter(|(name, _)| *name != "name");
    fields
        .flat_map(|(name, value)| knobs(&[path, name].join(if path.is_empty() { "" } else { "." }), value))
        .collect()
}

impl std::fmt::Display for RecipeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nvg => "nvg",
            Self::Nvg2 => "nvg2",
            Self::Fast => "fast",
            Self::Best => "best",
            Self::DualSvid => "dual-svid",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_can_be_set_and_is_checked() {
        let recipe = Recipe::nvg2();
        let set = |key: &str, value: &str| recipe.set(key, value);
        assert_eq!(set("blend", "0.25").unwrap().blend, 0.25);
        assert_eq!(set("order", "whole").unwrap().order, BlockOrder::Whole);
        assert_eq!(set("paths", "two").unwrap().paths, PathChoice::Two);
        assert_eq!(set("params.gauge_steps", "20").unwrap().params.gauge_steps, 20);
        assert_eq!(set("params.refine.sweeps", "1").unwrap().params.refine.sweeps, 1);
        for (key, value, says) in [
            ("blend", "1.5", "from 0 to 1"),
            ("blend", "much", "give a number"),
            ("damping", "-1", "from 0 to 1000"),
            ("paths", "three", "unknown variant"),
            ("name", "nvg", "no such knob"),
            ("params", "{}", "no such knob"),
            ("params.gauge", "1", "`params.gauge_steps`, "),
            ("params.gauge_steps", "-3", "expected usize"),
            ("reconstruct.scales", "-1", "from 0 to 1"),
        ] {
            let error = set(key, value).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn what_would_train_nothing_is_refused() {
        assert!(Recipe::best().check().is_ok());
        assert!(Recipe::nvg2().set("reconstruct.passes", "4").unwrap().check().is_ok());
        let scales_alone = Recipe::best().set("distill.signs", "0").unwrap();
        assert!(scales_alone.check().is_ok());
        let both = Recipe::nvg2().set("mitigate.passes", "2").unwrap();
        assert!(both.check().unwrap_err().to_string().contains("blend=0.5: weights that make up"));
        let mitigated = both.set("blend", "0").unwrap();
        assert!(mitigated.check().is_ok());
        let frozen = mitigated.set("mitigate.dense", "0").unwrap().set("mitigate.scales", "0.01").unwrap();
        assert!(frozen.check().unwrap_err().to_string().contains("mitigate.dense=0: nothing would be"));
        for (key, says) in
            [("distill.scales", "distill.scales=0: nothing would be"), ("distill.batch", "a step needs")]
        {
            let error = scales_alone.set(key, "0").unwrap().check().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
