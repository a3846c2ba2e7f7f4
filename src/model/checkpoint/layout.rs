use std::collections::BTreeMap;
use std::path::Path;

use super::error::{CheckpointError, Fault, NameList};
use super::stored::Stored;
use crate::model::config::{Config, Family};
use crate::model::linear::LinearName;
use crate::model::tensor::{RowOrder, Tensor};
use crate::ops::Dtype;

/// Whose names a container uses for its tensors, and whose order for the rows of q and k.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Naming {
    HuggingFace,
    Gguf,
}

/// One tensor that a model has, or has in each layer; `{}` in a name stands for the layer.
struct Role {
    hf: String,
    gguf: String,
    kind: Kind,
    shape: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Stays as it is.
    Dense,
    Norm,
    /// A layer's linear map, which a packed model holds as a `.blr` payload.
    Linear(LinearName),
    Bias(LinearName),
}

const HEAD: &str = "lm_head.weight";

/// GGUF's names of the linear layers of a block, in the order of [`LinearName::ALL`].
const GGUF_LINEARS: [&str; 7] =
    ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];

/// The tensors outside of the blocks.
fn whole_roles(config: &Config) -> Vec<Role> {
    let (matrix, vector) = (vec![config.vocab, config.hidden], vec![config.hidden]);
    let mut roles = vec![
        Role::new(["model.embed_tokens.weight", "token_embd.weight"], Kind::Dense, matrix.clone()),
        Role::new(["model.norm.weight", "output_norm.weight"], Kind::Norm, vector),
    ];
    if !config.tied {
        roles.push(Role::new([HEAD, "output.weight"], Kind::Dense, matrix));
    }
    roles
}

/// The tensors of every block.
fn layer_roles(config: &Config) -> Vec<Role> {
    let in_layer = |hf: &str, gguf: &str, kind, shape| {
        let names = [format!("model.layers.{{}}.{hf}"), format!("blk.{{}}.{gguf}")];
        Role::new(names.each_ref().map(String::as_str), kind, shape)
    };
    let traits = config.family.traits();
    let mut norms = vec![("input_layernorm", "attn_norm", config.hidden)];
    match traits.post_norms {
        false => norms.push(("post_attention_layernorm", "ffn_norm", config.hidden)),
        true => norms.extend([
            ("post_attention_layernorm", "post_attention_norm", config.hidden),
            ("pre_feedforward_layernorm", "ffn_norm", config.hidden),
            ("post_feedforward_layernorm", "post_ffw_norm", config.hidden),
        ]),
    }
    if traits.qk_norms {
        norms.push(("self_attn.q_norm", "attn_q_norm", config.head_dim));
        norms.push(("self_attn.k_norm", "attn_k_norm", config.head_dim));
    }
    let norms = norms.into_iter().map(|(hf, gguf, len)| {
        in_layer(&format!("{hf}.weight"), &format!("{gguf}.weight"), Kind::Norm, vec![len])
    });
    let linears = LinearName::ALL.into_iter().zip(GGUF_LINEARS).flat_map(|(name, gguf)| {
        let [rows, cols] = name.shape(config);
        let part = |part: &str, kind, shape| {
            in_layer(&format!("{}.{part}", name.suffix()), &format!("{gguf}.{part}"), kind, shape)
        };
        let bias = config.has_bias(name).then(|| part("bias", Kind::Bias(name), vec![rows]));
        [Some(part("weight", Kind::Linear(name), vec![rows, cols])), bias]
    });
    norms.chain(linears.flatten()).collect()
}

