use serde::{Deserialize, Deserializer};

use super::rope::{RopeSettings, RopeSources};
use super::{Biases, Config, ConfigError, Family, Gate, Sliding};
use crate::ops::rope::Frequencies;

/// Base of Gemma 3's rotary embedding in sliding layers.
const LOCAL_THETA: f64 = 10_000.0;

impl Config {
    /// Reads config.json. What it leaves out takes the value that the reference implementation gives it for the
    /// family; absent token ids stay absent.
    ///
    /// `add_bos` is false: it belongs to the tokenizer's files.
    ///
    /// # Errors
    /// Anything that the decoder would compute wrongly: another architecture or activation, an unknown scaling of the
    /// rotary embedding, soft caps, sizes that are zero, absurd or do not divide.
    pub fn from_hf_json(text: &str) -> Result<Self, ConfigError> {
        let family = hf_family(&serde_json::from_str(text)?)?;
        let raw: HfConfig = serde_json::from_str(text)?;
        raw.refuse_unsupported(family)?;
        Self::check_layers(raw.num_hidden_layers)?;
        let defaults = Defaults::of(family);
        let heads = raw.num_attention_heads;
        let ropes = raw.ropes();
        let rope = ropes.global(defaults.rope_theta)?;
        let local = if family == Family::Gemma3 { ropes.local(LOCAL_THETA)? } else { rope };
        Self {
            family,
            hidden: raw.hidden_size,
            intermediate: raw.intermediate_size,
            layers: raw.num_hidden_layers,
            heads,
            kv_heads: raw.num_key_value_heads.unwrap_or(defaults.kv_heads).unwrap_or(heads),
            head_dim: match raw.head_dim.unwrap_or(defaults.head_dim) {
                Some(size) => size,
                None => Self::default_head_dim(raw.hidden_size, heads)?,
            },
            vocab: raw.vocab_size,
            rope,
            sliding: raw.sliding(family, local)?,
            biases: raw.biases(family),
            score_scalar: (family == Family::Gemma3).then(|| raw.query_pre_attn_scalar.unwrap_or(256.0)),
            rms_eps: raw.rms_norm_eps.unwrap_or(1e-6),
            tied: raw.tie_word_embeddings.unwrap_or(defaults.tied),
            max_positions: raw.max_position_embeddings.unwrap_or(defaults.max_positions),
            bos: raw.bos_token_id,
            eos: raw.eos_token_id.map(TokenIds::into_vec).unwrap_or_default(),
            add_bos: false,
        }
        .validate()
    }
}

/// The family, or the error that lists the known ones; asked before anything else is read.
fn hf_family(names: &HfArchitecture) -> Result<Family, ConfigError> {
    let listed = names.architectures.as_ref().and_then(|list| list.first());
    let found = Family::ALL.into_iter().find(|family| match listed {
        Some(name) => name == family.hf_architecture(),
        None => names.model_type.as_deref() == Some(family.hf_model_type()),
    });
    found.ok_or_else(|| ConfigError::UnknownArchitecture {
        found: listed
            .or(names.model_type.as_ref())
            .map_or("not stated".into(), |name| name.chars().take(80).collect()),
        known: Family::ALL.map(Family::hf_architecture).join(", "),
    })
}

/// What the reference implementation takes for values that config.json leaves out. `None` for heads of keys and values
/// is as many as heads, for the size of a head hidden/heads, for the window none.
struct Defaults {
    kv_heads: Option<usize>,
    head_dim: Option<usize>,
    max_positions: usize,
    rope_theta: f64,
    tied: bool,
    window: Option<usize>,
}

impl Defaults {
    fn of(family: Family) -> Self {
        let (kv_heads, head_dim, max_positions, window) = match family {
            Family::Llama => (None, None, 2048, None),
            Family::Mistral => (Some(8), None, 131_072, Some(4096)),
            Family::Qwen2 => (Some(32), None, 32_768, Some(4096)),
            Family::Qwen3 => (Some(32), Some(128), 32_768, Some(4096)),
            Family::Gemma3 => (Some(4), Some(256), 131_072, Some(4096)),
        };
        let tied = family == Family::Gemma3;
        let rope_theta = if family == Family::Gemma3 { 1e6 } else { 1e4 };
        Self { kv_heads, head_dim, max_positions, rope_theta, tied, window }
    }
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
    /// Here and below, `Some(None)` is a null that is stated: for some families it means something else than silence.
    #[serde(default, deserialize_with = "stated")]
    num_key_value_heads: Option<Option<usize>>,
    #[serde(default, deserialize_with = "stated")]
    head_dim: Option<Option<usize>>,
    max_position_embeddings: Option<usize>,
    rope_theta: Option<f64>,
    rope_local_base_freq: Option<f64>,
    rope_scaling: Option<RopeSettings>,
    rope_parameters: Option<RopeSettings>,
    partial_rotary_factor: Option<f64>,
    #[serde(default, deserialize_with = "stated")]
    sliding_window: Option<Option<usize>>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    sliding_window_pattern: Option<usize>,
    _sliding_window_pattern: Option<usize>,
    layer_types: Option<Vec<String>>,
    query_pre_attn_scalar: Option<f64>,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    use_bidirectional_attention: Option<bool>,
    rms_norm_eps: Option<f64>,
    tie_word_embeddings: Option<bool>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<TokenIds>,
    hidden_act: Option<String>,
    hidden_activation: Option<String>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    quantization_config: Option<Quantization>,
}

