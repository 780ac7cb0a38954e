"""Derived files: what can always be computed again from the samples (`gatedeval rebuild`)."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.store.files import write_atomic
from harness.types import Cell

if TYPE_CHECKING:
    from harness.store.run import Store

CELL_COLUMNS = (
    "model",
    "context",
    "benchmark",
    "task",
    "length",
    "samples",
    "score",
    "metric",
    "planned",
    "ci_low",
    "ci_high",
    "ci_method",
    "length_capped",
    "other_metrics",
    "error",
)
"""What is told of a cell, in order."""
STATISTICS = {"ci_low", "ci_high", "ci_method", "other_metrics"}
"""Of them, what `harness.tables` adds: cells.csv does without."""
COLUMNS = tuple(column for column in CELL_COLUMNS if column not in STATISTICS)


def cell_summary(store: Store, cell: Cell) -> dict[str, Any]:
    """One row of cells.csv. `score` is 100 times the mean of the headline metric; NaN for a failed or empty cell.

    A cell in which any sample has no score (NaN) has failed as a whole: the mean over the rest would be a mean over a
    selection. A metric outside 0..1 (perplexity, BLEU) is left on its own scale. `length_capped`: the share of answers
    that their token budget cut.
    """
    columns = store.scores(cell)
    values = columns.scores
    n = len(values)
    error = store.failures.get(cell.key)
    missing = int(np.isnan(values).sum())
    if n and missing:
        error = f"{missing} of {n} samples have no score" + (f"; {error}" if error else "")
    score = math.nan if n == 0 or missing else float(values.mean()) * scale_of(values)
    return {
        "model": cell.model,
        "context": cell.context,
        "benchmark": cell.benchmark,
        "task": cell.task,
        "length": cell.length,
        "samples": n,
        "score": score,
        "metric": columns.headline,
        "planned": store.planned(cell),
        "length_capped": float(columns.capped.mean()) if n else math.nan,
        "error": error,
    }


def scale_of(values: np.ndarray) -> float:
    """100 for scores in 0..1, 1 for a metric on another scale."""
    inside = values.size == 0 or bool(np.nanmin(values) >= 0 and np.nanmax(values) <= 1)
    return 100.0 if inside else 1.0


def is_complete(row: dict[str, Any]) -> bool:
    """Whether a cell has every planned sample (at least one where the number is unknown), each with a score."""
    return bool(
        row["samples"] and not math.isnan(row["score"]) and (row["planned"] is None or row["samples"] >= row["planned"])
    )


def write_derived(store: Store) -> str:
    """Write cells.csv, drop the failures of cells that are complete by now, and return the run's state."""
    rows = []
    for cell in store.cells:
        row = cell_summary(store, cell)
        if cell.key in store.failures and is_complete({**row, "error": None}):
            del store.failures[cell.key]
            row = cell_summary(store, cell)
        rows.append(row)
    write_atomic(store.path / "cells.csv", to_csv(rows))
    return "complete" if all(map(is_complete, rows)) and not store.failures else "incomplete"


def to_csv(rows: list[dict[str, Any]]) -> str:
    """Rows of `cell_summary` as CSV; an absent number is an empty field, never a zero."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {
                k: ""
                if v is None or (isinstance(v, float) and math.isnan(v))
                else f"{v:.6g}"
                if isinstance(v, float)
                else v
                for k, v in row.items()
            }
        )
    return out.getvalue()
