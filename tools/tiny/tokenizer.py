"""Trains the byte-level BPE tokenizer on the generated text and writes it in Hugging Face's form.

    python tokenizer.py train.txt OUT_DIR

Token 0 is <|endoftext|>, then the 256 bytes, then the merges: any text can be encoded. No token is
added before or after a text.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from text import MONTH, NUMBERS, WEEKDAY

END = "<|endoftext|>"
VOCABULARY = 864  # a multiple of 8; the merges that it leaves out are those of the rarest pieces


def train(text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, min_frequency=2, special_tokens=[END],
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def check(tokenizer):
    """Every word of the scales is one token, and any text comes back."""
    for word in [*WEEKDAY.words, *MONTH.words, *NUMBERS]:
        pieces = tokenizer.encode(" " + word).tokens
        assert len(pieces) == 1, f"' {word}' became {pieces}"
    sample = "Zürich 2026: 🙂\ttabs\n and \x00 bytes"
    assert tokenizer.decode(tokenizer.encode(sample).ids) == sample
    assert tokenizer.token_to_id(END) == 0


def main():
    source, out = sys.argv[1], Path(sys.argv[2])
    with open(source, encoding="utf-8") as file:
        tokenizer = train(file.read(4_000_000))
    check(tokenizer)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "add_prefix_space": False,
                "bos_token": None, "eos_token": END, "clean_up_tokenization_spaces": False, "model_max_length": 512}
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    print(f"{tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
