use serde::{Deserialize, Serialize};

use super::encode::Params;

/// How tensors are encoded: every knob that changes the result. Written whole into packing.json.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    pub name: RecipeName,
    pub paths: PathChoice,
    /// ρ of the damped Gram, relative to the mean of its diagonal. Origin: the published encoder.
    pub damping: f64,
    pub params: Params,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecipeName {
    /// The training-free encoder in the metric of the calibration Gram.
    Nvg,
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
        Self { name: RecipeName::Nvg, paths: PathChoice::Auto, damping: 0.03, params: Params::nvg() }
    }

    pub fn dual_svid() -> Self {
        Self { name: RecipeName::DualSvid, paths: PathChoice::Two, damping: 0.0, params: Params::dual_svid() }
    }

    pub fn of(name: RecipeName) -> Self {
        match name {
            RecipeName::Nvg => Self::nvg(),
            RecipeName::DualSvid => Self::dual_svid(),
        }
    }

    /// Whether the fit itself looks at calibration text.
    pub fn needs_text(&self) -> bool {
        self.name == RecipeName::Nvg
    }
}

impl std::fmt::Display for RecipeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nvg => "nvg",
            Self::DualSvid => "dual-svid",
        })
    }
}
