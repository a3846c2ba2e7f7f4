use std::collections::BTreeMap;
use std::path::Path;

use super::error::{CheckpointError, Fault, NameList};
use super::stored::Stored;
use crate::model::config::Config;
use crate::model::tensor::{RowOrder, Tensor};
use crate::ops::Dtype;

/// Whose names a container uses for its tensors, and whose order for the rows of q and k.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Naming {
    HuggingFace,
    Gguf,
}

/// One kind of tensor of a Llama model; `{}` in a name stands for the layer.
struct Role {
    hf: &'static str,
    gguf: &'static str,
    kind: Kind,
    shape: fn(&Config) -> Vec<usize>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Stays as it is.
    Dense,
    /// A layer's linear map, which a packed model holds as a `.blr` payload.
    Linear,
    /// The same, with rows in pairs for the rotary embedding.
    RotaryLinear,
}

const EMBEDDING: Role = Role {
    hf: "model.embed_tokens.weight",
    gguf: "token_embd.weight",
    kind: Kind::Dense,
    shape: |c| vec![c.vocab, c.hidden],
};
const FINAL_NORM: Role = Role {
    hf: "model.norm.weight",
    gguf: "output_norm.weight",
    kind: Kind::Dense,
    shape: |c| vec![c.hidden],
};
const HEAD: Role = Role {
    hf: "lm_head.weight",
    gguf: "output.weight",
    kind: Kind::Dense,
    shape: |c| vec![c.vocab, c.hidden],
};

const LAYER: [Role; 9] = [
    Role {
        hf: "model.layers.{}.input_layernorm.weight",
        gguf: "blk.{}.attn_norm.weight",
        kind: Kind::Dense,
        shape: |c| vec![c.hidden],
    },
    Role {
        hf: "model.layers.{}.self_attn.q_proj.weight",
        gguf: "blk.{}.attn_q.weight",
        kind: Kind::RotaryLinear,
        shape: |c| vec![c.heads * c.head_dim, c.hidden],
    },
    Role {
        hf: "model.layers.{}.self_attn.k_proj.weight",
        gguf: "blk.{}.attn_k.weight",
        kind: Kind::RotaryLinear,
        shape: |c| vec![c.kv_heads * c.head_dim, c.hidden],
    },
    Role {
        hf: "model.layers.{}.self_attn.v_proj.weight",
        gguf: "blk.{}.attn_v.weight",
        kind: Kind::Linear,
        shape: |c| vec![c.kv_heads * c.head_dim, c.hidden],
    },
    Role {
        hf: "model.layers.{}.self_attn.o_proj.weight",
        gguf: "blk.{}.attn_output.weight",
        kind: Kind::Linear,
        shape: |c| vec![c.hidden, c.heads * c.head_dim],
    },
    Role {
        hf: "model.layers.{}.post_attention_layernorm.weight",
        gguf: "blk.{}.ffn_norm.weight",
        kind: Kind::Dense,
        shape: |c| vec![c.hidden],
    },
    Role {
        hf: "model.layers.{}.mlp.gate_proj.weight",
        gguf: "blk.{}.ffn_gate.weight",
        kind: Kind::Linear,
        shape: |c| vec![c.intermediate, c.hidden],
    },
    Role {
        hf: "model.layers.{}.mlp.up_proj.weight",
        gguf: "blk.{}.ffn_up.weight",
        kind: Kind::Linear,
        shape: |c| vec![c.intermediate, c.hidden],
    },
    Role {
        hf: "model.layers.{}.mlp.down_proj.weight",
        gguf: "blk.{}.ffn_down.weight",
        kind: Kind::Linear,
        shape: |c| vec![c.hidden, c.intermediate],
    },
];

