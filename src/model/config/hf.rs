use serde::Deserialize;
use serde_json::{Value, json};

use super::{Config, ConfigError, Family};
use crate::ops::Dtype;

impl Config {
    /// Reads config.json. What it leaves out takes the value that the reference implementation gives it:
    /// `num_key_value_heads` = heads, `head_dim` = hidden/heads, `rope_theta` 10000, `rms_norm_eps` 1e-6,
    /// `max_position_embeddings` 2048, `tie_word_embeddings` false; absent token ids stay absent.
    ///
    /// `add_bos` is false: it belongs to the tokenizer's files.
    ///
    /// # Errors
    /// Anything that the decoder would compute wrongly: another architecture or activation, biases, a scaled
    /// rotary embedding, sizes that are zero, absurd or do not divide.
    pub fn from_hf_json(text: &str) -> Result<Self, ConfigError> {
        let family = hf_family(&serde_json::from_str(text)?)?;
        let raw: HfConfig = serde_json::from_str(text)?;
        raw.refuse_unsupported()?;
        let rope = raw.rope_parameters.as_ref().or(raw.rope_scaling.as_ref());
        let theta = rope.and_then(|rope| rope.rope_theta).or(raw.rope_theta);
        let heads = raw.num_attention_heads;
        Self {
            family,
            hidden: raw.hidden_size,
            intermediate: raw.intermediate_size,
            layers: raw.num_hidden_layers,
            heads,
            kv_heads: raw.num_key_value_heads.unwrap_or(heads),
            head_dim: match raw.head_dim {
                Some(size) => size,
                None => Self::default_head_dim(raw.hidden_size, heads)?,
            },
            vocab: raw.vocab_size,
            rope_theta: theta.unwrap_or(10_000.0),
            rms_eps: raw.rms_norm_eps.unwrap_or(1e-6),
            tied: raw.tie_word_embeddings.unwrap_or(false),
            max_positions: raw.max_position_embeddings.unwrap_or(2048),
            bos: raw.bos_token_id,
            eos: raw.eos_token_id.map(TokenIds::into_vec).unwrap_or_default(),
            add_bos: false,
        }
        .validate()
    }

    /// config.json as a Hugging Face reader takes it, for weights stored as `stored` (F32, F16 or BF16).
    pub fn to_hf_json(&self, stored: Dtype) -> Value {
        let torch_dtype = match stored {
            Dtype::F32 => "float32",
            Dtype::Bf16 => "bfloat16",
            _ => "float16",
        };
        let eos = match self.eos.as_slice() {
            [] => Value::Null,
            [one] => json!(one),
            many => json!(many),
        };
        json!({
            "architectures": [self.family.hf_architecture()],
            "model_type": self.family.name(),
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.max_positions,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": null,
            "attention_bias": false,
            "attention_dropout": 0.0,
            "mlp_bias": false,
            "tie_word_embeddings": self.tied,
            "bos_token_id": self.bos,
            "eos_token_id": eos,
            "initializer_range": 0.02,
            "torch_dtype": torch_dtype,
            "use_cache": true,
        })
    }
}

/// The family, or the error that lists the known ones; asked before anything else is read.
fn hf_family(names: &HfArchitecture) -> Result<Family, ConfigError> {
    let listed = names.architectures.as_ref().and_then(|list| list.first());
    let found = Family::ALL.into_iter().find(|family| match listed {
        Some(name) => name == family.hf_architecture(),
        None => names.model_type.as_deref() == Some(family.name()),
    });
    found.ok_or_else(|| ConfigError::UnknownArchitecture {
        found: listed
            .or(names.model_type.as_ref())
            .map_or("not stated".into(), |name| name.chars().take(80).collect()),
        known: Family::ALL.map(Family::hf_architecture).join(", "),
    })
}

#[derive(Deserialize)]
struct HfArchitecture {
    architectures: Option<Vec<String>>,
    model_type: Option<String>,
}

#[derive(Deserialize)]
struct HfConfig {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    vocab_size: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: Option<usize>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    /// Newer files keep θ and the scaling together here.
    rope_parameters: Option<Rope>,
    rms_norm_eps: Option<f64>,
    tie_word_embeddings: Option<bool>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<TokenIds>,
    hidden_act: Option<String>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    quantization_config: Option<Quantization>,
}

#[derive(Deserialize)]
struct Quantization {
    quant_method: Option<String>,
    format: Option<String>,
    format_version: Option<u64>,
}

#[derive(Deserialize)]
struct Rope {
    rope_theta: Option<f64>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
}

/// One token id or a list of them, as `eos_token_id` may be.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a token id or a list of token ids")]
pub(crate) enum TokenIds {
    One(u32),
    Many(Vec<u32>),
}

impl TokenIds {
    pub(crate) fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

impl HfConfig {
    fn refuse_unsupported(&self) -> Result<(), ConfigError> {
        for (key, rope) in [("rope_scaling", &self.rope_scaling), ("rope_parameters", &self.rope_parameters)]
        {
            if let Some(kind) = rope.as_ref().and_then(|rope| rope.rope_type.as_deref())
                && kind != "default"
            {
                return Err(ConfigError::invalid(
                    key,
                    kind,
                    "only the unscaled rotary embedding is known (null or default)",
                ));
            }
        }
        if self.rope_scaling.as_ref().is_some_and(|rope| rope.rope_type.is_none()) {
            return Err(ConfigError::invalid(
                "rope_scaling",
                "an object without a kind",
                "only null or default is known",
            ));
        }
        for (key, value) in [("attention_bias", self.attention_bias), ("mlp_bias", self.mlp_bias)] {
            if value == Some(true) {
                return Err(ConfigError::invalid(key, "true", "linear layers with a bias are not supported"));
            }
        }
        if let Some(quantization) = &self.quantization_config {
            quantization.refuse_unsupported()?;
        }
        match self.hidden_act.as_deref() {
            None | Some("silu") => Ok(()),
            Some(other) => Err(ConfigError::invalid("hidden_act", other, "only silu is known")),
        }
    }
}

impl Quantization {
    fn refuse_unsupported(&self) -> Result<(), ConfigError> {
        let method = self.quant_method.as_deref().unwrap_or("absent");
        if method != "lapidary" {
            let rule = "only lapidary's own is read; take the unquantised model or a GGUF file";
            return Err(ConfigError::invalid("quantization_config.quant_method", method, rule));
        }
        let format = self.format.as_deref().unwrap_or("absent");
        let version = self.format_version.unwrap_or(0);
        if (format, version) != ("blr", 1) {
            let rule = "this version reads blr 1; a newer lapidary wrote it";
            return Err(ConfigError::invalid(
                "quantization_config.format",
                format!("{format} {version}"),
                rule,
            ));
        }
        Ok(())
    }
}
