//! Small valid checkpoints of a Llama with random weights, and writers that can lie.

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub const HIDDEN: u64 = 32;
pub const INTERMEDIATE: u64 = 64;
pub const LAYERS: u64 = 2;
pub const KV: u64 = 16;
pub const VOCAB: u64 = 12;

/// Splitmix64 (Steele, Lea & Flood 2014): small, and the same on every machine.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// Shape of each tensor of a layer, slowest first, by Hugging Face and GGUF suffix.
const LAYER: [(&str, &str, &[u64]); 9] = [
    ("input_layernorm", "attn_norm", &[HIDDEN]),
    ("self_attn.q_proj", "attn_q", &[HIDDEN, HIDDEN]),
    ("self_attn.k_proj", "attn_k", &[KV, HIDDEN]),
    ("self_attn.v_proj", "attn_v", &[KV, HIDDEN]),
    ("self_attn.o_proj", "attn_output", &[HIDDEN, HIDDEN]),
    ("post_attention_layernorm", "ffn_norm", &[HIDDEN]),
    ("mlp.gate_proj", "ffn_gate", &[INTERMEDIATE, HIDDEN]),
    ("mlp.up_proj", "ffn_up", &[INTERMEDIATE, HIDDEN]),
    ("mlp.down_proj", "ffn_down", &[HIDDEN, INTERMEDIATE]),
];

pub enum Meta {
    U32(u32),
    U64(u64),
    F32(f32),
    Bool(u8),
    Text(Vec<u8>),
    Texts(Vec<String>),
    I32(i32),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    /// A type number and its bytes, whatever they are.
    Raw(u32, Vec<u8>),
}

pub struct GgufTensor {
    pub name: String,
    /// Fastest first, as the file has it.
    pub dims: Vec<u64>,
    pub kind: u32,
    /// Offset to write in place of the true one.
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

/// What is written to a GGUF file.
pub struct GgufFile {
    pub magic: [u8; 4],
    pub version: u32,
    pub tensor_count: Option<u64>,
    pub entry_count: Option<u64>,
    pub metadata: Vec<(String, Meta)>,
    pub tensors: Vec<GgufTensor>,
    pub alignment: usize,
}

/// A written file, and where its integers are: (offset, bytes).
#[derive(Default)]
pub struct Written {
    pub bytes: Vec<u8>,
    pub fields: Vec<(usize, usize)>,
}

impl GgufFile {
    pub fn tiny() -> Self {
        let text = |text: &str| Meta::Text(text.into());
        let metadata = [
            ("general.architecture", text("llama")),
            ("general.languages", Meta::Texts(vec!["en".into()])),
            ("llama.block_count", Meta::U32(LAYERS as u32)),
            ("llama.context_length", Meta::U32(128)),
            ("llama.embedding_length", Meta::U32(HIDDEN as u32)),
            ("llama.feed_forward_length", Meta::U32(INTERMEDIATE as u32)),
            ("llama.attention.head_count", Meta::U32(4)),
            ("llama.attention.head_count_kv", Meta::U32(2)),
            ("llama.rope.freq_base", Meta::F32(100_000.0)),
            ("llama.rope.dimension_count", Meta::U32(8)),
            ("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
            ("llama.vocab_size", Meta::U32(VOCAB as u32)),
            ("tokenizer.ggml.model", text("gpt2")),
            ("tokenizer.ggml.pre", text("smollm")),
            ("tokenizer.ggml.tokens", Meta::Texts(tokens())),
            ("tokenizer.ggml.token_type", Meta::I32s(vec![3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4])),
            ("tokenizer.ggml.merges", Meta::Texts(merges())),
            ("tokenizer.ggml.bos_token_id", Meta::U32(0)),
            ("tokenizer.ggml.eos_token_id", Meta::U32(0)),
            ("tokenizer.ggml.add_bos_token", Meta::Bool(1)),
            ("tokenizer.chat_template", text("{{ messages }}")),
        ];
        let mut rng = Rng(1);
        let mut tensors = vec![
            GgufTensor::random("token_embd.weight", &[VOCAB, HIDDEN], 8, &mut rng),
            GgufTensor::random("output_norm.weight", &[HIDDEN], 0, &mut rng),
        ];
        for layer in 0..LAYERS {
            for (number, (_, name, shape)) in LAYER.into_iter().enumerate() {
                let kind =
                    if shape.len() == 1 { 0 } else { [2, 3, 8, 1, 30, 6, 7][(number + layer as usize) % 7] };
                tensors.push(GgufTensor::random(
                    &format!("blk.{layer}.{name}.weight"),
                    shape,
                    kind,
                    &mut rng,
                ));
            }
        }
        Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            entry_count: None,
            metadata: metadata.map(|(key, value)| (key.to_owned(), value)).into(),
            tensors,
            alignment: 32,
        }
    }

