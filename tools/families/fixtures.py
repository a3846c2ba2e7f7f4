"""Tiny models of every family with random weights, and the logits that the reference implementation gives them.

    python fixtures.py ../../tests/families

Each folder holds config.json and model.safetensors as transformers writes them, and expected.safetensors: `tokens` (I64)
and `logits` (F32, tokens x vocabulary), computed in f32 on the CPU without a cache. The texts are longer than every
sliding window, and than the context that scaled rotary embeddings start from.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

TOKENS = 40
SIZES = dict(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
SLIDING, FULL = "sliding_attention", "full_attention"
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
GEMMA_ROPE = {
    SLIDING: dict(rope_type="default", rope_theta=10000.0),
    FULL: dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
}

# Name: configuration, and the type that the weights are stored in.
FAMILIES = {
    "mistral": (MistralConfig(**SIZES, sliding_window=8, rope_theta=10000.0), torch.float16),
    "qwen2": (
        Qwen2Config(
            **SIZES,
            tie_word_embeddings=True,
            use_sliding_window=True,
            sliding_window=7,
            max_window_layers=1,
        ),
        torch.float32,
    ),
    "qwen3": (Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=False), torch.float16),
    "gemma3": (
        Gemma3TextConfig(
            **SIZES,
            head_dim=16,
            query_pre_attn_scalar=24,
            sliding_window=8,
            layer_types=[SLIDING, FULL, SLIDING],
            rope_parameters=GEMMA_ROPE,
        ),
        torch.float32,
    ),
    "llama3": (
        LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3),
        torch.float16,
    ),
}


def randomise(model, centre_of_norms, random):
    """Weights whose activations stay of order one, and no number that could hide a mistake by being 0 or 1."""
    for name, weight in model.named_parameters():
        numbers = torch.randn(weight.shape, generator=random)
        if name.endswith(".bias"):
            numbers *= 0.5
        elif "norm" in name:
            numbers = centre_of_norms + 0.3 * numbers
        elif "embed_tokens" not in name:
            numbers *= 1.2 / weight.shape[1] ** 0.5
        weight.data.copy_(numbers)


def main(folder):
    random = torch.Generator().manual_seed(7)
    for name, (config, stored) in FAMILIES.items():
        config._attn_implementation = "eager"
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomise(model, 0.0 if name == "gemma3" else 1.0, random)
        model.to(stored).save_pretrained(folder / name)
        (folder / name / "generation_config.json").unlink(missing_ok=True)
        # From the stored numbers, in f32.
        model = AutoModelForCausalLM.from_pretrained(
            folder / name, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        tokens = torch.randint(0, config.vocab_size, (TOKENS,), generator=random)
        with torch.no_grad():
            logits = model(tokens[None], use_cache=False).logits[0]
        save_file({"tokens": tokens, "logits": logits.contiguous()}, folder / name / "expected.safetensors")
        size = sum(tensor.numel() for tensor in load_file(folder / name / "model.safetensors").values())
        print(f"{name}: {size} weights, logits within ±{logits.abs().max():.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
