use super::rope::scaling;
use super::{Gguf, Value};
use crate::model::config::{Biases, Config, ConfigError, Family, Sliding};
use crate::ops::rope::Frequencies;

/// Base of Gemma 3's rotary embedding in sliding layers, and how often a layer of it does not slide.
const GEMMA_LOCAL_THETA: f64 = 10_000.0;
const GEMMA_PATTERN: usize = 6;
/// Layers of Gemma 3 27B, the one size whose scores are divided by something else than the root of `head_dim`.
const GEMMA_27B_LAYERS: usize = 62;

/// The configuration in a GGUF file's metadata.
///
/// What a file leaves out takes the format's defaults: as many key-value heads as heads, hidden/heads for the size
/// of a head, 10000 for the rotary base, and a tied head where there is no `output.weight`. A `llama` file with a sliding
/// window is a Mistral.
///
/// # Errors
/// As [`Config::from_hf_json`], and experts, partial rotary embeddings and unequal key and value sizes.
pub(crate) fn config(gguf: &Gguf) -> Result<Config, ConfigError> {
    let metadata = Metadata::of(gguf)?;
    metadata.refuse_unsupported()?;
    let hidden = metadata.size("embedding_length")?;
    let heads = metadata.size("attention.head_count")?;
    let head_dim = match metadata.optional_size("attention.key_length")? {
        Some(size) => size,
        None => Config::default_head_dim(hidden, heads)?,
    };
    let layers = metadata.size("block_count")?;
    Config::check_layers(layers)?;
    let bos = metadata.token_id("tokenizer.ggml.bos_token_id")?;
    let add_bos =
        metadata.read("tokenizer.ggml.add_bos_token", "true or false", Value::bool)?.unwrap_or(false);
    if add_bos && bos.is_none() {
        return Err(ConfigError::Missing { key: "tokenizer.ggml.bos_token_id".into() });
    }
    let theta = metadata.optional_real("rope.freq_base")?.unwrap_or(10_000.0);
    let rope = Frequencies { theta, scaling: scaling(&metadata, theta, head_dim)? };
    let config = Config {
        family: metadata.family,
        hidden,
        intermediate: metadata.size("feed_forward_length")?,
        layers,
        heads,
        kv_heads: metadata.optional_size("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        vocab: match metadata.optional_size("vocab_size")? {
            Some(size) => size,
            None => embedding_rows(gguf)?,
        },
        rope,
        sliding: metadata.sliding(layers, rope)?,
        biases: metadata.biases(),
        score_scalar: metadata.score_scalar(layers, [hidden, heads, head_dim]),
        rms_eps: metadata
            .optional_real("attention.layer_norm_rms_epsilon")?
            .ok_or_else(|| ConfigError::Missing { key: metadata.key("attention.layer_norm_rms_epsilon") })?,
        tied: !gguf.tensors.contains_key("output.weight"),
        max_positions: metadata.size("context_length")?,
        bos,
        eos: metadata.ends()?,
        add_bos,
    };
    let config = config.validate()?;
    metadata.must_equal("attention.value_length", head_dim, "values must be as long as keys")?;
    metadata.must_equal(
        "rope.dimension_count",
        head_dim,
        "the rotary embedding must cover the whole head",
    )?;
    Ok(config)
}

pub(super) struct Metadata<'a> {
    pub gguf: &'a Gguf,
    /// What keys start with.
    architecture: &'a str,
    family: Family,
}

fn embedding_rows(gguf: &Gguf) -> Result<usize, ConfigError> {
    let rows = gguf.tensors.get("token_embd.weight").and_then(|tensor| tensor.shape.first());
    rows.copied().ok_or_else(|| ConfigError::Missing { key: "vocab_size".into() })
}

impl<'a> Metadata<'a> {
    fn of(gguf: &'a Gguf) -> Result<Self, ConfigError> {
        let found = gguf.metadata.get("general.architecture").and_then(Value::str).unwrap_or("not stated");
        let family = Family::ALL.into_iter().find(|family| found == family.name());
        let family = family.ok_or_else(|| ConfigError::UnknownArchitecture {
            found: found.chars().take(80).collect(),
            known: Family::ALL.map(Family::name).join(", "),
        })?;
        let mut metadata = Self { gguf, architecture: found, family };
        if family == Family::Llama && metadata.window()?.is_some() {
            metadata.family = Family::Mistral;
        }
        Ok(metadata)
    }