    /// The same model with a SentencePiece tokenizer: [`spm_tokens`] in the place of [`tokens`].
    pub fn spm() -> Self {
        let mut file = Self::tiny();
        let tokens = spm_tokens();
        let kind = |token: &String| match token.as_str() {
            "<unk>" => 2,
            "<s>" => 3,
            "<tool>" => 4,
            byte if byte.starts_with("<0x") => 6,
            _ => 1,
        };
        let rows = tokens.len() as u64;
        file.set("llama.vocab_size", Meta::U32(rows as u32));
        *file.tensor("token_embd.weight") =
            GgufTensor::random("token_embd.weight", &[rows, HIDDEN], 8, &mut Rng(6));
        file.metadata.retain(|(key, _)| !key.ends_with(".pre") && !key.ends_with(".merges"));
        file.set("tokenizer.ggml.model", Meta::Text("llama".into()));
        file.set("tokenizer.ggml.token_type", Meta::I32s(tokens.iter().map(kind).collect()));
        file.set("tokenizer.ggml.scores", Meta::F32s((0..tokens.len()).map(|id| -(id as f32)).collect()));
        file.set("tokenizer.ggml.tokens", Meta::Texts(tokens));
        file.set("tokenizer.ggml.unknown_token_id", Meta::U32(0));
        file.set("tokenizer.ggml.bos_token_id", Meta::U32(1));
        file.set("tokenizer.ggml.eos_token_id", Meta::U32(1));
        file
    }

    /// The file cut into parts, metadata in the first; by the names that belong to them.
    pub fn parts(self, count: usize) -> Vec<(String, Self)> {
        let mut parts: Vec<Self> = Vec::new();
        let (total, len) = (self.tensors.len(), self.tensors.len().div_ceil(count));
        let mut tensors = self.tensors.into_iter();
        let mut metadata = self.metadata;
        for number in 0..count {
            let mut part = Self { metadata, tensors: tensors.by_ref().take(len).collect(), ..Self::tiny() };
            part.set("split.no", Meta::U32(number as u32));
            part.set("split.count", Meta::U32(count as u32));
            part.set("split.tensors.count", Meta::I32(total as i32));
            parts.push(part);
            metadata = Vec::new();
        }
        let name = |number: usize| format!("tiny-{:05}-of-{count:05}.gguf", number + 1);
        parts.into_iter().enumerate().map(|(number, part)| (name(number), part)).collect()
    }

    /// Replaces a metadata value, or adds it.
    pub fn set(&mut self, key: &str, value: Meta) {
        self.metadata.retain(|(known, _)| known != key);
        self.metadata.push((key.into(), value));
    }

    pub fn tensor(&mut self, name: &str) -> &mut GgufTensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of the fixture")
    }

