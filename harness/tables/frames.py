"""A run as pandas frames: one row a cell, or one row a sample. Scores on 0-100."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from harness import stats
from harness.store import Store
from harness.store.derived import CELL_COLUMNS, cell_summary, scale_of
from harness.types import Cell


def labels(store: Store, what: str) -> list[str]:
    """Labels of config["models"] or config["contexts"] in their order, then any that only the cells name."""
    known = [entry["label"] for entry in store.manifest.get("config", {}).get(what) or []]
    field = "model" if what == "models" else "context"
    return list(dict.fromkeys([*known, *(getattr(cell, field) for cell in store.cells)]))


def ordered_cells(store: Store) -> list[Cell]:
    """The plan in reading order: context, model, benchmark as planned, length by size, task as planned."""
    models = {label: i for i, label in enumerate(labels(store, "models"))}
    contexts = {label: i for i, label in enumerate(labels(store, "contexts"))}
    benchmarks: dict[str, int] = {}
    tasks: dict[str, int] = {}
    for cell in store.cells:
        benchmarks.setdefault(cell.benchmark, len(benchmarks))
        tasks.setdefault(cell.task, len(tasks))
    return sorted(
        store.cells,
        key=lambda c: (contexts[c.context], models[c.model], benchmarks[c.benchmark], c.length, tasks[c.task]),
    )


def cells_frame(store: Store) -> pd.DataFrame:
    """One row a cell, `harness.store.derived.CELL_COLUMNS`, in reading order.

    score, ci_low, ci_high on 0-100 (a metric outside 0..1 keeps its scale and has no interval), NaN for an empty or
    failed cell; planned may be missing; length_capped is a share, 0..1; other_metrics is "name=score; ..." for what a
    task reports beside its headline metric.
    """
    rows = []
    for cell in ordered_cells(store):
        row = cell_summary(store, cell)
        columns = store.scores(cell)
        interval = stats.Interval(math.nan, math.nan, "")
        if not math.isnan(row["score"]) and scale_of(columns.scores) == 100.0:
            interval = stats.mean_interval(columns.scores)
        others = []
        for name, values in list(columns.metrics.items())[1:]:
            if values.size and not math.isnan(mean := float(values.mean())):
                others.append(f"{name}={mean * scale_of(values):.6g}")
        rows.append(
            {
                **row,
                "ci_low": 100 * interval.low,
                "ci_high": 100 * interval.high,
                "ci_method": interval.method,
                "other_metrics": "; ".join(others),
            }
        )
    frame = pd.DataFrame(rows, columns=list(CELL_COLUMNS))
    frame["planned"] = frame["planned"].astype("Int64")
    for text in ("metric", "ci_method", "other_metrics", "error"):
        frame[text] = frame[text].fillna("").astype(object)
    return frame


def sample_rows(store: Store) -> Iterator[dict[str, Any]]:
    """One dict a sample, in reading order: the cell, the sample's facts, one key per metric, its texts."""
    for cell in ordered_cells(store):
        for sample in store.samples(cell):
            yield {
                "model": cell.model,
                "context": cell.context,
                "benchmark": cell.benchmark,
                "task": cell.task,
                "length": cell.length,
                "id": sample.id,
                "prompt_tokens": sample.prompt_tokens,
                "response_tokens": sample.response_tokens,
                "finish_reason": sample.finish_reason,
                "seconds": sample.seconds,
                **{f"score:{k}": v for k, v in sample.scores.items()},
                "references": json.dumps(sample.references, ensure_ascii=False),
                "response": sample.response,
                "hash": sample.hash,
            }


def samples_frame(store: Store) -> pd.DataFrame:
    """One row a sample, for people who use pandas themselves; metrics are columns named "score:<metric>", 0..1."""
    frame = pd.DataFrame(list(sample_rows(store)))
    if frame.empty:
        return pd.DataFrame(columns=["model", "context", "benchmark", "task", "length", "id"])
    texts = ["references", "response", "hash"]
    return frame[[c for c in frame.columns if c not in texts] + texts]
