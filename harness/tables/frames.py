"""A run as pandas frames: one row per cell, or one row per sample."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pandas as pd

from harness import stats
from harness.store import Store
from harness.store.summary import CellSummary, scale_of
from harness.tables.arms import arms_of, spread_of
from harness.tables.sampled import in_rounds, mean_in_rounds
from harness.types import Cell, GatedevalError

_SUMMARY = [f.name for f in dataclasses.fields(CellSummary)]
_AT = _SUMMARY.index("length_capped")
CELL_COLUMNS = (*_SUMMARY[:_AT], "ci_low", "ci_high", "ci_method", "length_capped", "other_metrics", "error")
"""Columns of `cells_frame`: those of `harness.store.summary.CellSummary`, and the statistics of each cell."""
_TEXTS = ("references", "response", "hash")  # long columns of `samples_frame`; they come last


def labels(store: Store, what: Literal["models", "contexts"]) -> list[str]:
    """Labels of config["models"] or config["contexts"] in their order, then any that only the cells name."""
    known = [entry["label"] for entry in store.manifest.get("config", {}).get(what) or []]
    field = "model" if what == "models" else "context"
    return list(dict.fromkeys([*known, *(getattr(cell, field) for cell in store.cells)]))


def check_label(store: Store, what: Literal["models", "contexts"], label: str | None) -> None:
    """Raise GatedevalError, with the labels there are, where the run has no such model or context; None is fine."""
    known = labels(store, what)
    if label is not None and label not in known:
        noun = what.removesuffix("s")
        arms = arms_of(store)
        below = what == "models" and arms is not None and any(label in own for own in arms.rows.values())
        hint = " (it is a checkpoint of an arm: --arms off takes arms apart)" if below else ""
        raise GatedevalError(f"no {noun} {label!r} in this run{hint}; it has {', '.join(map(repr, known))}")


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
    """One row per cell, in reading order.

    model, context, benchmark, task: text. length: tokens, 0 where the benchmark has none. samples: finished samples.
    score, ci_low, ci_high: 0-100, NaN for an empty or failed cell; a metric outside 0..1 keeps its scale and has no
    interval. metric: the headline metric. planned: samples that the plan asks for (Int64, may be missing). ci_method:
    name of the interval. length_capped: share of answers cut by their token budget, 0..1. other_metrics: "name=score;
    ..." of the metrics beside the headline. error: why the cell failed, or "".

    Of a run that is read by arm, `model` is the row, and there are two more columns: checkpoints (Int64, how many it
    has) and sd (the standard deviation between their scores, NaN for one).
    """
    rows = [dataclasses.asdict(store.summary(cell)) | _statistics(store, cell) for cell in ordered_cells(store)]
    frame = pd.DataFrame(rows, columns=list(CELL_COLUMNS))
    frame["planned"] = frame["planned"].astype("Int64")
    for text in ("metric", "ci_method", "other_metrics", "error"):
        frame[text] = frame[text].fillna("").astype(object)
    return frame if arms_of(store) is None else _with_spread(store, frame)


def _with_spread(store: Store, frame: pd.DataFrame) -> pd.DataFrame:
    arms, counts, spreads = arms_of(store), [], []
    for row in frame.to_dict("records"):
        cell = cell_of({str(name): value for name, value in row.items()})
        counts.append(len(arms.of(cell)) if arms is not None else 1)
        means, scale = spread_of(store, [] if math.isnan(row["score"]) else [cell], None, pooled=False)
        spreads.append(scale * stats.spread(means) if means else math.nan)
    return frame.assign(checkpoints=pd.array(counts, dtype="Int64"), sd=spreads)


def _statistics(store: Store, cell: Cell) -> dict[str, Any]:
    """The interval of the headline metric, 0-100, and the means of the other metrics as text."""
    columns = store.scores(cell)
    values = columns.scores
    interval = stats.Interval(math.nan, math.nan, "")
    if values.size and not math.isnan(float(values.mean())) and scale_of(values) == 100.0 and not columns.weights:
        rounds = in_rounds(store, [cell])
        interval = mean_in_rounds(store, [cell], [values], pooled=False)[1] if rounds else stats.mean_interval(values)
    others = []
    for name, other in list(columns.metrics.items())[1:]:
        if other.size and not math.isnan(mean := columns.mean(name)):
            others.append(f"{name}={mean * (1 if columns.weights else scale_of(other)):.6g}")
    return {
        "ci_low": 100 * interval.low,
        "ci_high": 100 * interval.high,
        "ci_method": interval.method,
        "other_metrics": "; ".join(others),
    }


def sample_rows(store: Store) -> Iterator[dict[str, Any]]:
    """One dict per sample, in reading order; see `samples_frame` for the keys. Here references are a list."""
    for cell in ordered_cells(store):
        for sample in store.samples(cell):
            yield {
                **dataclasses.asdict(cell),
                "id": sample.id,
                "prompt_tokens": sample.prompt_tokens,
                "response_tokens": sample.response_tokens,
                "finish_reason": sample.finish_reason,
                "seconds": sample.seconds,
                **{f"score:{k}": v for k, v in sample.scores.items()},
                "references": sample.references,
                "response": sample.response,
                "hash": sample.hash,
            }


def cell_of(row: Mapping[str, Any]) -> Cell:
    """The cell that a row of a frame is about."""
    return Cell(*(row[f.name] for f in dataclasses.fields(Cell)))


def samples_frame(store: Store) -> pd.DataFrame:
    """One row per sample, in reading order.

    model, context, benchmark, task, length (tokens): the cell. id: unique in the cell. prompt_tokens, response_tokens.
    finish_reason: "stop", "length" (cut by the token budget) or "choose". seconds: from admission to the finished
    answer. "score:<metric>": 0..1, NaN where there is none. references: a JSON list. response: text. hash: of all that
    can change the answer.
    """
    # A response can end in half a character, which has no UTF-8 form; pandas and CSV need one.
    frame = pd.DataFrame(
        {
            **row,
            "response": _encodable(row["response"]),
            "references": _encodable(json.dumps(row["references"], ensure_ascii=False)),
        }
        for row in sample_rows(store)
    )
    if frame.empty:
        return pd.DataFrame(columns=[*(f.name for f in dataclasses.fields(Cell)), "id"])
    return frame[[c for c in frame.columns if c not in _TEXTS] + list(_TEXTS)]


def _encodable(text: str) -> str:
    """The text with "?" for each half of a character."""
    return text.encode("utf-8", errors="replace").decode("utf-8")