/// The tensors that a model of this configuration consists of, by Hugging Face name.
///
/// # Errors
/// All missing tensors at once, a shape or type that is not the configuration's, and tensors that the decoder would
/// silently leave out (biases, adapters). A tied model's own copy of the head and the frequencies that some checkpoints
/// carry are dropped: the configuration determines both.
pub(crate) fn select(
    config: &Config,
    naming: Naming,
    file: &Path,
    mut stored: BTreeMap<String, Stored>,
) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    let mut tensors = BTreeMap::new();
    let mut missing = NameList::default();
    let (whole, in_layer) = (whole_roles(config), layer_roles(config));
    let whole = whole.iter().map(|role| (role, 0));
    let layers = (0..config.layers).flat_map(|layer| in_layer.iter().map(move |role| (role, layer)));
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
    for name in stored.keys().filter(|name| !determined_by_config(config, naming, name)) {
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

fn determined_by_config(config: &Config, naming: Naming, name: &str) -> bool {
    match naming {
        Naming::HuggingFace => name.ends_with(".rotary_emb.inv_freq") || (config.tied && name == HEAD),
        Naming::Gguf => name == "rope_freqs.weight",
    }
}

impl Role {
    fn new([hf, gguf]: [&str; 2], kind: Kind, shape: Vec<usize>) -> Self {
        Self { hf: hf.into(), gguf: gguf.into(), kind, shape }
    }

    fn name_in(&self, naming: Naming, layer: usize) -> String {
        let pattern = match naming {
            Naming::HuggingFace => &self.hf,
            Naming::Gguf => &self.gguf,
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
        if naming == Naming::Gguf || !matches!(self.kind, Kind::Linear(_)) {
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
        if tensor.shape != self.shape {
            let problem = format!("has shape {:?}, the configuration says {:?}", tensor.shape, self.shape);
            return Err(Fault::tensor(name, problem));
        }
        if tensor.dtype == Dtype::U8 {
            return Err(Fault::tensor(name, "holds raw bytes (U8) where numbers are needed"));
        }
        let row_order = row_order(config, naming, self.kind);
        let Stored { dtype, shape, bytes } = tensor;
        let plain = Tensor {
            name: self.name_in(Naming::HuggingFace, layer),
            dtype,
            shape,
            bytes,
            row_order: RowOrder::Plain,
        };
        let offset = config.family.traits().norm_offset;
        Ok(match self.kind {
            Kind::Norm if naming == Naming::Gguf && offset != 0.0 => {
                rewritten(plain, |numbers, i| numbers[i] - offset)
            }
            Kind::Bias(_) if row_order != RowOrder::Plain => {
                rewritten(plain, |numbers, i| numbers[row_order.stored(i)])
            }
            _ => Tensor { row_order, ..plain },
        })
    }
}

/// Where a container has the rows of a linear layer: GGUF interleaves those of q and k for the families whose rotary
/// embedding it computes that way.
fn row_order(config: &Config, naming: Naming, kind: Kind) -> RowOrder {
    let interleaved = naming == Naming::Gguf && matches!(config.family, Family::Llama | Family::Mistral);
    match kind {
        Kind::Linear(LinearName::Q | LinearName::K) | Kind::Bias(LinearName::Q | LinearName::K)
            if interleaved =>
        {
            RowOrder::Interleaved { head_dim: config.head_dim }
        }
        _ => RowOrder::Plain,
    }
}

/// A vector in f32 whose number i is made of the stored ones: vectors are small, and become what Hugging Face stores.
fn rewritten(tensor: Tensor, number: impl Fn(&[f32], usize) -> f32) -> Tensor {
    let numbers = tensor.to_f32();
    let bytes: Vec<u8> = (0..numbers.len()).flat_map(|i| number(&numbers, i).to_le_bytes()).collect();
    Tensor { dtype: Dtype::F32, bytes: bytes.into(), ..tensor }
}

/// A packed layer's bytes; what they hold is checked by [`crate::blr`].
fn payload(name: String, Stored { dtype, shape, bytes }: Stored) -> Result<Tensor, Fault> {
    if dtype != Dtype::U8 || shape.len() != 1 {
        let problem = format!("is {dtype} of shape {shape:?}; a packed payload is a U8 vector");
        return Err(Fault::tensor(&name, problem));
    }
    Ok(Tensor { name, dtype, shape, bytes, row_order: RowOrder::Plain })
}
