"""The demo's tokenizer: a byte-level BPE of 1,280 entries, digits one by one, trained on the demo's kinds of text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from harness.demo.documents import HEAD, NEEDLE, PREFIX, QUESTION, TRAIN_PROSE
from harness.demo.prose import sentences
from harness.demo.questions import (
    CHOICE_INTRO,
    choice,
    choice_answer,
    choice_body,
    problem,
    problem_answer,
    problem_body,
)
from tasks.ruler.protocol import FAMILIES, NOISE
from tasks.ruler.words import word_list

SIZE = 1280
END = "<|end|>"


def train_tokenizer() -> Any:
    """The tokenizer (`tokenizers.Tokenizer`), always the same one; a second of work. Id 0 ends a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=[END], initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return tokenizer


def _texts() -> Iterator[str]:
    for kind in ("adjective", "noun"):
        for word in word_list(kind):
            yield from (f" {word}-", f"-{word}", word) if kind == "adjective" else (f"-{word}",)
    protocol = "\n".join(
        (HEAD, NOISE, QUESTION, PREFIX, NEEDLE, *(v for v in FAMILIES["vt"].values() if isinstance(v, str)))
    )
    rng = random.Random(0)
    for _ in range(400):
        yield protocol
        yield CHOICE_INTRO
    yield from islice(sentences(TRAIN_PROSE), 2000)
    for _ in range(1500):
        question, task = choice(rng), problem(rng)
        yield f"{choice_body(question)}{choice_answer(question)}\n\n"
        yield f"{problem_body(task)}{problem_answer(task)}\n\n"


def save_tokenizer(tokenizer: Any, target: Path) -> None:
    """Write the tokenizer's files beside a checkpoint."""
    tokenizer.save(str(target / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": 2**20}
    (target / "tokenizer_config.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
