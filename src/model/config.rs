use serde::Deserialize;
use serde_json::{Value, json};

use crate::ops::Dtype;

/// The sizes and constants of a decoder, from config.json or from GGUF metadata.
///
/// | field | meaning | shape it gives |
/// |---|---|---|
/// | `hidden` | width d of the residual stream | norms `[d]` |
/// | `heads`, `kv_heads`, `head_dim` | attention heads, of which groups of `heads / kv_heads` share keys and values | q `[heads·head_dim, d]`, k and v `[kv_heads·head_dim, d]`, o `[d, heads·head_dim]` |
/// | `intermediate` | width f of the gated unit | gate and up `[f, d]`, down `[d, f]` |
/// | `vocab` | rows of the embedding | `[vocab, d]` |
///
/// A `Config` has been checked: sizes are between 1 and [`Config::MAX_SIZE`], so products of two never overflow.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub family: Family,
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    /// Base of the rotary embedding's frequencies, θ in `θ^(−2i/head_dim)`.
    pub rope_theta: f64,
    /// ε of the root-mean-square norm, `x / sqrt(mean(x²) + ε)`.
    pub rms_eps: f64,
    /// The output head is the embedding.
    pub tied: bool,
    /// Longest context, in tokens, that the model was trained for.
    pub max_positions: usize,
    pub bos: Option<u32>,
    /// Tokens that end a generation; may be empty.
    pub eos: Vec<u32>,
    /// The tokenizer puts `bos` before every text.
    pub add_bos: bool,
}

/// Model families that the decoder knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Llama,
}

impl Family {
    pub const ALL: [Self; 1] = [Self::Llama];

    /// `architectures[0]` in config.json.
    pub const fn hf_architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
        }
    }

    /// `model_type` in config.json and `general.architecture` in GGUF.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
        }
    }
}

/// Why a configuration cannot be used. The caller adds the file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("it is no model configuration: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the architecture is {found}, and this version reads only {known}")]
    UnknownArchitecture { found: String, known: String },
    #[error("`{key}` is missing")]
    Missing { key: String },
    #[error("`{key}` is {value}, but {rule}")]
    Invalid { key: String, value: String, rule: String },
}

impl ConfigError {
    pub(crate) fn invalid(key: &str, value: impl ToString, rule: impl Into<String>) -> Self {
        let mut value = value.to_string();
        if value.chars().count() > 80 {
            value = value.chars().take(80).chain(['…']).collect();
        }
        Self::Invalid { key: key.into(), value, rule: rule.into() }
    }
}

impl Config {
    /// Largest size of one dimension. Real models stay far below; products of two fit 64 bits with room to spare.
    pub const MAX_SIZE: usize = 1 << 28;
    /// Most layers; about a hundred times what real models have.
    pub const MAX_LAYERS: usize = 10_000;

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

    /// hidden / heads, for files that do not state the size of a head.
    pub(crate) fn default_head_dim(hidden: usize, heads: usize) -> Result<usize, ConfigError> {
        match hidden.checked_rem(heads) {
            Some(0) if hidden > 0 => Ok(hidden / heads),
            _ => Err(ConfigError::invalid(
                "hidden_size",
                hidden,
                format!("it must be a positive multiple of the {heads} heads"),
            )),
        }
    }

    /// The configuration itself, once its sizes are possible and agree.
    pub(crate) fn validate(self) -> Result<Self, ConfigError> {
        let sizes = [
            ("hidden_size", self.hidden, Self::MAX_SIZE),
            ("intermediate_size", self.intermediate, Self::MAX_SIZE),
            ("num_hidden_layers", self.layers, Self::MAX_LAYERS),
            ("num_attention_heads", self.heads, Self::MAX_SIZE),
            ("num_key_value_heads", self.kv_heads, Self::MAX_SIZE),
            ("head_dim", self.head_dim, Self::MAX_SIZE),
            ("vocab_size", self.vocab, Self::MAX_SIZE),
            ("max_position_embeddings", self.max_positions, Self::MAX_SIZE),
        ];
        for (key, size, most) in sizes {
            if size == 0 || size > most {
                return Err(ConfigError::invalid(key, size, format!("it must be between 1 and {most}")));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let rule = format!("the {} query heads must be a multiple of it", self.heads);
            return Err(ConfigError::invalid("num_key_value_heads", self.kv_heads, rule));
        }
        if !self.head_dim.is_multiple_of(2) || self.heads * self.head_dim > Self::MAX_SIZE {
            let rule = "it must be even, and heads times it at most 2^28";
            return Err(ConfigError::invalid("head_dim", self.head_dim, rule));
        }
        for (key, value) in [("rope_theta", self.rope_theta), ("rms_norm_eps", self.rms_eps)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(ConfigError::invalid(key, value, "it must be positive and finite"));
            }
        }
        for id in self.bos.iter().chain(&self.eos) {
            if *id as usize >= self.vocab {
                let rule = format!("the vocabulary has {} tokens", self.vocab);
                return Err(ConfigError::invalid("bos_token_id or eos_token_id", id, rule));
            }
        }
        Ok(self)
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
#[serde(untagged)]
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

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96}"#;

