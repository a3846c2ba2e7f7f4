//! What a model is: its family, sizes and constants.

mod family;
mod hf;
mod hf_json;
mod rope;

use super::linear::LinearName;
use crate::ops::attention::Mask;
use crate::ops::rope::Frequencies;

pub use family::{Family, Gate, Traits};
pub(crate) use hf::TokenIds;

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
    /// The frequencies of the rotary embedding, outside of layers that slide.
    pub rope: Frequencies,
    pub sliding: Option<Sliding>,
    pub biases: Biases,
    /// s in the factor `1/sqrt(s)` on attention scores, where it is not `head_dim`.
    pub score_scalar: Option<f64>,
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

/// Layers that see only the last positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Sliding {
    /// Positions that a query sees, its own included.
    pub window: usize,
    /// Which layers slide, one entry a layer.
    pub layers: Vec<bool>,
    /// The frequencies of their rotary embedding.
    pub rope: Frequencies,
}

/// Which linear layers have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// q, k and v
    pub qkv: bool,
    pub o: bool,
    /// gate, up and down
    pub mlp: bool,
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

    /// The token that stands before every text, where the model asks for one.
    pub fn start_token(&self) -> Option<u32> {
        self.bos.filter(|_| self.add_bos)
    }

    /// What a query of this layer sees.
    pub fn mask(&self, layer: usize) -> Mask {
        match &self.sliding {
            Some(sliding) if sliding.layers[layer] => Mask::Sliding { window: sliding.window },
            _ => Mask::Causal,
        }
    }

    /// The frequencies of this layer's rotary embedding.
    pub fn frequencies(&self, layer: usize) -> Frequencies {
        match &self.sliding {
            Some(sliding) if sliding.layers[layer] => sliding.rope,
            _ => self.rope,
        }
    }

    /// Whether this linear layer has a bias.
    pub const fn has_bias(&self, name: LinearName) -> bool {
        match name {
            LinearName::Q | LinearName::K | LinearName::V => self.biases.qkv,
            LinearName::O => self.biases.o,
            LinearName::Gate | LinearName::Up | LinearName::Down => self.biases.mlp,
        }
    }

    /// Asked before anything is made for each layer.
    pub(crate) fn check_layers(layers: usize) -> Result<(), ConfigError> {
        check_size("num_hidden_layers", layers, Self::MAX_LAYERS)
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
        Self::check_layers(self.layers)?;
        let sizes = [
            ("hidden_size", self.hidden),
            ("intermediate_size", self.intermediate),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("vocab_size", self.vocab),
            ("max_position_embeddings", self.max_positions),
            ("sliding_window", self.sliding.as_ref().map_or(1, |sliding| sliding.window)),
        ];
        for (key, size) in sizes {
            check_size(key, size, Self::MAX_SIZE)?;
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let rule = format!("the {} query heads must be a multiple of it", self.heads);
            return Err(ConfigError::invalid("num_key_value_heads", self.kv_heads, rule));
        }
        if !self.head_dim.is_multiple_of(2) || self.heads * self.head_dim > Self::MAX_SIZE {
            let rule = "it must be even, and heads times it at most 2^28";
            return Err(ConfigError::invalid("head_dim", self.head_dim, rule));
        }
        let reals = [
            ("rope_theta", self.rope.theta),
            ("rope_local_base_freq", self.sliding.as_ref().map_or(1.0, |sliding| sliding.rope.theta)),
            ("query_pre_attn_scalar", self.score_scalar.unwrap_or(1.0)),
            ("rms_norm_eps", self.rms_eps),
        ];
        for (key, value) in reals {
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

fn check_size(key: &str, size: usize, most: usize) -> Result<(), ConfigError> {
    if (1..=most).contains(&size) {
        return Ok(());
    }
    Err(ConfigError::invalid(key, size, format!("it must be between 1 and {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Dtype;

    const SMALL: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96}"#;

    fn small_with(extra: &str) -> Result<Config, ConfigError> {
        Config::from_hf_json(&SMALL.replacen('{', &format!("{{{extra},"), 1))
    }

    #[test]
    fn absent_values_are_those_of_the_reference_implementation() {
        let config = Config::from_hf_json(SMALL).unwrap();
        assert_eq!((config.kv_heads, config.head_dim, config.max_positions), (4, 8, 2048));
        assert_eq!((config.rope.theta, config.rms_eps, config.tied), (10_000.0, 1e-6, false));
        assert_eq!((config.bos, config.eos), (None, vec![]));
    }

    #[test]
    fn a_written_configuration_reads_back_the_same() {
        for extra in [
            r#""num_key_value_heads": 2, "rope_theta": 100000.0, "rms_norm_eps": 1e-05, "tie_word_embeddings": true"#,
            r#""bos_token_id": 1, "eos_token_id": [2, 3], "head_dim": 16, "rope_scaling": null"#,
            r#""attention_bias": true, "rope_scaling": {"type": "linear", "factor": 2.0}"#,
            r#""mlp_bias": true, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}"#,
            r#""eos_token_id": 7, "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}"#,
        ] {
            let config = small_with(extra).unwrap();
            let written = config.to_hf_json(Dtype::F16).to_string();
            assert_eq!(Config::from_hf_json(&written).unwrap(), config, "{extra}");
        }
    }

    fn of(family: Family, extra: &str) -> Result<Config, ConfigError> {
        let text = SMALL.replace("LlamaForCausalLM", family.hf_architecture());
        Config::from_hf_json(&text.replacen('{', &format!("{{{extra},"), 1))
    }

    #[test]
    fn windows_and_ropes_follow_each_familys_rules() {
        let heads = r#""num_key_value_heads": 4"#;
        let mistral = of(Family::Mistral, heads).unwrap();
        assert_eq!((mistral.mask(1), mistral.max_positions), (Mask::Sliding { window: 4096 }, 131_072));
        let without = of(Family::Mistral, &format!(r#"{heads}, "sliding_window": null"#)).unwrap();
        assert_eq!(without.sliding, None);

        let window = format!(r#"{heads}, "sliding_window": 16, "max_window_layers": 1"#);
        assert_eq!(of(Family::Qwen2, &window).unwrap().sliding, None);
        let qwen = of(Family::Qwen2, &format!(r#"{window}, "use_sliding_window": true"#)).unwrap();
        assert_eq!([qwen.mask(0), qwen.mask(1)], [Mask::Causal, Mask::Sliding { window: 16 }]);
        assert!(qwen.has_bias(LinearName::K) && !qwen.has_bias(LinearName::O));

        // As older files have it, with a linear scaling of the layers that see everything.
        let scaled = r#""rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window_pattern": 2"#;
        let gemma =
            of(Family::Gemma3, &format!(r#"{heads}, {scaled}, "rope_local_base_freq": 500"#)).unwrap();
        assert_eq!([gemma.mask(0), gemma.mask(1)], [Mask::Sliding { window: 4096 }, Mask::Causal]);
        assert_eq!(gemma.frequencies(0), Frequencies::unscaled(500.0));
        let scaling = crate::ops::rope::Scaling::Linear { factor: 8.0 };
        assert_eq!(gemma.frequencies(1), Frequencies { theta: 1e6, scaling });
        assert_eq!((gemma.tied, gemma.head_dim, gemma.score_scalar), (true, 256, Some(256.0)));
    }

    #[test]
    fn what_a_family_cannot_be_is_refused() {
        let cases = [
            (Family::Gemma3, r#""hidden_activation": "gelu""#, "a gemma3 model has gelu_pytorch_tanh"),
            (Family::Gemma3, r#""layer_types": ["full_attention"]"#, "`layer_types` is of 1 layers"),
            (Family::Gemma3, r#""layer_types": ["full_attention", "linear"]"#, "`layer_types` is linear"),
            (Family::Gemma3, r#""sliding_window_pattern": 0"#, "`sliding_window_pattern` is 0"),
            (Family::Gemma3, r#""query_pre_attn_scalar": 0"#, "`query_pre_attn_scalar` is 0"),
            (Family::Gemma3, r#""use_bidirectional_attention": true"#, "only attention to earlier positions"),
            (
                Family::Gemma3,
                r#""rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}"#,
                "`rope_parameters.sliding_attention` is linear",
            ),
            (Family::Mistral, r#""num_key_value_heads": 4, "sliding_window": 0"#, "`sliding_window` is 0"),
        ];
        for (family, extra, expected) in cases {
            let error = of(family, extra).unwrap_err().to_string();
            assert!(error.contains(expected), "{extra}: {error}");
        }
    }

    #[test]
    fn what_the_decoder_would_compute_wrongly_is_refused() {
        let cases = [
            (r#""rope_scaling": {"type": "yarn", "factor": 2.0}"#, "`rope_scaling` is yarn"),
            (r#""rope_scaling": {"factor": 2.0}"#, "without a kind"),
            (r#""rope_scaling": {"type": "linear"}"#, "`rope_scaling.factor` is missing"),
            (r#""rope_scaling": {"type": "linear", "factor": -1}"#, "`rope_scaling.factor` is -1"),
            (
                r#""rope_parameters": {"rope_type": "llama3", "factor": 8}"#,
                "`rope_parameters.low_freq_factor` is missing",
            ),
            (
                r#""rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                    "original_max_position_embeddings": 8192}"#,
                "above the low_freq_factor 4",
            ),
            (r#""rope_parameters": {"rope_type": "dynamic"}"#, "`rope_parameters` is dynamic"),
            (r#""partial_rotary_factor": 0.5"#, "`partial_rotary_factor` is 0.5"),
            (r#""hidden_act": "gelu""#, "`hidden_act` is gelu"),
            (r#""final_logit_softcapping": 30.0"#, "soft caps are not supported"),
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
                "is MambaForCausalLM, and this version reads only LlamaForCausalLM, MistralForCausalLM",
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
