"""The Llama decoder in plain PyTorch, with Hugging Face's names, order of rows and rounding to 16 bits."""

import json
import struct
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 192, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None,
    "max_position_embeddings": 512, "vocab_size": 0, "tie_word_embeddings": True, "attention_bias": False,
    "mlp_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "bos_token_id": None, "eos_token_id": 0,
    "use_cache": True, "torch_dtype": "bfloat16",
}


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last axis."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


def rotate(x, cos, sin):
    """Rotary positions; the two halves of a head are the pairs."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.width = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        hidden = c["hidden_size"]
        self.q_proj = nn.Linear(hidden, self.heads * self.width, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.width, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.width, hidden, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape

        def split(y, heads):
            return y.view(b, t, heads, self.width).transpose(1, 2)

        q = rotate(split(self.q_proj(x), self.heads), cos, sin)
        k = rotate(split(self.k_proj(x), self.kv_heads), cos, sin)
        v = split(self.v_proj(x), self.kv_heads)
        group = self.heads // self.kv_heads
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype).repeat_interleave(group, 1),
                                           v.repeat_interleave(group, 1), is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, inner = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config, self.model = c, Decoder(c)
        frequency = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        angle = torch.outer(torch.arange(c["max_position_embeddings"]).float(), frequency)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        deep = (2 * c["num_hidden_layers"]) ** -0.5
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=c["initializer_range"] * (deep if "o_proj" in name or "down" in name else 1))

    def forward(self, tokens, residuals=None):
        """Logits of shape (batch, time, vocabulary); the output of every block is appended to `residuals`."""
        t = tokens.shape[1]
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, self.cos[:t], self.sin[:t])
            if residuals is not None:
                residuals.append(x)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


def save(model, folder):
    """config.json and model.safetensors: 8 bytes of header length, the JSON header, the bf16 values."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    header, parts, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, value in sorted(model.state_dict().items()):
        data = value.detach().cpu().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()
        header[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": [offset, offset + len(data)]}
        parts.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    (folder / "config.json").write_text(json.dumps(model.config, indent=1) + "\n")


def load(folder):
    """The model of a folder in f32, from its 16-bit values."""
    folder = Path(folder)
    model = Llama(json.loads((folder / "config.json").read_text()))
    raw = (folder / "model.safetensors").read_bytes()
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    state = {}
    for name, entry in json.loads(raw[8:end]).items():
        if name != "__metadata__":
            low, high = entry["data_offsets"]
            bits = np.frombuffer(raw[end + low:end + high], dtype=np.uint16).astype(np.uint32) << 16
            state[name] = torch.from_numpy(bits.view(np.float32).reshape(entry["shape"]).copy())
    model.load_state_dict(state)
    return model.eval()
