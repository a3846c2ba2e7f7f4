use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::blr::rank::Budget;
use crate::model::LinearName;

/// Which tensor may spend how many bits: a default, and exceptions by layer and by tensor. A TOML file:
///
/// ```toml
/// bits = 1.0           # bits a weight, for every linear layer not named below
/// kv_factor = 2.0      # multiplies the budget of k_proj and v_proj; the overspending is reported
///
/// [layers.0]           # one layer, counted from 0
/// bits = 2.0
///
/// [layers."28-29"]     # a range
/// keep_dense = true
///
/// [tensors."model.layers.4.mlp.down_proj"]
/// bits = 1.5
/// ```
///
/// A tensor's own entry decides before its layer's, and that before the default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub bits: f64,
    #[serde(default = "one")]
    pub kv_factor: f64,
    #[serde(default)]
    pub layers: BTreeMap<String, Entry>,
    #[serde(default)]
    pub tensors: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_dense: Option<bool>,
}

/// What the plan says of one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Assignment {
    Pack(Budget),
    KeepDense,
}

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("{what} gives bits and keep_dense = true; leave one of them out")]
    Both { what: String },
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    #[error("{what} is {value:?}: bits a weight must be above 0 and at most 16")]
    Bits { what: String, value: f64 },
    #[error("kv_factor is {0:?}: it must be above 0 and at most 16")]
    Factor(f64),
    #[error(
        "[layers.{key:?}]: give one layer (\"3\") or a range (\"3-7\") below {layers}, the model's number of layers"
    )]
    Layers { key: String, layers: usize },
    #[error("[layers.{first:?}] and [layers.{second:?}] both name layer {layer}")]
    Overlap { first: String, second: String, layer: usize },
    #[error("[tensors.{name:?}]: the model has no such linear layer; its names are like {example:?}")]
    Tensor { name: String, example: String },
}

impl Plan {
    /// The same bits for every tensor.
    pub fn uniform(bits: f64) -> Self {
        Self { bits, kv_factor: 1.0, layers: BTreeMap::new(), tensors: BTreeMap::new() }
    }

    /// Reads a plan; `bits`, where given, takes the place of the file's own default.
    pub fn from_toml(text: &str, bits: Option<f64>) -> Result<Self, PlanError> {
        let mut table: toml::Table = toml::from_str(text)?;
        if let Some(bits) = bits {
            table.insert("bits".into(), toml::Value::Float(bits));
        }
        Ok(table.try_into()?)
    }

    /// One assignment for each linear layer of each of `layers` blocks, in the order of [`LinearName::ALL`].
    pub fn resolve(&self, layers: usize) -> Result<Vec<[Assignment; 7]>, PlanError> {
        check_bits("bits", self.bits)?;
        if !(self.kv_factor > 0.0 && self.kv_factor <= 16.0) {
            return Err(PlanError::Factor(self.kv_factor));
        }
        let mut by_layer: Vec<Option<(&str, &Entry)>> = vec![None; layers];
        for (key, entry) in &self.layers {
            for layer in parse_range(key, layers)? {
                if let Some((first, _)) = by_layer[layer].replace((key, entry)) {
                    return Err(PlanError::Overlap { first: first.into(), second: key.clone(), layer });
                }
            }
        }
        for (kind, entries) in [("layers", &self.layers), ("tensors", &self.tensors)] {
            if let Some((key, _)) =
                entries.iter().find(|(_, e)| e.bits.is_some() && e.keep_dense == Some(true))
            {
                return Err(PlanError::Both { what: format!("[{kind}.{key:?}]") });
            }
        }
        let mut named = self.tensors.clone();
        let mut out = Vec::with_capacity(layers);
        for (layer, entry) in by_layer.iter().enumerate() {
            let mut assignments = [Assignment::KeepDense; 7];
            for (slot, name) in assignments.iter_mut().zip(LinearName::ALL) {
                let own = named.remove(&name.prefix(layer));
                *slot = self.assign(name, own.as_ref(), entry.map(|(_, entry)| entry))?;
            }
            out.push(assignments);
        }
        match named.into_keys().next() {
            Some(name) => Err(PlanError::Tensor { name, example: LinearName::Down.prefix(0) }),
            None => Ok(out),
        }
    }