    pub fn write(&self) -> Written {
        let mut out = Writer::default();
        out.0.bytes.extend(self.magic);
        out.int(self.version.into(), 4);
        out.int(self.tensor_count.unwrap_or(self.tensors.len() as u64), 8);
        out.int(self.entry_count.unwrap_or(self.metadata.len() as u64), 8);
        for (key, value) in &self.metadata {
            out.text(key.as_bytes());
            out.meta(value);
        }
        let mut at = 0;
        for tensor in &self.tensors {
            out.text(tensor.name.as_bytes());
            out.int(tensor.dims.len() as u64, 4);
            tensor.dims.iter().for_each(|size| out.int(*size, 8));
            out.int(tensor.kind.into(), 4);
            out.int(tensor.offset.unwrap_or(at), 8);
            at += tensor.data.len().next_multiple_of(self.alignment) as u64;
        }
        let mut written = out.0;
        for tensor in &self.tensors {
            written.bytes.resize(written.bytes.len().next_multiple_of(self.alignment), 0);
            written.bytes.extend(&tensor.data);
        }
        written
    }
}

impl GgufTensor {
    pub fn random(name: &str, shape: &[u64], kind: u32, rng: &mut Rng) -> Self {
        let (block, bytes) = match kind {
            0 => (1, 4),
            1 | 30 => (1, 2),
            2 => (32, 18),
            3 => (32, 20),
            6 => (32, 22),
            7 => (32, 24),
            8 => (32, 34),
            other => panic!("the fixture has no type {other}"),
        };
        let len = shape.iter().product::<u64>() / block * bytes;
        let data = (0..len).map(|_| rng.next() as u8).collect();
        Self { name: name.into(), dims: shape.iter().rev().copied().collect(), kind, offset: None, data }
    }
}

#[derive(Default)]
struct Writer(Written);

impl Writer {
    fn int(&mut self, value: u64, bytes: usize) {
        self.0.fields.push((self.0.bytes.len(), bytes));
        self.0.bytes.extend(&value.to_le_bytes()[..bytes]);
    }

    fn text(&mut self, text: &[u8]) {
        self.int(text.len() as u64, 8);
        self.0.bytes.extend(text);
    }

    fn meta(&mut self, value: &Meta) {
        let kind = match value {
            Meta::U32(_) => 4,
            Meta::U64(_) => 10,
            Meta::F32(_) => 6,
            Meta::Bool(_) => 7,
            Meta::Text(_) => 8,
            Meta::I32(_) => 5,
            Meta::Texts(_) | Meta::I32s(_) | Meta::F32s(_) => 9,
            Meta::Raw(kind, _) => *kind,
        };
        self.int(kind.into(), 4);
        match value {
            Meta::U32(value) => self.int((*value).into(), 4),
            Meta::U64(value) => self.int(*value, 8),
            Meta::F32(value) => self.int(value.to_bits().into(), 4),
            Meta::Bool(value) => self.int((*value).into(), 1),
            Meta::Text(text) => self.text(text),
            Meta::Texts(texts) => {
                self.int(8, 4);
                self.int(texts.len() as u64, 8);
                texts.iter().for_each(|text| self.text(text.as_bytes()));
            }
            Meta::I32s(values) => {
                self.int(5, 4);
                self.int(values.len() as u64, 8);
                values.iter().for_each(|value| self.int(*value as u32 as u64, 4));
            }
            Meta::I32(value) => self.int(*value as u32 as u64, 4),
            Meta::F32s(values) => {
                self.int(6, 4);
                self.int(values.len() as u64, 8);
                values.iter().for_each(|value| self.int(value.to_bits().into(), 4));
            }
            Meta::Raw(_, bytes) => self.0.bytes.extend(bytes),
        }
    }
}

/// The better the earlier: three specials, bytes, letters and what they merge to.
pub fn spm_tokens() -> Vec<String> {
    let specials = ["<unk>", "<s>", "<tool>"].map(String::from);
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let pieces =
        ["ab", "▁a", "bc", "▁▁", "abc", "▁abc", "cb", "a1", "▁", "a", "b", "c", "1", "é"].map(String::from);
    specials.into_iter().chain(bytes).chain(pieces).collect()
}

pub fn tokens() -> Vec<String> {
    ["<s>", "a", "b", "c", "Ġ", "1", "2", "ab", "Ġa", "abc", "Ċ", "<tool>"].map(String::from).into()
}

pub fn merges() -> Vec<String> {
    ["a b", "Ġ a", "ab c"].map(String::from).into()
}

