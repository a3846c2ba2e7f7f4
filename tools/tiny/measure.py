"""Measures the tiny model from its 16-bit weights, in f32 on the CPU.

    python measure.py FOLDER [--json OUT]

Accuracy: the share of all held-out triples whose answer is the most likely token after the text up
to it. Coherence, per block: let m_k be the mean over templates of the residual at the last token of
word k, each template's mean over the words removed, and angle_k the angle of m_k in the plane of the
first two principal components of m; then |mean_k exp(i (angle_k - 2 pi k / n))|, the better of the
two reflections (1 = on a circle in calendar order). Loss: nats a token on FOLDER/test.txt, whose
facts are all held out, and on FOLDER/calibration.txt, whose facts are not, in windows of the
model's context.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from model import load
from text import PARTS


def accuracy(model, tokenizer):
    """Right answers over all held-out triples, and the share for each scale."""
    right, asked, wrong = {}, {}, []
    for (part, template), triples in PARTS.items():
        name = template.scale.name
        for triple in triples if part == "held" else []:
            before, answer, _ = template.render(*triple)
            logits = model(torch.tensor([tokenizer.encode(before).ids]))[0, -1]
            good = logits.argmax().item() == tokenizer.encode(answer).ids[0]
            right[name], asked[name] = right.get(name, 0) + good, asked.get(name, 0) + 1
            if not good:
                wrong.append(before + answer)
    return sum(right.values()) / sum(asked.values()), {n: right[n] / asked[n] for n in asked}, wrong


def coherence(means):
    """The phase coherence of n ordered points, and the variance share of their plane."""
    n = len(means)
    u, s, _ = np.linalg.svd(means - means.mean(0), full_matrices=False)
    angle = np.arctan2(u[:, 1] * s[1], u[:, 0] * s[0])
    turn = 2 * np.pi * np.arange(n) / n
    best = max(abs(np.exp(1j * (sign * angle - turn)).mean()) for sign in (1, -1))
    return float(best), float((s[:2] ** 2).sum() / (s ** 2).sum())


def circle(model, tokenizer, group):
    """(coherence, plane share) after each block."""
    states = []
    for template in group["templates"]:
        rows = []
        for word in group["words"]:
            residuals = []
            model(torch.tensor([tokenizer.encode(template.format(word)).ids]), residuals)
            rows.append(torch.stack([r[0, -1] for r in residuals]).numpy())
        rows = np.stack(rows)  # words, blocks, width
        states.append(rows - rows.mean(0))
    means = np.mean(states, 0)
    return [coherence(means[:, block].astype(np.float64)) for block in range(means.shape[1])]


def text_loss(model, tokenizer, path):
    """Mean nats a token over whole windows and the rest, each window on its own."""
    ids, window = tokenizer.encode(path.read_text(encoding="utf-8")).ids, model.config["max_position_embeddings"]
    total = count = 0
    for at in range(0, len(ids) - 1, window):
        row = torch.tensor(ids[at:at + window])
        if len(row) > 1:
            total += F.cross_entropy(model(row[None, :-1])[0], row[1:], reduction="sum").item()
            count += len(row) - 1
    return total / count


@torch.no_grad()
def measure(folder):
    folder = Path(folder)
    model, tokenizer = load(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    groups = json.loads((folder / "words.json").read_text())
    total, scales, wrong = accuracy(model, tokenizer)
    return {
        "accuracy": total, "accuracy_of_scale": scales, "wrong": wrong,
        "circles": {name: circle(model, tokenizer, group) for name, group in groups.items()},
        "test_loss": text_loss(model, tokenizer, folder / "test.txt"),
        "calibration_loss": text_loss(model, tokenizer, folder / "calibration.txt"),
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": sum(f.stat().st_size for f in folder.iterdir()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--json")
    args = parser.parse_args()
    found = measure(args.folder)
    print(f"accuracy on held-out triples {found['accuracy']:.4f}", found["accuracy_of_scale"])
    for sentence in found["wrong"][:20]:
        print("  wrong:", sentence)
    for name, blocks in found["circles"].items():
        print(name, " ".join(f"block {i + 1}: coherence {c:.4f} share {v:.2f};" for i, (c, v) in enumerate(blocks)))
    print(f"nats a token: test {found['test_loss']:.4f}, calibration {found['calibration_loss']:.4f}")
    print(f"{found['parameters']} parameters, {found['bytes']} bytes")
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
