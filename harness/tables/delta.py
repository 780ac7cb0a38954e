"""Candidate minus baseline, paired: every task, every average, with interval, test and what could not be seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from harness.benchmarks.presentation import presentation_of
from harness.store import Store
from harness.tables.aggregates import over_length, tasks_of
from harness.tables.caption import clusters_title, missing_lines, setting_lines
from harness.tables.comparisons import Line, choose, lines
from harness.tables.family import adjust_lines
from harness.tables.layout import Column, Entry, Table, length_title
from harness.tables.paired import ALPHA
from harness.text import interval_text

COLUMNS: dict[str, Callable[[Line], Any]] = {
    "context": lambda x: x.context,
    "benchmark": lambda x: x.benchmark,
    "task": lambda x: x.task,
    "length": lambda x: x.length,  # tokens; 0 where the benchmark has none
    "samples": lambda x: x.comparison.samples,
    "baseline": lambda x: x.comparison.baseline,  # 0-100, or on the metric's own scale; so are the next four
    "candidate": lambda x: x.comparison.candidate,
    "difference": lambda x: x.comparison.difference,  # candidate - baseline
    "ci_low": lambda x: x.comparison.low,  # of the difference, 95%
    "ci_high": lambda x: x.comparison.high,
    "p": lambda x: x.comparison.p,
    "p_adjusted": lambda x: x.comparison.adjusted,  # Holm over the table
    "significant": lambda x: x.comparison.significant,
    "test": lambda x: x.comparison.test,
    "gained": lambda x: x.comparison.gained,  # samples that only the candidate scores higher
    "lost": lambda x: x.comparison.lost,  # samples that only the baseline scores higher
    "mdd": lambda x: x.comparison.mdd,  # minimum detectable difference, 80% power; unit of the difference
    "metric": lambda x: x.metric or "",
    "cluster_low": lambda x: (x.comparison.clustered or (math.nan,))[0],  # of the difference, tasks as clusters
    "cluster_high": lambda x: (x.comparison.clustered or (math.nan,))[-1],
}
"""The columns of `frame_of`, in order, and how each is computed from a line."""


def delta_table(store: Store, baseline: str | None = None, candidate: str | None = None) -> Table:
    """Rows: context, benchmark, task, length. Columns: both scores, their difference with its 95% interval, the
    Holm-adjusted p-value, samples gained and lost, and the difference that these samples could show.
    """
    baseline, candidate = choose(store, baseline, candidate)
    found, absent = lines(store, baseline, candidate)
    families = adjust_lines(store, found, baseline, candidate)
    columns = [
        *(Column(title=t, numeric=False) for t in ("context", "benchmark", "task")),
        Column(title="length", plain=True),
        Column(title=baseline),
        Column(title=candidate),
        Column(title="difference", plain=True),
        Column(title="95% interval", numeric=False),
        Column(title="p (Holm)", plain=True),
        Column(title="gained", plain=True),
        Column(title="lost", plain=True),
        Column(title="detectable", plain=True),
    ]
    rows, breaks, previous = [], set(), None
    for line in found:
        if previous is not None and previous != (line.context, line.benchmark, line.length):
            breaks.add(len(rows))
        previous = (line.context, line.benchmark, line.length)
        rows.append(_row(line))
    table = Table(
        style="delta",
        title=str(store.manifest.get("name", store.path.name)),
        columns=columns,
        rows=rows,
        make_frame=lambda: frame_of(found),
        breaks=breaks,
        missing=missing_lines(absent),
    )
    table.caption = _caption(store, table, baseline, candidate, found, families)
    return table


def _caption(
    store: Store, table: Table, baseline: str, candidate: str, found: list[Line], families: list[str]
) -> list[str]:
    averages = [(presentation_of(name).title, len(tasks_of(store, name))) for name in over_length(store)]
    unpaired = sum(line.comparison.unpaired for line in found if not line.whole)
    return [
        f"{candidate} minus {baseline}, points on 0-100, paired on the same samples; intervals by bootstrap of the "
        "per-sample differences, stratified by task.",
        f"▲ {candidate} above, ▼ below: p < {ALPHA} after Holm's adjustment ({'; '.join(families)}); exact McNemar for "
        "0/1 scores, sign-flip permutation for fractional ones and averages.",
        "gained, lost: samples on which only one of the two scores higher; detectable: the smallest difference that "
        f"these samples show with 80% power at the level of their family, {ALPHA} divided by its comparisons.",
        *(f"average: mean over {n} {title} tasks with equal weight." for title, n in averages if n > 1),
        *(
            f"{line.context}: {line.shown.title}'s difference with {clusters_title(line.shown)}: "
            f"{interval_text(*line.comparison.clustered)}."
            for line in found
            if line.comparison.clustered is not None
        ),
        *setting_lines(store),
        *table.missing,
        *([f"{unpaired} samples that only one of the two models has were left out."] if unpaired else []),
    ]


def _row(line: Line) -> list[Entry]:
    c = line.comparison
    mode = line.shown.mode(line.metric)
    length = length_title(line.length) if line.length else ""
    best = round(c.candidate, 2) - round(c.baseline, 2)
    return [
        Entry(text=line.context),
        Entry(text=line.benchmark),
        Entry(text=line.task + (f" ({mode})" if mode else "")),
        Entry(text=length),
        Entry(value=c.baseline, best=best < 0),
        Entry(value=c.candidate, best=best > 0),
        Entry(value=c.difference, signed=True, marks=c.mark),
        Entry(text=interval_text(c.low, c.high)),
        Entry(value=c.adjusted, decimals=4),
        Entry(value=c.gained, decimals=0),
        Entry(value=c.lost, decimals=0),
        Entry(value=c.mdd),
    ]


def frame_of(found: list[Line]) -> pd.DataFrame:
    """The comparisons as a tidy frame, one row per line; `COLUMNS` says the columns and their units."""
    return pd.DataFrame([[value(x) for value in COLUMNS.values()] for x in found], columns=list(COLUMNS))
