"""Load the documents of the demo's lm-eval tasks from the JSON lines beside this file; needs no hub and no cache."""

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
