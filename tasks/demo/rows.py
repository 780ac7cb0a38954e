"""Load the documents of the demo's lm-eval tasks from the files beside this one; needs no hub and no cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPLITS = ("dev", "test")


def _splits(name: str) -> Any:
    from datasets import Dataset, DatasetDict

    folder = Path(__file__).parent
    lines = {split: (folder / f"{name}_{split}.jsonl").read_text(encoding="utf-8") for split in SPLITS}
    return DatasetDict({s: Dataset.from_list([json.loads(t) for t in text.splitlines()]) for s, text in lines.items()})


def choice(**_: Any) -> Any:
    """`demo_choice`: question, choices (four), answer (the right one's index)."""
    return _splits("choice")


def words(**_: Any) -> Any:
    """`demo_words`: question, answer (a worked solution that ends in `#### N`)."""
    return _splits("words")


def prose(**_: Any) -> Any:
    """`demo_prose`: text, several paragraphs of the demo's haystack; the texts grow from one paragraph to eight."""
    from datasets import Dataset, DatasetDict

    file = Path(__file__).parent / "data/essays/gatedeval_demo_prose.json"
    paragraphs = json.loads(file.read_text(encoding="utf-8"))["text"].split("\n\n")
    texts: list[str] = []
    while len(paragraphs) > (size := len(texts) % 8 + 1):
        texts.append("\n\n".join(paragraphs[:size]))
        paragraphs = paragraphs[size:]
    return DatasetDict({"test": Dataset.from_list([{"text": text} for text in texts])})
