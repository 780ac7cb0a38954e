"""Candidate minus baseline, paired: every task, every average, with interval, test and what could not be seen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from harness.store import Store
from harness.tables import caption as words
from harness.tables.aggregates import ruler_tasks, usable
from harness.tables.frames import labels, ordered_cells
from harness.tables.layout import Column, Entry, Table, length_title
from harness.tables.pairs import Comparison, adjust, compare_cells
from harness.tables.reading import ALPHA
from harness.types import Cell, GatedevalError

FRAME_COLUMNS = [
    "context",
    "benchmark",
    "task",
    "length",
    "samples",
    "baseline",
    "candidate",
    "difference",
    "ci_low",
    "ci_high",
    "p",
    "p_adjusted",
    "significant",
    "test",
    "gained",
    "lost",
    "mdd",
    "metric",
    "cluster_low",
    "cluster_high",
]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One comparison and what it is about; `task` is "average" for RULER's mean, "all" for a whole benchmark."""

    context: str
    benchmark: str
    task: str
    length: int
    metric: str | None
    comparison: Comparison


def choose(store: Store, baseline: str | None, candidate: str | None) -> tuple[str, str]:
    """The two models to compare: as named, else the config's first and the only other one."""
    models = labels(store, "models")
    for name in (baseline, candidate):
        if name is not None and name not in models:
            raise GatedevalError(f"no model {name!r} in this run; it has {', '.join(map(repr, models))}")
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
    """Every comparison of two models under the same context, and in words those that are not there and why.

    Raises GatedevalError where the two were asked different things.
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
    wholes = {(x.context, x.benchmark, x.length) for x in found if x.task in ("average", "all")}
    return [x for x in found if x.task in ("average", "all") or (x.context, x.benchmark, x.length) not in wholes]


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
    pairs = []
    for a in cells:
        b = Cell(candidate, a.context, a.benchmark, a.task, a.length)
        lacking = [x.model for x in (a, b) if x not in store.cells or not usable(store, x)]
        if lacking:
            where = f" at {a.length}" if a.length else ""
            absent.append(f"{a.context} / {a.task}{where}: {' and '.join(lacking)} has no scores")
            continue
        pairs.append((a, b))
        metrics = list(store.scores(a).metrics) if a.benchmark == "gsm8k" else [store.scores(a).headline]
        found += [
            Line(
                context=a.context,
                benchmark=a.benchmark,
                task=a.task,
                length=a.length,
                metric=metric,
                comparison=compare_cells(store, [(a, b)], metric),
            )
            for metric in metrics
        ]
    whole = set(ruler_tasks(store)) if first.benchmark == "ruler" else {c.task for c in cells}
    if len(whole) > 1 and {a.task for a, _ in pairs} == whole:
        ruler = first.benchmark == "ruler"
        found.append(
            Line(
                context=first.context,
                benchmark=first.benchmark,
                task="average" if ruler else "all",
                length=first.length,
                metric=store.scores(first).headline,
                comparison=compare_cells(store, pairs, pooled=not ruler),
            )
        )


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
    averages = ruler_tasks(store)
    table = Table(
        style="delta",
        title=str(store.manifest.get("name", store.path.name)),
        columns=columns,
        rows=rows,
        make_frame=lambda: frame_of(found),
        breaks=breaks,
        missing=words.missing_lines(absent, []),
    )
    table.caption = [
        f"{candidate} minus {baseline}, points on 0-100, paired on the same samples; intervals by bootstrap of the "
        "per-sample differences, stratified by task.",
        f"▲ {candidate} above, ▼ below: p < {ALPHA} after Holm over {len(found)} comparisons; exact McNemar for 0/1 "
        "scores, sign-flip permutation for fractional ones and averages.",
        "gained, lost: samples on which only one of the two scores higher; detectable: the smallest difference that "
        "these samples show with 80% power.",
        *([f"average: mean over {len(averages)} RULER tasks with equal weight."] if len(averages) > 1 else []),
        *(
            f"{line.context}: MMLU's difference with subjects as clusters (would it hold on other subjects?): "
            f"{_span(line.comparison.clustered)}."
            for line in found
            if line.comparison.clustered is not None
        ),
        *words.setting_lines(store),
        *table.missing,
    ]
    if unpaired := sum(line.comparison.unpaired for line in found if line.task not in ("average", "all")):
        table.caption.append(f"{unpaired} samples that only one of the two models has were left out.")
    return table


def _span(interval: tuple[float, float]) -> str:
    return f"[{interval[0]:+.2f}, {interval[1]:+.2f}]"


def _row(line: Line) -> list[Entry]:
    c = line.comparison
    marks = ("▲" if c.difference > 0 else "▼") if c.adjusted < ALPHA else ""
    metric = f" ({line.metric.partition(',')[2] or line.metric})" if line.benchmark == "gsm8k" and line.metric else ""
    length = length_title(line.length) if line.length else ""
    best = round(c.candidate, 2) - round(c.baseline, 2)
    return [
        Entry(text=line.context),
        Entry(text=line.benchmark),
        Entry(text=line.task + metric),
        Entry(text=length),
        Entry(value=c.baseline, best=best < 0),
        Entry(value=c.candidate, best=best > 0),
        Entry(value=c.difference, signed=True, marks=marks),
        Entry(text=_span((c.low, c.high))),
        Entry(value=c.adjusted, decimals=4),
        Entry(value=c.gained, decimals=0),
        Entry(value=c.lost, decimals=0),
        Entry(value=c.mdd),
    ]


def frame_of(found: list[Line]) -> pd.DataFrame:
    """The comparisons as a tidy frame, `FRAME_COLUMNS`; scores and differences on 0-100."""
    rows = [
        [
            x.context,
            x.benchmark,
            x.task,
            x.length,
            x.comparison.samples,
            x.comparison.baseline,
            x.comparison.candidate,
            x.comparison.difference,
            x.comparison.low,
            x.comparison.high,
            x.comparison.p,
            x.comparison.adjusted,
            bool(x.comparison.adjusted < ALPHA),
            x.comparison.test,
            x.comparison.gained,
            x.comparison.lost,
            x.comparison.mdd,
            x.metric or "",
            *(x.comparison.clustered or (math.nan, math.nan)),
        ]
        for x in found
    ]
    frame = pd.DataFrame(rows, columns=FRAME_COLUMNS)
    assert not any(math.isnan(v) for v in frame["difference"])  # pairs are of usable cells only
    return frame
