use serde_json::{Value, json};

use super::rope::scaling_json;
use super::{Config, Family, Gate, Sliding};
use crate::ops::Dtype;

impl Config {
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
        let (act_key, act) = match self.family.traits().gate {
            Gate::Silu => ("hidden_act", "silu"),
            Gate::GeluTanh => ("hidden_activation", "gelu_pytorch_tanh"),
        };
        let mut config = json!({
            "architectures": [self.family.hf_architecture()],
            "model_type": self.family.hf_model_type(),
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.max_positions,
            act_key: act,
            "rms_norm_eps": self.rms_eps,
            "rope_theta": self.rope.theta,
            "rope_scaling": scaling_json(self.rope.scaling),
            "attention_bias": self.biases.o,
            "attention_dropout": 0.0,
            "mlp_bias": self.biases.mlp,
            "tie_word_embeddings": self.tied,
            "bos_token_id": self.bos,
            "eos_token_id": eos,
            "initializer_range": 0.02,
            "torch_dtype": torch_dtype,
            "use_cache": true,
        });
        self.add_windows(&mut config);
        config
    }

    /// What says which layers slide, for the families that may.
    fn add_windows(&self, config: &mut Value) {
        if self.family == Family::Llama {
            return;
        }
        config["sliding_window"] = json!(self.sliding.as_ref().map(|sliding| sliding.window));
        if let Some(Sliding { layers, .. }) = &self.sliding {
            let kind = |slides: &bool| if *slides { "sliding_attention" } else { "full_attention" };
            config["layer_types"] = layers.iter().map(kind).collect();
        }
        match self.family {
            Family::Qwen2 | Family::Qwen3 => config["use_sliding_window"] = self.sliding.is_some().into(),
            Family::Gemma3 => {
                // The reference takes a whole number.
                config["query_pre_attn_scalar"] = match self.score_scalar {
                    Some(scalar) if scalar.fract() == 0.0 => json!(scalar as u64),
                    other => json!(other),
                };
                let local = self.sliding.as_ref().map(|sliding| sliding.rope.theta);
                config["rope_local_base_freq"] = json!(local);
            }
            Family::Llama | Family::Mistral => {}
        }
    }
}
