"""Train a small byte-level BPE tokenizer, for the tiny checkpoints and for the demo's models."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

END = "<|end|>"
"""The token that ends a text, in every tokenizer trained here."""


def train_bpe(texts: Iterable[str], size: int) -> Any:
    """A byte-level BPE (`tokenizers.Tokenizer`) of at most `size` entries. Each digit is a token; id 0 is END."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Any, target: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into the folder `target`."""
    tokenizer.save(str(target / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": 2**20}
    (target / "tokenizer_config.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