    fn refuse_unsupported(&self) -> Result<(), ConfigError> {
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if let Some(cap) = self.optional_real(key)?.filter(|cap| *cap != 0.0) {
                return Err(ConfigError::invalid(&self.key(key), cap, "soft caps are not supported (0)"));
            }
        }
        self.must_equal("expert_count", 0, "mixtures of experts are not supported")
    }

    /// The sliding window; 0 stands for none.
    fn window(&self) -> Result<Option<usize>, ConfigError> {
        Ok(self.optional_size("attention.sliding_window")?.filter(|window| *window > 0))
    }

    fn sliding(&self, layers: usize, rope: Frequencies) -> Result<Option<Sliding>, ConfigError> {
        let Some(window) = self.window()? else { return Ok(None) };
        match self.family {
            Family::Mistral => Ok(Some(Sliding { window, layers: vec![true; layers], rope })),
            Family::Gemma3 => {
                let key = "attention.sliding_window_pattern";
                let every = self.optional_size(key)?.unwrap_or(GEMMA_PATTERN);
                if every == 0 {
                    return Err(ConfigError::invalid(&self.key(key), every, "it must be at least 1"));
                }
                let layers: Vec<bool> = (1..=layers).map(|number| !number.is_multiple_of(every)).collect();
                let theta = self.optional_real("rope.freq_base_swa")?.unwrap_or(GEMMA_LOCAL_THETA);
                let sliding = Sliding { window, layers, rope: Frequencies::unscaled(theta) };
                Ok(Some(sliding).filter(|sliding| sliding.layers.contains(&true)))
            }
            Family::Llama | Family::Qwen2 | Family::Qwen3 => Ok(None),
        }
    }

    /// Biases as the reference implementation has them: on q, k and v alone for Qwen2, on o too elsewhere.
    fn biases(&self) -> Biases {
        let has = |name: &str| self.gguf.tensors.contains_key(name);
        let attention = has("blk.0.attn_q.bias") && has("blk.0.attn_output.bias");
        match self.family {
            Family::Qwen2 => Biases { qkv: true, ..Biases::default() },
            Family::Llama => Biases { qkv: attention, o: attention, mlp: has("blk.0.ffn_up.bias") },
            Family::Qwen3 | Family::Gemma3 => Biases { qkv: attention, o: attention, mlp: false },
            Family::Mistral => Biases::default(),
        }
    }

    fn score_scalar(&self, layers: usize, [hidden, heads, head_dim]: [usize; 3]) -> Option<f64> {
        let scalar = match layers {
            GEMMA_27B_LAYERS => hidden as f64 / heads as f64,
            _ => head_dim as f64,
        };
        (self.family == Family::Gemma3).then_some(scalar)
    }

    /// Tokens that end a text.
    fn ends(&self) -> Result<Vec<u32>, ConfigError> {
        let ids = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
        let ids = ids.into_iter().filter_map(|key| self.token_id(key).transpose());
        let mut ids = ids.collect::<Result<Vec<_>, _>>()?;
        ids.dedup();
        Ok(ids)
    }

    pub fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    pub fn read<T>(
        &self,
        key: &str,
        kind: &str,
        get: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.gguf.metadata.get(key) else { return Ok(None) };
        let wrong = || ConfigError::invalid(key, "of another type", format!("it must be {kind}"));
        get(value).map(Some).ok_or_else(wrong)
    }

    fn size(&self, suffix: &str) -> Result<usize, ConfigError> {
        self.optional_size(suffix)?.ok_or_else(|| ConfigError::Missing { key: self.key(suffix) })
    }

    fn optional_size(&self, suffix: &str) -> Result<Option<usize>, ConfigError> {
        let size = |value: &Value| value.unsigned().and_then(|size| usize::try_from(size).ok());
        self.read(&self.key(suffix), "a whole number that is not negative", size)
    }

    pub fn optional_real(&self, suffix: &str) -> Result<Option<f64>, ConfigError> {
        self.read(&self.key(suffix), "a real number", Value::real)
    }

    fn token_id(&self, key: &str) -> Result<Option<u32>, ConfigError> {
        let id = |value: &Value| value.unsigned().and_then(|id| u32::try_from(id).ok());
        self.read(key, "a token id", id)
    }

    fn must_equal(&self, suffix: &str, expected: usize, rule: &str) -> Result<(), ConfigError> {
        match self.optional_size(suffix)? {
            Some(size) if size != expected => {
                Err(ConfigError::invalid(&self.key(suffix), size, format!("it must be {expected}: {rule}")))
            }
            _ => Ok(()),
        }
    }
}
