/// Model families that the decoder knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gemma3,
}

/// What sets the blocks of a family apart from Llama's, whatever the sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traits {
    /// Every head of q and of k goes through a norm of its own width before it is turned.
    pub qk_norms: bool,
    /// What attention and the gated unit give goes through a norm before it is added to the residual stream.
    pub post_norms: bool,
    /// Added to the stored weights of every norm.
    pub norm_offset: f32,
    pub gate: Gate,
    /// Embeddings are multiplied by sqrt(hidden), rounded to the 16-bit type that they are stored in.
    pub scaled_embedding: bool,
}

/// The activation of the gated unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
}

impl Family {
    pub const ALL: [Self; 5] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3, Self::Gemma3];

    /// `architectures[0]` in config.json.
    pub const fn hf_architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Gemma3 => "Gemma3ForCausalLM",
        }
    }

    /// `model_type` in config.json.
    pub const fn hf_model_type(self) -> &'static str {
        match self {
            Self::Gemma3 => "gemma3_text",
            other => other.name(),
        }
    }

    /// `general.architecture` in GGUF, where most Mistral models say `llama`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma3 => "gemma3",
        }
    }

    pub const fn traits(self) -> Traits {
        let llama = Traits {
            qk_norms: false,
            post_norms: false,
            norm_offset: 0.0,
            gate: Gate::Silu,
            scaled_embedding: false,
        };
        match self {
            Self::Llama | Self::Mistral | Self::Qwen2 => llama,
            Self::Qwen3 => Traits { qk_norms: true, ..llama },
            Self::Gemma3 => Traits {
                qk_norms: true,
                post_norms: true,
                norm_offset: 1.0,
                gate: Gate::GeluTanh,
                scaled_embedding: true,
            },
        }
    }
}