/// A value or a null that is there.
fn stated<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
struct Quantization {
    quant_method: Option<String>,
    format: Option<String>,
    format_version: Option<u64>,
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
    fn ropes(&self) -> RopeSources<'_> {
        RopeSources {
            rope_theta: self.rope_theta,
            rope_local_base_freq: self.rope_local_base_freq,
            rope_scaling: self.rope_scaling.as_ref(),
            rope_parameters: self.rope_parameters.as_ref(),
        }
    }

    fn biases(&self, family: Family) -> Biases {
        let attention = self.attention_bias == Some(true);
        match family {
            Family::Llama => Biases { qkv: attention, o: attention, mlp: self.mlp_bias == Some(true) },
            Family::Mistral => Biases::default(),
            Family::Qwen2 => Biases { qkv: true, ..Biases::default() },
            Family::Qwen3 | Family::Gemma3 => Biases { qkv: attention, o: attention, mlp: false },
        }
    }

    /// The layers that slide: those that `layer_types` lists, else those of the family's rule.
    fn sliding(&self, family: Family, rope: Frequencies) -> Result<Option<Sliding>, ConfigError> {
        let layers = self.num_hidden_layers;
        let ask = matches!(family, Family::Qwen2 | Family::Qwen3);
        if family == Family::Llama || (ask && self.use_sliding_window != Some(true)) {
            return Ok(None);
        }
        let window = self.sliding_window.unwrap_or(Defaults::of(family).window);
        let Some(window) = window else { return Ok(None) };
        let slides: Vec<bool> = match &self.layer_types {
            Some(types) => layer_types(types, layers)?,
            None => match family {
                Family::Qwen2 | Family::Qwen3 => {
                    let first = self.max_window_layers.unwrap_or(28);
                    (0..layers).map(|layer| layer >= first).collect()
                }
                Family::Gemma3 => {
                    let every = self.sliding_window_pattern.or(self._sliding_window_pattern).unwrap_or(6);
                    super::check_size("sliding_window_pattern", every, Config::MAX_LAYERS)?;
                    (1..=layers).map(|number| !number.is_multiple_of(every)).collect()
                }
                Family::Llama | Family::Mistral => vec![true; layers],
            },
        };
        Ok(slides.contains(&true).then_some(Sliding { window, layers: slides, rope }))
    }

    fn refuse_unsupported(&self, family: Family) -> Result<(), ConfigError> {
        let (key, act, known) = match family.traits().gate {
            Gate::Silu => ("hidden_act", self.hidden_act.as_ref(), "silu"),
            Gate::GeluTanh => match &self.hidden_activation {
                Some(act) => ("hidden_activation", Some(act), "gelu_pytorch_tanh"),
                None => ("hidden_act", self.hidden_act.as_ref(), "gelu_pytorch_tanh"),
            },
        };
        if let Some(other) = act.filter(|act| *act != known) {
            return Err(ConfigError::invalid(key, other, format!("a {} model has {known}", family.name())));
        }
        if let Some(part) = self.partial_rotary_factor.filter(|part| *part != 1.0) {
            let rule = "the rotary embedding must cover the whole head (1)";
            return Err(ConfigError::invalid("partial_rotary_factor", part, rule));
        }
        let caps = [
            ("attn_logit_softcapping", self.attn_logit_softcapping),
            ("final_logit_softcapping", self.final_logit_softcapping),
        ];
        if let Some((key, Some(cap))) = caps.into_iter().find(|(_, cap)| cap.is_some()) {
            return Err(ConfigError::invalid(key, cap, "soft caps are not supported (null)"));
        }
        if self.use_bidirectional_attention == Some(true) {
            let rule = "only attention to earlier positions is supported";
            return Err(ConfigError::invalid("use_bidirectional_attention", "true", rule));
        }
        self.quantization_config.as_ref().map_or(Ok(()), Quantization::refuse_unsupported)
    }
}

fn layer_types(types: &[String], layers: usize) -> Result<Vec<bool>, ConfigError> {
    if types.len() != layers {
        let rule = format!("the model has {layers} layers");
        return Err(ConfigError::invalid("layer_types", format!("of {} layers", types.len()), rule));
    }
    let slides = |kind: &String| match kind.as_str() {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => {
            let rule = "sliding_attention and full_attention are known";
            Err(ConfigError::invalid("layer_types", other, rule))
        }
    };
    types.iter().map(slides).collect()
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