    fn small_with(extra: &str) -> Result<Config, ConfigError> {
        Config::from_hf_json(&SMALL.replacen('{', &format!("{{{extra},"), 1))
    }

    #[test]
    fn absent_values_are_those_of_the_reference_implementation() {
        let config = Config::from_hf_json(SMALL).unwrap();
        assert_eq!((config.kv_heads, config.head_dim, config.max_positions), (4, 8, 2048));
        assert_eq!((config.rope_theta, config.rms_eps, config.tied), (10_000.0, 1e-6, false));
        assert_eq!((config.bos, config.eos), (None, vec![]));
    }

    #[test]
    fn a_written_configuration_reads_back_the_same() {
        for extra in [
            r#""num_key_value_heads": 2, "rope_theta": 100000.0, "rms_norm_eps": 1e-05, "tie_word_embeddings": true"#,
            r#""bos_token_id": 1, "eos_token_id": [2, 3], "head_dim": 16, "rope_scaling": null"#,
            r#""eos_token_id": 7, "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}"#,
        ] {
            let config = small_with(extra).unwrap();
            let written = config.to_hf_json(Dtype::F16).to_string();
            assert_eq!(Config::from_hf_json(&written).unwrap(), config, "{extra}");
        }
    }

    #[test]
    fn what_the_decoder_would_compute_wrongly_is_refused() {
        let cases = [
            (r#""rope_scaling": {"type": "linear", "factor": 2.0}"#, "`rope_scaling` is linear"),
            (r#""rope_scaling": {"factor": 2.0}"#, "without a kind"),
            (r#""rope_parameters": {"rope_type": "llama3"}"#, "`rope_parameters` is llama3"),
            (r#""attention_bias": true"#, "`attention_bias` is true"),
            (r#""mlp_bias": true"#, "`mlp_bias` is true"),
            (r#""hidden_act": "gelu""#, "`hidden_act` is gelu"),
            (r#""num_key_value_heads": 3"#, "`num_key_value_heads` is 3"),
            (r#""num_key_value_heads": 0"#, "between 1 and"),
            (r#""head_dim": 7"#, "must be even"),
            (r#""head_dim": 9223372036854775808"#, "between 1 and"),
            (r#""max_position_embeddings": 99999999999"#, "between 1 and"),
            (r#""rope_theta": 0"#, "positive and finite"),
            (r#""rms_norm_eps": -1e-5"#, "positive and finite"),
            (r#""bos_token_id": 96"#, "the vocabulary has 96 tokens"),
            (r#""eos_token_id": [1, 4000]"#, "the vocabulary has 96 tokens"),
            (r#""eos_token_id": "two""#, "no model configuration"),
            (r#""head_dim": -8"#, "no model configuration"),
        ];
        for (extra, expected) in cases {
            let error = small_with(extra).unwrap_err().to_string();
            assert!(error.contains(expected), "{extra}: {error}");
        }
        for (from, to, expected) in [
            (
                "LlamaForCausalLM",
                "MambaForCausalLM",
                "is MambaForCausalLM, and this version reads only LlamaForCausalLM",
            ),
            (r#""hidden_size": 32,"#, "", "missing field `hidden_size`"),
            (
                r#""num_attention_heads": 4"#,
                r#""num_attention_heads": 0"#,
                "positive multiple of the 0 heads",
            ),
            (r#""num_hidden_layers": 2"#, r#""num_hidden_layers": 4000000"#, "between 1 and 10000"),
        ] {
            let error = Config::from_hf_json(&SMALL.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(expected), "{to}: {error}");
        }
    }

    #[test]
    fn other_quantisations_are_refused() {
        let with = |object: &str| small_with(&format!(r#""quantization_config": {object}"#));
        with(r#"{"quant_method": "lapidary", "format": "blr", "format_version": 1}"#).unwrap();
        let error = with(r#"{"quant_method": "gptq", "bits": 4}"#).unwrap_err().to_string();
        assert!(error.contains("gptq") && error.contains("unquantised"), "{error}");
        let error =
            with(r#"{"quant_method": "lapidary", "format": "blr", "format_version": 2}"#).unwrap_err();
        assert!(error.to_string().contains("blr 2"), "{error}");
    }
}
