"""Trains the tiny model on the generated text and writes config.json and model.safetensors in bf16.

    python train.py train.txt FOLDER --seed 1        (FOLDER holds tokenizer.json)

Rows are windows of the stream of documents, each followed by <|endoftext|>; half of them start at a
document, half anywhere, so that the model meets both kinds of beginning.
"""

import argparse
import math
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from model import CONFIG, Llama, save


def stream(path, tokenizer, end):
    """The token stream and the positions at which its documents start."""
    documents = Path(path).read_text(encoding="utf-8").split("\n\n")
    encoded = tokenizer.encode_batch_fast([d.rstrip("\n") + "\n" for d in documents])
    rows = [np.array(e.ids + [end], dtype=np.int64) for e in encoded]
    starts = np.cumsum([0] + [len(r) for r in rows[:-1]])
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(starts)


def rate(step, steps, peak):
    """Linear warm-up over 2 % of the steps, then a cosine down to 1 % of the peak."""
    warm = max(1, steps // 50)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=64, help="windows a step")
    parser.add_argument("--window", type=int, default=512, help="tokens a window")
    parser.add_argument("--peak", type=float, default=2e-3, help="largest learning rate")
    parser.add_argument("--decay", type=float, default=0.2, help="weight decay of the matrices")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(Path(args.folder) / "tokenizer.json"))
    config = dict(CONFIG, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=args.window)
    tokens, starts = (x.to(device) for x in stream(args.text, tokenizer, config["eos_token_id"]))
    starts = starts[starts < len(tokens) - args.window - 1]
    print(f"{len(tokens)} tokens, {len(starts)} documents, on {device}", flush=True)

    model = Llama(config).to(device)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimiser = torch.optim.AdamW([{"params": matrices, "weight_decay": args.decay},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=args.peak, betas=(0.9, 0.98), fused=device.type == "cuda")
    forward = torch.compile(model) if device.type == "cuda" else model
    mixed = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
    span, begin = torch.arange(args.window + 1, device=device), time.time()
    for step in range(args.steps):
        for group in optimiser.param_groups:
            group["lr"] = rate(step, args.steps, args.peak)
        at = torch.randint(len(tokens) - args.window - 1, (args.rows,), device=device)
        at[::2] = starts[torch.randint(len(starts), (len(at[::2]),), device=device)]
        rows = tokens[at[:, None] + span]
        with mixed:
            logits = forward(rows[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 250 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.4f} seconds {time.time() - begin:.0f}", flush=True)
    save(model, args.folder)


if __name__ == "__main__":
    main()
