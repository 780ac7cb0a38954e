"""What the tables need of a cell, as columns: read once, without the texts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.store.files import each_record

FINISH = ("stop", "length", "choose")
_DIGITS = re.compile(r"(\d+)")


def natural(id: str) -> list[tuple[int, int, str]]:
    """Sort key that reads runs of digits as numbers: 2 before 10, q2 before q10."""
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in _DIGITS.split(id) if p]


@dataclass(frozen=True)
class CellScores:
    """One cell's samples as columns, in natural id order; n rows in every column.

    `metrics`: name -> float64 (n,), NaN where a sample has no such score; the first is the headline.
    `prompts`: int64 (n,), equal where two samples ask the same thing. Comparable within one process only.
    `finish`: int8 (n,), an index into `FINISH`. `unreadable`: lines that were no JSON.
    """

    ids: list[str]
    metrics: dict[str, NDArray[np.float64]]
    prompts: NDArray[np.int64]
    finish: NDArray[np.int8]
    prompt_tokens: NDArray[np.int64]
    unreadable: int = 0

    @property
    def capped(self) -> NDArray[np.bool_]:
        """Which answers were cut by their token budget, (n,)."""
        return self.finish == 1

    @property
    def headline(self) -> str | None:
        """The first metric's name; None where nothing was scored."""
        return next(iter(self.metrics), None)

    @property
    def scores(self) -> NDArray[np.float64]:
        """The headline metric's column, (n,)."""
        return self.metrics[self.headline] if self.headline is not None else np.full(len(self.ids), np.nan)


def _prompt_identity(record: Mapping[str, Any]) -> int:
    """What makes two models' samples the same question.

    The content hash covers the model too, so it cannot say. The runner's `extra["prompt_hash"]` (prompt token ids
    alone) can; without it, the references and the prompt's token count are what there is to compare.
    """
    extra = record.get("extra") or {}
    if "prompt_hash" in extra:
        return hash(("hash", str(extra["prompt_hash"])))
    return hash(("weak", record.get("prompt_tokens"), json.dumps(record.get("references"))))


def within_plan(ids: Sequence[str], planned: int | None) -> list[str]:
    """`ids` in natural order, only those a plan of `planned` samples asks for.

    Plain numbers count from 0, so a run lowered from 500 to 100 samples keeps 0..99 even while 0..50 alone are done;
    ids of another kind are taken in their order.
    """
    numbers = all(i.isascii() and i.isdecimal() for i in ids)
    ordered = sorted(ids, key=int) if numbers else sorted(ids, key=natural)
    if planned is None or len(ordered) <= planned:
        return ordered
    return [i for i in ordered if int(i) < planned] if numbers else ordered[:planned]


def select(path: Path, expected: Mapping[str, str] | None) -> tuple[dict[str, dict[str, Any]], int]:
    """id -> the record that counts, and the number of unreadable lines.

    Of lines with one id the last wins. Where `expected` (id -> hash) is known, only lines with that id *and* that hash
    count: answers of other weights, or to another prompt, stay in the file and out of every number.
    """
    chosen: dict[str, dict[str, Any]] = {}

    def use(record: dict[str, Any]) -> None:
        id, digest = record.get("id"), record.get("hash")
        if isinstance(id, str) and isinstance(digest, str) and (expected is None or expected.get(id) == digest):
            chosen[id] = record

    return chosen, each_record(path, use)


def read_scores(path: Path, planned: int | None, expected: Mapping[str, str] | None) -> CellScores:
    """A cell's columns from its sample file; a missing file is a cell with no samples."""
    slim: dict[str, tuple[dict[str, float | None], int, int, int]] = {}
    names: dict[str, None] = {}  # an ordered set: the first metric seen is the headline

    def use(record: dict[str, Any]) -> None:
        id = record.get("id")
        if not isinstance(id, str) or (expected is not None and expected.get(id) != record.get("hash")):
            return
        scores = record.get("scores") or {}
        for name in scores:
            names.setdefault(name)
        slim[id] = (
            scores,
            _prompt_identity(record),
            FINISH.index(reason) if (reason := record.get("finish_reason")) in FINISH else 0,
            int(record.get("prompt_tokens") or 0),
        )

    unreadable = each_record(path, use)
    ids = within_plan(list(slim), planned)
    rows = [slim[i] for i in ids]
    metrics = {
        name: np.array([np.nan if (v := row[0].get(name)) is None else v for row in rows], dtype=np.float64)
        for name in names
    }
    return CellScores(
        ids=ids,
        metrics=metrics,
        prompts=np.array([row[1] for row in rows], dtype=np.int64),
        finish=np.array([row[2] for row in rows], dtype=np.int8),
        prompt_tokens=np.array([row[3] for row in rows], dtype=np.int64),
        unreadable=unreadable,
    )
