"""Candidate minus baseline, paired: every task, every average, with interval, test and what could not be seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.benchmarks.presentation import Presentation, presentation_of
from harness.store import Store
from harness.tables.aggregates import over_length, tasks_of, usable
from harness.tables.caption import clusters_title, missing_lines, setting_lines
from harness.tables.frames import check_label, labels, ordered_cells
from harness.tables.layout import Column, Entry, Table, length_title
from harness.tables.paired import ALPHA, Comparison, adjust, compare_cells
from harness.types import Cell, GatedevalError


@dataclass(frozen=True, kw_only=True)
class Line:
    """One comparison and what it is about.

    `task` is "average" for a mean over tasks with equal weight (RULER), "all" for a mean over all questions.
    """

    context: str
    benchmark: str
    task: str
    length: int
    metric: str | None
    comparison: Comparison

    @property
    def whole(self) -> bool:
        """Whether the line is about a benchmark as a whole, and not about one task."""
        return self.task in ("average", "all")

    @property
    def shown(self) -> Presentation:
        """How the line's benchmark is shown."""
        return presentation_of(self.benchmark)


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


def choose(store: Store, baseline: str | None, candidate: str | None) -> tuple[str, str]:
    """The two models to compare: as named, else the config's first and the only other one."""
    models = labels(store, "models")
    for name in (baseline, candidate):
        check_label(store, "models", name)
    if baseline is None:
        baseline = next((m for m in models if m != candidate), None)
    others = [m for m in models if m != baseline]
    if baseline is None or not others:
        raise GatedevalError(
            "a comparison needs two models, and this run has "
            f"{', '.join(map(repr, models)) or 'none'}; `gatedeval merge` joins two runs"
        )
    if candidate is None:
        if len(others) > 1:
            raise GatedevalError(
                f"which model is to be compared with {baseline!r}? Name one of "
                f"{', '.join(map(repr, others))} as candidate"
            )
        candidate = others[0]
    if candidate == baseline:
        raise GatedevalError(f"baseline and candidate are both {baseline!r}")
    return baseline, candidate


def lines(store: Store, baseline: str, candidate: str, context: str | None = None) -> tuple[list[Line], list[str]]:
    """Every comparison of two models under the same context; and in words the cells that lack one, and why.

    Raises GatedevalError where the prompts of the two differ.
    """
    found: list[Line] = []
    absent: list[str] = []
    for name in labels(store, "contexts"):
        if context is not None and name != context:
            continue
        for group in _groups(store, baseline, name):
            _compare_group(store, group, candidate, found, absent)
    return found, absent


def headlines(found: list[Line]) -> list[Line]:
    """One line per context, benchmark and length: the whole benchmark where it has several tasks, else its task."""
    wholes = {(x.context, x.benchmark, x.length) for x in found if x.whole}
    return [x for x in found if x.whole or (x.context, x.benchmark, x.length) not in wholes]


def _groups(store: Store, model: str, context: str) -> Iterator[list[Cell]]:
    """The baseline's cells of one context, by benchmark and length."""
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in ordered_cells(store):
        if (cell.model, cell.context) == (model, context):
            groups.setdefault((cell.benchmark, cell.length), []).append(cell)
    yield from groups.values()


def _compare_group(store: Store, cells: list[Cell], candidate: str, found: list[Line], absent: list[str]) -> None:
    """One benchmark at one length: every task, then the benchmark as a whole where it has several."""
    first = cells[0]
    shown, pairs = presentation_of(first.benchmark), []

    def add(task: str, metric: str | None, comparison: Comparison) -> None:
        found.append(
            Line(
                context=first.context,
                benchmark=first.benchmark,
                task=task,
                length=first.length,
                metric=metric,
                comparison=comparison,
            )
        )

    for a in cells:
        b = Cell(candidate, a.context, a.benchmark, a.task, a.length)
        lacking = [x.model for x in (a, b) if x not in store.cells or not usable(store, x)]
        if lacking:
            where = f" at {a.length}" if a.length else ""
            absent.append(f"{a.context} / {a.task}{where}: {' and '.join(lacking)} has no scores")
            continue
        pairs.append((a, b))
        metrics = list(store.scores(a).metrics) if shown.every_metric else [store.scores(a).headline]
        for metric in metrics:
            add(a.task, metric, compare_cells(store, [(a, b)], metric))
    by_task = shown.pooling == "tasks"  # then a task that is missing at this length blocks the average
    needed = set(tasks_of(store, first.benchmark)) if by_task else {c.task for c in cells}
    if len(needed) > 1 and {a.task for a, _ in pairs} == needed:
        comparison = compare_cells(store, pairs, pooled=not by_task)
        add("average" if by_task else "all", store.scores(first).headline, comparison)


def delta_table(store: Store, baseline: str | None = None, candidate: str | None = None) -> Table:
    """Rows: context, benchmark, task, length. Columns: both scores, their difference with its 95% interval, the
    Holm-adjusted p-value, samples gained and lost, and the difference that these samples could show.
    """
    baseline, candidate = choose(store, baseline, candidate)
    found, absent = lines(store, baseline, candidate)
    adjust([line.comparison for line in found])
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
    table.caption = _caption(store, table, baseline, candidate, found)
    return table


def _caption(store: Store, table: Table, baseline: str, candidate: str, found: list[Line]) -> list[str]:
    averages = [(presentation_of(name).title, len(tasks_of(store, name))) for name in over_length(store)]
    unpaired = sum(line.comparison.unpaired for line in found if not line.whole)
    return [
        f"{candidate} minus {baseline}, points on 0-100, paired on the same samples; intervals by bootstrap of the "
        "per-sample differences, stratified by task.",
        f"▲ {candidate} above, ▼ below: p < {ALPHA} after Holm over {len(found)} comparisons; exact McNemar for 0/1 "
        "scores, sign-flip permutation for fractional ones and averages.",
        "gained, lost: samples on which only one of the two scores higher; detectable: the smallest difference that "
        "these samples show with 80% power.",
        *(f"average: mean over {n} {title} tasks with equal weight." for title, n in averages if n > 1),
        *(
            f"{line.context}: {line.shown.title}'s difference with {clusters_title(line.shown)}: "
            f"{_span(line.comparison.clustered)}."
            for line in found
            if line.comparison.clustered is not None
        ),
        *setting_lines(store),
        *table.missing,
        *([f"{unpaired} samples that only one of the two models has were left out."] if unpaired else []),
    ]


def _span(interval: tuple[float, float]) -> str:
    return f"[{interval[0]:+.2f}, {interval[1]:+.2f}]"


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
        Entry(text=_span((c.low, c.high))),
        Entry(value=c.adjusted, decimals=4),
        Entry(value=c.gained, decimals=0),
        Entry(value=c.lost, decimals=0),
        Entry(value=c.mdd),
    ]


def frame_of(found: list[Line]) -> pd.DataFrame:
    """The comparisons as a tidy frame, one row per line; `COLUMNS` says the columns and their units."""
    return pd.DataFrame([[value(x) for value in COLUMNS.values()] for x in found], columns=list(COLUMNS))
