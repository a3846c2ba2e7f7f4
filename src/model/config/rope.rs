use serde::Deserialize;
use serde_json::{Value, json};

use super::ConfigError;
use crate::ops::rope::{Frequencies, Scaling};

/// `rope_scaling` or `rope_parameters` in config.json. Newer files keep θ and the scaling together in the latter, one
/// object for each kind of layer where there are two.
#[derive(Deserialize)]
pub(super) struct RopeSettings {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
    /// The older name of `rope_type`; some files have both.
    #[serde(rename = "type")]
    older_type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
    full_attention: Option<Box<RopeSettings>>,
    sliding_attention: Option<Box<RopeSettings>>,
}

/// Every place in config.json where rotary embeddings are described.
pub(super) struct RopeSources<'a> {
    pub rope_theta: Option<f64>,
    pub rope_local_base_freq: Option<f64>,
    pub rope_scaling: Option<&'a RopeSettings>,
    pub rope_parameters: Option<&'a RopeSettings>,
}

impl RopeSources<'_> {
    /// The frequencies of layers that see everything.
    pub fn global(&self, default_theta: f64) -> Result<Frequencies, ConfigError> {
        if self.rope_scaling.is_some_and(|rope| rope.stated_kind().is_none()) {
            let rule = "a kind of scaling belongs to it, or null";
            return Err(ConfigError::invalid("rope_scaling", "an object without a kind", rule));
        }
        let own = self.rope_parameters.map(|rope| rope.full_attention.as_deref().unwrap_or(rope));
        let stated = own.and_then(|rope| rope.rope_theta).or(self.rope_theta);
        let theta = stated.unwrap_or(default_theta);
        let both = [("rope_parameters", own), ("rope_scaling", self.rope_scaling)];
        let scalings = both.into_iter().filter_map(|(key, rope)| Some(rope?.scaling(key)));
        let scalings = scalings.collect::<Result<Vec<_>, _>>()?;
        let scaling = scalings.into_iter().find(|scaling| *scaling != Scaling::Unscaled);
        Ok(Frequencies { theta, scaling: scaling.unwrap_or(Scaling::Unscaled) })
    }

    /// Those of sliding layers in a family where they differ.
    pub fn local(&self, default_theta: f64) -> Result<Frequencies, ConfigError> {
        let own = self.rope_parameters.and_then(|rope| rope.sliding_attention.as_deref());
        if let Some(own) = own
            && own.scaling("rope_parameters.sliding_attention")? != Scaling::Unscaled
        {
            let (key, kind) = ("rope_parameters.sliding_attention", own.kind());
            return Err(ConfigError::invalid(key, kind, "sliding layers have an unscaled rotary embedding"));
        }
        let stated = own.and_then(|rope| rope.rope_theta).or(self.rope_local_base_freq);
        Ok(Frequencies::unscaled(stated.unwrap_or(default_theta)))
    }
}

impl RopeSettings {
    fn stated_kind(&self) -> Option<&str> {
        self.rope_type.as_deref().or(self.older_type.as_deref())
    }

    fn kind(&self) -> &str {
        self.stated_kind().unwrap_or("default")
    }

    fn scaling(&self, key: &str) -> Result<Scaling, ConfigError> {
        if let Some(part) = self.partial_rotary_factor.filter(|part| *part != 1.0) {
            let rule = "the rotary embedding must cover the whole head (1)";
            return Err(ConfigError::invalid(&format!("{key}.partial_rotary_factor"), part, rule));
        }
        let needed = |name: &str, value: Option<f64>| {
            let key = format!("{key}.{name}");
            match value {
                None => Err(ConfigError::Missing { key }),
                Some(value) if value.is_finite() && value > 0.0 => Ok(value),
                Some(value) => Err(ConfigError::invalid(&key, value, "it must be positive and finite")),
            }
        };
        match self.kind() {
            "default" => Ok(Scaling::Unscaled),
            "linear" => Ok(Scaling::Linear { factor: needed("factor", self.factor)? }),
            "llama3" => {
                let scaling = (
                    needed("factor", self.factor)?,
                    needed("low_freq_factor", self.low_freq_factor)?,
                    needed("high_freq_factor", self.high_freq_factor)?,
                    needed("original_max_position_embeddings", self.original_max_position_embeddings)?,
                );
                let (factor, low, high, original) = scaling;
                if low >= high {
                    let rule = format!("it must be above the low_freq_factor {low}");
                    return Err(ConfigError::invalid(&format!("{key}.high_freq_factor"), high, rule));
                }
                Ok(Scaling::Llama3 { factor, low, high, original })
            }
            other => Err(ConfigError::invalid(key, other, "default, linear and llama3 are known")),
        }
    }
}

/// `rope_scaling` as config.json has it.
pub(super) fn scaling_json(scaling: Scaling) -> Value {
    match scaling {
        Scaling::Unscaled => Value::Null,
        Scaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        Scaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            // Readers take it for a whole number.
            "original_max_position_embeddings": original as u64,
        }),
    }
}