pub struct SafeTensor {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    /// Offsets to write in place of the true ones.
    pub offsets: Option<[u64; 2]>,
    pub data: Vec<u8>,
}

impl SafeTensor {
    pub fn random(name: &str, shape: &[u64], dtype: &'static str, rng: &mut Rng) -> Self {
        let bytes = match dtype {
            "F32" => 4,
            "F16" | "BF16" => 2,
            _ => 1,
        };
        let data = (0..shape.iter().product::<u64>() * bytes).map(|_| rng.next() as u8).collect();
        Self { name: name.into(), dtype, shape: shape.into(), offsets: None, data }
    }
}

/// The files of a Hugging Face folder, by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What is written to a Hugging Face folder: the tensors go to one file, or in turn to `shards` of them.
pub struct HfModel {
    pub config: Value,
    pub tensors: Vec<SafeTensor>,
    pub shards: usize,
}

impl HfModel {
    pub fn tiny() -> Self {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 128, "rope_theta": 100000.0,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 0,
            "rope_scaling": null, "attention_bias": false, "hidden_act": "silu", "torch_dtype": "bfloat16",
        });
        let mut rng = Rng(2);
        let mut tensors = vec![
            SafeTensor::random("model.embed_tokens.weight", &[VOCAB, HIDDEN], "BF16", &mut rng),
            SafeTensor::random("model.norm.weight", &[HIDDEN], "F32", &mut rng),
            SafeTensor::random("lm_head.weight", &[VOCAB, HIDDEN], "F16", &mut rng),
        ];
        for layer in 0..LAYERS {
            for (number, (name, _, shape)) in LAYER.into_iter().enumerate() {
                let name = format!("model.layers.{layer}.{name}.weight");
                tensors.push(SafeTensor::random(&name, shape, ["F32", "F16", "BF16"][number % 3], &mut rng));
            }
        }
        Self { config, tensors, shards: 0 }
    }

    pub fn tensor(&mut self, name: &str) -> &mut SafeTensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of the fixture")
    }

    pub fn write(&self) -> Files {
        let mut files = Files::from([
            ("config.json".into(), self.config.to_string().into_bytes()),
            ("tokenizer.json".into(), tokenizer_json().into_bytes()),
            ("generation_config.json".into(), br#"{"eos_token_id": [0, 11]}"#.to_vec()),
            ("tokenizer_config.json".into(), br#"{"chat_template": "{{ messages }}"}"#.to_vec()),
        ]);
        if self.shards == 0 {
            files.insert("model.safetensors".into(), safetensors(&self.tensors.iter().collect::<Vec<_>>()));
            return files;
        }
        let mut map = serde_json::Map::new();
        for shard in 0..self.shards {
            let name = format!("model-{shard}.safetensors");
            let held: Vec<_> = self.tensors.iter().skip(shard).step_by(self.shards).collect();
            map.extend(held.iter().map(|tensor| (tensor.name.clone(), json!(name))));
            files.insert(name, safetensors(&held));
        }
        let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
        files.insert("model.safetensors.index.json".into(), index.to_string().into_bytes());
        files
    }
}

/// A safetensors file, written by hand so that its header can say anything.
pub fn safetensors(tensors: &[&SafeTensor]) -> Vec<u8> {
    let mut entries = vec![r#""__metadata__":{"format":"pt"}"#.to_owned()];
    let mut at = 0;
    for tensor in tensors {
        let end = at + tensor.data.len() as u64;
        let offsets = tensor.offsets.unwrap_or([at, end]);
        let info = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets});
        entries.push(format!("{}:{info}", json!(tensor.name)));
        at = end;
    }
    let data: Vec<u8> = tensors.iter().flat_map(|tensor| tensor.data.iter().copied()).collect();
    with_header(&format!("{{{}}}", entries.join(",")), &data)
}

pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

pub fn tokenizer_json() -> String {
    let vocab: serde_json::Map<_, _> = tokens().into_iter().zip((0..).map(|id: u32| json!(id))).collect();
    json!({
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges()},
    })
    .to_string()
}
