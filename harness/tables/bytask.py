"""Every task at every length: the table behind the averages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pandas as pd

from harness.store import Store
from harness.tables.aggregates import describe
from harness.tables.caption import missing_lines, scoring_lines, setting_lines
from harness.tables.frames import cells_frame
from harness.tables.layout import Column, Entry, Table, length_title
from harness.types import Cell


def tasks_table(store: Store) -> Table:
    """Rows (context, model, benchmark, task), one column per length; benchmarks without a length share one column.

    Best is marked per (context, task, length) over the models. "†": fewer samples than planned; a dash: failed or
    absent.
    """
    frame = cells_frame(store)
    lengths = sorted((int(n) for n in frame["length"].unique()), key=lambda n: (n == 0, n))
    columns = [Column(title=t, numeric=False) for t in ("context", "benchmark", "task", "model")]
    columns += [Column(title=length_title(n) if n else "score") for n in lengths]
    rows: list[list[Entry]] = []
    breaks: set[int] = set()
    previous = None
    for (context, benchmark, task), group in frame.groupby(["context", "benchmark", "task"], sort=False):
        if previous is not None and previous != (context, benchmark):
            breaks.add(len(rows))
        previous = (context, benchmark)
        for model, cells in group.groupby("model", sort=False):
            values = {int(r["length"]): r for r in cells.to_dict("records")}
            row = [Entry(text=str(t)) for t in (context, benchmark, task, model)]
            row += [_entry(values.get(n), group[group["length"] == n]["score"]) for n in lengths]
            rows.append(row)
    records = frame.to_dict("records")
    missing = [f"{_where(r)}: {r['error'] or 'no sample yet'}" for r in records if math.isnan(r["score"])]
    partial = [f"{_where(r)}: {r['samples']} of {r['planned']} samples" for r in records if _partial(r)]
    table = Table(
        style="tasks",
        title=str(store.manifest.get("name", store.path.name)),
        columns=columns,
        rows=rows,
        make_frame=lambda: frame,
        breaks=breaks,
        missing=missing_lines(missing, partial),
    )
    table.caption = [*scoring_lines(store), *setting_lines(store), *table.missing]
    return table


def _where(row: Mapping[Any, Any]) -> str:
    return describe(Cell(*(row[f.name] for f in fields(Cell))))


def _partial(row: Mapping[Any, Any]) -> bool:
    return not math.isnan(row["score"]) and not pd.isna(row["planned"]) and bool(row["samples"] < row["planned"])


def _entry(row: Mapping[Any, Any] | None, rivals: pd.Series) -> Entry:
    if row is None or math.isnan(row["score"]):
        return Entry()
    shown = rivals.dropna().round(2)
    best = len(shown) > 1 and 2 * (shown == shown.max()).sum() <= len(shown) and round(row["score"], 2) == shown.max()
    return Entry(value=row["score"], marks="†" if _partial(row) else "", best=bool(best))