    fn assign(
        &self,
        name: LinearName,
        own: Option<&Entry>,
        layer: Option<&Entry>,
    ) -> Result<Assignment, PlanError> {
        let entries = || own.into_iter().chain(layer);
        // An entry that gives bits packs its tensor, also inside a layer that is kept dense.
        let first = entries().find(|entry| entry.keep_dense.is_some() || entry.bits.is_some());
        if first.is_some_and(|entry| entry.keep_dense == Some(true)) {
            return Ok(Assignment::KeepDense);
        }
        let bits = entries().find_map(|entry| entry.bits).unwrap_or(self.bits);
        check_bits("the bits of an entry", bits)?;
        let is_kv = matches!(name, LinearName::K | LinearName::V);
        Ok(Assignment::Pack(Budget { bits, factor: if is_kv { self.kv_factor } else { 1.0 } }))
    }
}

fn check_bits(what: &str, value: f64) -> Result<(), PlanError> {
    if value > 0.0 && value <= 16.0 { Ok(()) } else { Err(PlanError::Bits { what: what.into(), value }) }
}

fn parse_range(key: &str, layers: usize) -> Result<std::ops::RangeInclusive<usize>, PlanError> {
    let digits = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number =
        |text: &str| Some(text).filter(digits)?.parse::<usize>().ok().filter(|layer| *layer < layers);
    let (first, last) = key.split_once('-').unwrap_or((key, key));
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(PlanError::Layers { key: key.into(), layers }),
    }
}

fn one() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(bits: f64, factor: f64) -> Assignment {
        Assignment::Pack(Budget { bits, factor })
    }

    #[test]
    fn tensors_decide_before_layers_and_layers_before_the_default() {
        let text = r#"
            kv_factor = 2.0
            [layers.0]
            bits = 2.0
            [layers."1-2"]
            keep_dense = true
            [tensors."model.layers.2.mlp.down_proj"]
            bits = 1.5
            [tensors."model.layers.0.self_attn.q_proj"]
            keep_dense = true
        "#;
        let plan = Plan::from_toml(text, Some(1.0)).unwrap().resolve(4).unwrap();
        let [q, k, v, o, gate, up, down] = plan[0];
        assert_eq!(q, Assignment::KeepDense);
        assert_eq!([k, v], [pack(2.0, 2.0); 2]);
        assert_eq!([o, gate, up, down], [pack(2.0, 1.0); 4]);
        assert_eq!(plan[1], [Assignment::KeepDense; 7]);
        assert_eq!(plan[2][6], pack(1.5, 1.0));
        assert_eq!(plan[2][0], Assignment::KeepDense);
        assert_eq!(plan[3][1], pack(1.0, 2.0));
    }

    #[test]
    fn faults_say_where() {
        let cases = [
            ("bits = 0.0", "bits is 0.0"),
            ("bits = nan", "bits is NaN"),
            ("kv_factor = 1.0", "missing field `bits`"),
            ("bits = 1.0\nbit = 2", "unknown field `bit`"),
            ("bits = 1.0\nkv_factor = -1.0", "kv_factor is -1.0"),
            ("bits = 1.0\n[layers.4]\nbits = 1.0", "[layers.\"4\"]"),
            ("bits = 1.0\n[layers.1]\nbits = 1.0\nkeep_dense = true", "leave one of them out"),
            ("bits = 1.0\n[layers.\"+1\"]\nbits = 1.0", "[layers.\"+1\"]"),
            ("bits = 1.0\n[layers.\"2-1\"]\nbits = 1.0", "below 4"),
            ("bits = 1.0\n[layers.\"0-1\"]\nbits = 1.0\n[layers.1]\nbits = 2.0", "both name layer 1"),
            ("bits = 1.0\n[tensors.\"lm_head\"]\nbits = 1.0", "no such linear layer"),
            ("bits = 1.0\n[layers.1]\nbits = 99.0", "at most 16"),
        ];
        for (text, expected) in cases {
            let error = Plan::from_toml(text, None).and_then(|plan| plan.resolve(4)).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
