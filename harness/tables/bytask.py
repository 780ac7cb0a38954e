"""Every task at every length: the table behind the averages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pandas as pd

from harness.benchmarks.presentation import lower_is_better, presentation_of
from harness.store import Store
from harness.tables.aggregates import describe
from harness.tables.arm_rows import arm_cells_frame, arms_too
from harness.tables.arms import spread_of
from harness.tables.caption import beside_lines, lines_beneath, missing_lines, scoring_lines
from harness.tables.frames import labels
from harness.tables.layout import Column, Entry, Table, length_title
from harness.tables.view import chosen_rows, in_order, shown, viewed
from harness.text import counted
from harness.types import Cell


def tasks_table(store: Store) -> Table:
    """Rows (context, model, benchmark, task), one column per length; benchmarks without a length share one column.

    Best is marked per (context, task, length) over the models. "†": fewer samples than planned; a dash: failed or
    absent. A metric of ours (`Presentation.beside`) has rows of its own where it differs from the task's score.
    """
    store, view = viewed(store)
    frame = in_order(view, chosen_rows(view, arm_cells_frame(store, view)))
    lengths = sorted((int(n) for n in frame["length"].unique()), key=lambda n: (n == 0, n))
    columns = [Column(title=t, numeric=False) for t in ("context", "benchmark", "task", "model")]
    columns += [Column(title=length_title(n) if n else "score") for n in lengths]
    at = [-1, -1, -1, -1, *lengths]
    rows: list[list[Entry]] = []
    beside: dict[tuple[str, str], None] = {}  # (benchmark, metric) of the rows for metrics of ours, an ordered set
    breaks: set[int] = set()
    previous = None
    for (context, benchmark, task), group in frame.groupby(["context", "benchmark", "task"], sort=False):
        if previous is not None and previous != (context, benchmark):
            breaks.add(len(rows))
        previous = (context, benchmark)
        for model, cells in group.groupby("model", sort=False):
            values = {int(r["length"]): r for r in cells.to_dict("records")}
            row = [Entry(text=str(t)) for t in (context, benchmark, task, model)]
            rivals = group[group["model"].isin(labels(store, "models"))]  # a checkpoint of an arm is none
            low = any(lower_is_better(str(r["metric"])) for r in values.values())
            row += [_entry(values.get(n), rivals[rivals["length"] == n], view.digits, low) for n in lengths]
            rows.append([_with_checkpoints(store, entry, values.get(n)) for n, entry in zip(at, row, strict=True)])
        for metric in presentation_of(str(benchmark)).beside:
            if extra := _beside(store, group, metric, lengths):
                rows += extra
                beside[str(benchmark), metric] = None
    records = frame.to_dict("records")
    missing = [f"{_where(r)}: {r['error'] or 'no sample yet'}" for r in records if math.isnan(r["score"])]
    partial = [f"{_where(r)}: {r['samples']} of {counted(r['planned'], 'sample')}" for r in records if _partial(r)]
    table = Table(
        style="tasks",
        title=str(store.manifest.get("name", store.path.name)),
        columns=columns,
        rows=rows,
        make_frame=lambda: frame,
        breaks=breaks,
        missing=missing_lines(missing, partial),
    )
    planned = [cell for cell in store.cells if shown(arms_too(view), cell)]
    table.headline, table.label = "Scores of every task.", view.label
    full = [*scoring_lines(store, planned), *beside_lines(beside)]
    table.caption = lines_beneath(store, view, planned, full=full, short=[], missing=table.missing)
    return table


def _beside(store: Store, group: pd.DataFrame, metric: str, lengths: list[int]) -> list[list[Entry]]:
    """One row per model for a metric of ours; none where no cell of `group` has it, or it equals the score in all."""
    found: dict[str, dict[int, float]] = {}
    differs = False
    for row in group.to_dict("records"):
        cell = Cell(*(row[f.name] for f in fields(Cell)))
        scores = store.scores(cell)
        column = scores.metrics.get(metric)
        if column is not None and column.size and not math.isnan(value := float(column.mean())):
            found.setdefault(cell.model, {})[cell.length] = 100 * value
            differs = differs or value != float(scores.scores.mean())
    if not differs:
        return []
    context, benchmark, task = (str(group[name].iloc[0]) for name in ("context", "benchmark", "task"))
    title = f"{task}, {presentation_of(benchmark).beside[metric].title}"
    return [
        [Entry(text=text) for text in (context, benchmark, title, model)]
        + [Entry(value=values.get(length)) for length in lengths]
        for model, values in found.items()
    ]


def _where(row: Mapping[Any, Any]) -> str:
    return describe(Cell(*(row[f.name] for f in fields(Cell))))


def _partial(row: Mapping[Any, Any]) -> bool:
    return not math.isnan(row["score"]) and not pd.isna(row["planned"]) and bool(row["samples"] < row["planned"])


def _with_checkpoints(store: Store, entry: Entry, row: Mapping[Any, Any] | None) -> Entry:
    """The entry with the scores of an arm's checkpoints."""
    if row is None or entry.value is None:
        return entry
    means, scale = spread_of(store, [Cell(*(row[f.name] for f in fields(Cell)))], None, pooled=False)
    return replace(entry, checkpoints=tuple(scale * m for m in means))


def _entry(row: Mapping[Any, Any] | None, rivals: pd.DataFrame, digits: int, lower: bool) -> Entry:
    if row is None or math.isnan(row["score"]):
        return Entry()
    seen = rivals["score"].dropna().round(digits)
    leader = seen.min() if lower else seen.max()
    best = (
        row["model"] in set(rivals["model"])
        and len(seen) > 1
        and 2 * (seen == leader).sum() <= len(seen)
        and round(row["score"], digits) == leader
    )
    return Entry(value=row["score"], marks="†" if _partial(row) else "", best=bool(best), decimals=digits)