/// The tensors that a model of this configuration consists of, by Hugging Face name.
///
/// # Errors
/// All missing tensors at once, a shape or type that is not the configuration's, and tensors that the decoder would
/// silently leave out (biases, adapters). A tied model's own copy of the head and the inverse frequencies that old
/// checkpoints carry are dropped: the configuration determines both.
pub(crate) fn select(
    config: &Config,
    naming: Naming,
    file: &Path,
    mut stored: BTreeMap<String, Stored>,
) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    let mut tensors = BTreeMap::new();
    let mut missing = NameList::default();
    let head = (!config.tied).then_some(&HEAD);
    let whole = [&EMBEDDING, &FINAL_NORM].into_iter().chain(head).map(|role| (role, 0));
    let layers = (0..config.layers).flat_map(|layer| LAYER.iter().map(move |role| (role, layer)));
    for (role, layer) in whole.chain(layers) {
        match role.take(config, naming, layer, &mut stored).map_err(|fault| fault.in_file(file))? {
            Some(tensor) => drop(tensors.insert(tensor.name.clone(), tensor)),
            None => missing.push(&role.name_in(naming, layer)),
        }
    }
    let (file, family) = (file.to_owned(), config.family.name());
    if missing.count > 0 {
        return Err(CheckpointError::MissingTensors {
            file,
            family,
            count: missing.count,
            names: missing.finish(),
        });
    }
    let mut unknown = NameList::default();
    for name in stored.keys().filter(|name| !determined_by_config(config, name)) {
        unknown.push(name);
    }
    if unknown.count > 0 {
        return Err(CheckpointError::UnknownTensors {
            file,
            family,
            count: unknown.count,
            names: unknown.finish(),
        });
    }
    Ok(tensors)
}

fn determined_by_config(config: &Config, name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || (config.tied && name == HEAD.hf)
}

impl Role {
    fn name_in(&self, naming: Naming, layer: usize) -> String {
        let pattern = match naming {
            Naming::HuggingFace => self.hf,
            Naming::Gguf => self.gguf,
        };
        pattern.replace("{}", &layer.to_string())
    }

    /// Moves this role's tensor of `layer`, or the packed payload in its place, out of `stored`.
    fn take(
        &self,
        config: &Config,
        naming: Naming,
        layer: usize,
        stored: &mut BTreeMap<String, Stored>,
    ) -> Result<Option<Tensor>, Fault> {
        let name = self.name_in(naming, layer);
        if let Some(tensor) = stored.remove(&name) {
            return self.weight(config, naming, layer, &name, tensor).map(Some);
        }
        if naming == Naming::Gguf || self.kind == Kind::Dense {
            return Ok(None);
        }
        let name = format!("{}.blr", name.trim_end_matches(".weight"));
        stored.remove(&name).map(|tensor| payload(name, tensor)).transpose()
    }

    fn weight(
        &self,
        config: &Config,
        naming: Naming,
        layer: usize,
        name: &str,
        tensor: Stored,
    ) -> Result<Tensor, Fault> {
        let expected = (self.shape)(config);
        if tensor.shape != expected {
            let problem = format!("has shape {:?}, the configuration says {expected:?}", tensor.shape);
            return Err(Fault::tensor(name, problem));
        }
        if tensor.dtype == Dtype::U8 {
            return Err(Fault::tensor(name, "holds raw bytes (U8) where numbers are needed"));
        }
        let row_order = match (naming, self.kind) {
            (Naming::Gguf, Kind::RotaryLinear) => RowOrder::Interleaved { head_dim: config.head_dim },
            _ => RowOrder::Plain,
        };
        let Stored { dtype, shape, bytes } = tensor;
        Ok(Tensor { name: self.name_in(Naming::HuggingFace, layer), dtype, shape, bytes, row_order })
    }
}

/// A packed layer's bytes; what they hold is checked by [`crate::blr`].
fn payload(name: String, Stored { dtype, shape, bytes }: Stored) -> Result<Tensor, Fault> {
    if dtype != Dtype::U8 || shape.len() != 1 {
        let problem = format!("is {dtype} of shape {shape:?}; a packed payload is a U8 vector");
        return Err(Fault::tensor(&name, problem));
    }
    Ok(Tensor { name, dtype, shape, bytes, row_order: RowOrder::Plain })
}
