use super::{Gguf, Value};
use crate::model::config::{Config, ConfigError, Family};

/// The configuration in a GGUF file's metadata.
///
/// What a file leaves out takes the format's defaults: as many key-value heads as heads, hidden/heads for the size
/// of a head, 10000 for the rotary base, and a tied head where there is no `output.weight`.
///
/// # Errors
/// As [`Config::from_hf_json`], and experts, partial rotary embeddings and unequal key and value sizes.
pub(crate) fn config(gguf: &Gguf) -> Result<Config, ConfigError> {
    let metadata = Metadata { gguf, family: family(gguf)? };
    metadata.refuse_unsupported()?;
    let hidden = metadata.size("embedding_length")?;
    let heads = metadata.size("attention.head_count")?;
    let head_dim = match metadata.optional_size("attention.key_length")? {
        Some(size) => size,
        None => Config::default_head_dim(hidden, heads)?,
    };
    metadata.must_equal("attention.value_length", head_dim, "values must be as long as keys")?;
    metadata.must_equal(
        "rope.dimension_count",
        head_dim,
        "the rotary embedding must cover the whole head",
    )?;
    let ids = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
    let mut eos = ids
        .into_iter()
        .filter_map(|key| metadata.token_id(key).transpose())
        .collect::<Result<Vec<_>, _>>()?;
    eos.dedup();
    let bos = metadata.token_id("tokenizer.ggml.bos_token_id")?;
    let add_bos =
        metadata.read("tokenizer.ggml.add_bos_token", "true or false", Value::bool)?.unwrap_or(false);
    if add_bos && bos.is_none() {
        return Err(ConfigError::Missing { key: "tokenizer.ggml.bos_token_id".into() });
    }
    Config {
        family: metadata.family,
        hidden,
        intermediate: metadata.size("feed_forward_length")?,
        layers: metadata.size("block_count")?,
        heads,
        kv_heads: metadata.optional_size("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        vocab: match metadata.optional_size("vocab_size")? {
            Some(size) => size,
            None => embedding_rows(gguf)?,
        },
        rope_theta: metadata.optional_real("rope.freq_base")?.unwrap_or(10_000.0),
        rms_eps: metadata
            .optional_real("attention.layer_norm_rms_epsilon")?
            .ok_or_else(|| ConfigError::Missing { key: metadata.key("attention.layer_norm_rms_epsilon") })?,
        tied: !gguf.tensors.contains_key("output.weight"),
        max_positions: metadata.size("context_length")?,
        bos,
        eos,
        add_bos,
    }
    .validate()
}

struct Metadata<'a> {
    gguf: &'a Gguf,
    family: Family,
}

fn family(gguf: &Gguf) -> Result<Family, ConfigError> {
    let found = gguf.metadata.get("general.architecture").and_then(Value::str).unwrap_or("not stated");
    Family::ALL.into_iter().find(|family| found == family.name()).ok_or_else(|| {
        ConfigError::UnknownArchitecture {
            found: found.chars().take(80).collect(),
            known: Family::ALL.map(Family::name).join(", "),
        }
    })
}

fn embedding_rows(gguf: &Gguf) -> Result<usize, ConfigError> {
    let rows = gguf.tensors.get("token_embd.weight").and_then(|tensor| tensor.shape.first());
    rows.copied().ok_or_else(|| ConfigError::Missing { key: "vocab_size".into() })
}

impl Metadata<'_> {
    fn refuse_unsupported(&self) -> Result<(), ConfigError> {
        let scaling = self.key("rope.scaling.type");
        if let Some(kind) = self.read(&scaling, "text", |value| value.str().map(str::to_owned))?
            && kind != "none"
        {
            return Err(ConfigError::invalid(
                &scaling,
                kind,
                "only the unscaled rotary embedding is known (none)",
            ));
        }
        for key in ["rope.scaling.factor", "rope.scale_linear"].map(|key| self.key(key)) {
            if let Some(factor) = self.read(&key, "a real number", Value::real)?
                && factor != 1.0
                && factor != 0.0
            {
                return Err(ConfigError::invalid(
                    &key,
                    factor,
                    "only the unscaled rotary embedding is known (1)",
                ));
            }
        }
        if self.gguf.tensors.contains_key("rope_freqs.weight") {
            let rule = "only the unscaled rotary embedding is known";
            return Err(ConfigError::invalid("rope_freqs.weight", "a tensor of frequency factors", rule));
        }
        self.must_equal("expert_count", 0, "mixtures of experts are not supported")
    }

    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.family.name())
    }

    fn read<T>(
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

    fn optional_real(&self, suffix: &str) -> Result<Option<f64>, ConfigError> {
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
