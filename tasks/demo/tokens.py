"""The demo's tokenizer: a byte-level BPE of 1,280 entries, digits one by one, trained on the demo's kinds of text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

from harness.models.bpe import train_bpe
from tasks.demo.documents import TRAIN_PROSE
from tasks.demo.drafts import HEAD, NEEDLE, PREFIX, QUESTION
from tasks.demo.prose import sentences
from tasks.demo.questions import CHOICE_INTRO, choice, choice_answer, choice_body, problem, problem_answer, problem_body
from tasks.ruler.protocol import FAMILIES, NOISE
from tasks.ruler.words import word_list

SIZE = 1280


def train_tokenizer() -> Any:
    """The tokenizer (`tokenizers.Tokenizer`), the same one each time; takes a second. Id 0 ends a text."""
    return train_bpe(_texts(), SIZE)


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
