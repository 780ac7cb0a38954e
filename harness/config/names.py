"""The names that a config may use: RULER's 13 tasks and MMLU's 57 subjects, in their benchmarks' own order."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from harness.data.catalog import MMLU_SUBJECTS

__all__ = ["MMLU_SUBJECTS", "RULER_TASKS", "did_you_mean"]

RULER_TASKS = (
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
    "vt",
    "cwe",
    "fwe",
    "qa_1",
    "qa_2",
)


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where something close is known, else an empty string."""
    known = list(known)
    folded = {k.lower().replace("-", "_").replace(" ", "_"): k for k in known}
    close = difflib.get_close_matches(wrong.lower().replace("-", "_").replace(" ", "_"), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""
