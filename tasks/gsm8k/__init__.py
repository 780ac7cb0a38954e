"""GSM8k (Cobbe et al. 2021, arXiv 2110.14168): lm-eval's own task, with local data where there is no hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.data.folder import DataFolder

HUB = "openai/gsm8k"  # what lm-eval's task loads
DATA = ("gsm8k_train", "gsm8k_test")
SPLITS = ("train", "test")
"""train is the pool that examples are drawn from; test is what is asked: 1,319 problems."""


def splits(data: DataFolder, subject: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """The splits from the official JSON-lines files, as rows of lm-eval's schema: question, answer (ends `#### N`)."""
    return {split: list(data.gsm8k_rows(split)) for split in SPLITS}
