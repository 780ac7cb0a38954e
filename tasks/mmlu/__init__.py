"""MMLU (Hendrycks et al. 2021, arXiv 2009.03300): lm-eval's own task, with local data where there is no hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.data.catalog import MMLU_SUBJECTS as SUBJECTS

if TYPE_CHECKING:
    from harness.data.folder import DataFolder

HUB = "cais/mmlu"  # what lm-eval's task loads; its `name` is the subject
DATA = ("mmlu",)
SPLITS = ("dev", "test")
"""dev has the few-shot examples (the first five, in order); test has the questions: 14,042 in 57 subjects."""

__all__ = ["DATA", "HUB", "SPLITS", "SUBJECTS", "splits"]


def splits(data: DataFolder, subject: str | None) -> dict[str, list[dict[str, Any]]]:
    """A subject's splits from the official CSV files, as rows of lm-eval's schema: question, choices, answer (0-3)."""
    return {split: data.mmlu_rows(split, subject or "") for split in SPLITS}
