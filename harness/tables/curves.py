"""What the figures and the report draw: score over length, task x length, needle depth x length. Scores on 0-100.

A run has at most one benchmark that is scored over length: RULER, or one shown like it (`scored_over_length`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness import stats
from harness.store import Store
from harness.tables.aggregates import lengths_of, over_length, task_mean, tasks_of, usable
from harness.tables.comparisons import choose
from harness.tables.frames import check_label, labels
from harness.tables.layout import DASH, length_title
from harness.tables.recipe import with_checkpoints
from harness.types import Cell

DEPTHS = 10  # rows of a needle grid


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The mean over tasks at every length for one model and context; only lengths that have it.

    `lengths` in tokens, ascending; `scores` and the ends of their 95% intervals, `lows` and `highs`, on 0-100;
    `counts`: samples per task, the smallest number where tasks differ.
    """

    model: str
    context: str
    lengths: list[int]
    scores: list[float]
    lows: list[float]
    highs: list[float]
    counts: list[int]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A matrix of scores, 0-100, or of differences in points; NaN where there is none.

    `values`, `counts` (the samples behind each value): shape (rows, columns).
    """

    title: str
    rows: list[str]
    columns: list[int]  # lengths in tokens
    values: np.ndarray
    counts: np.ndarray
    model: str = ""
    context: str = ""
    baseline: str = ""  # of a difference: the model that it is from


def scored_over_length(store: Store) -> str | None:
    """The run's benchmark that is scored over length, the first by rank; None where there is none."""
    return next(iter(over_length(store)), None)


def planned_lengths(store: Store) -> list[int]:
    """Every length that this benchmark was planned at, ascending."""
    benchmark = scored_over_length(store)
    return [] if benchmark is None else lengths_of(store, benchmark)


def curves(store: Store) -> list[Curve]:
    """A curve per context and model that has a mean over tasks, in the config's order; blocked means are left out."""
    benchmark = scored_over_length(store)
    if benchmark is None:
        return []
    found = [_curve(store, benchmark, m, c) for c in labels(store, "contexts") for m in labels(store, "models")]
    return [curve for curve in found if curve.lengths]


def _curve(store: Store, benchmark: str, model: str, context: str) -> Curve:
    curve = Curve(model=model, context=context, lengths=[], scores=[], lows=[], highs=[], counts=[])
    for length in lengths_of(store, benchmark):
        cells = [Cell(model, context, benchmark, task, length) for task in tasks_of(store, benchmark)]
        if not any(cell in store.cells for cell in cells):
            continue
        average = with_checkpoints(store, task_mean(store, cells), None, pooled=False)
        if not math.isnan(average.value):
            curve.lengths.append(length)
            curve.scores.append(average.value)
            curve.lows.append(100 * average.interval.low)
            curve.highs.append(100 * average.interval.high)
            curve.counts.append(min(len(store.scores(cell).ids) for cell in average.cells))
    return curve


def reach(curve: Curve) -> tuple[str, str]:
    """A curve in two numbers, as text: effective length, and its mean height over log2(length); a dash for no curve.

    One length is no curve. "< 4K": no evaluated length is above the threshold, and 4K is the shortest one.
    """
    if len(curve.lengths) < 2:
        return DASH, DASH
    points = dict(zip(curve.lengths, curve.scores, strict=True))
    longest = stats.effective_length(points)
    short = f"< {length_title(curve.lengths[0])}"
    return length_title(longest) if longest else short, f"{stats.area_under_curve(points):.1f}"


def task_grid(store: Store, model: str, context: str) -> Grid | None:
    """Score of every task at every length the context is planned for; None where the model has no score."""
    benchmark = scored_over_length(store)
    if benchmark is None:
        return None
    tasks, lengths = tasks_of(store, benchmark), lengths_of(store, benchmark, context)
    values, counts = np.full((len(tasks), len(lengths)), np.nan), np.zeros((len(tasks), len(lengths)), dtype=int)
    for i, task in enumerate(tasks):
        for j, length in enumerate(lengths):
            cell = Cell(model, context, benchmark, task, length)
            if cell in store.cells and usable(store, cell):
                scores = store.scores(cell).scores
                values[i, j], counts[i, j] = 100 * scores.mean(), scores.size
    if not counts.any():
        return None
    return Grid(
        title=f"{model}, {context}",
        rows=tasks,
        columns=lengths,
        values=values,
        counts=counts,
        model=model,
        context=context,
    )


def grids_of(
    store: Store, baseline: str | None = None, candidate: str | None = None
) -> Iterator[tuple[str, dict[str, Grid], list[Grid]]]:
    """Per context: its label, every model's task grid, and the differences to draw.

    Differences are candidate minus baseline where both are named; else every model's from `baseline`, or from the
    context's first model. Raises GatedevalError for a label that the run does not have.
    """
    if baseline is not None and candidate is not None:
        baseline, candidate = choose(store, baseline, candidate)
    known = labels(store, "models")
    for name in (baseline, candidate):
        check_label(store, "models", name)
    for context in labels(store, "contexts"):
        grids = {m: grid for m in known if (grid := task_grid(store, m, context)) is not None}
        first = baseline if baseline is not None else next((m for m in grids if m != candidate), None)
        others = [m for m in grids if m != first and (candidate is None or m == candidate)]
        yield context, grids, [difference_grid(grids[first], grids[m]) for m in others if first in grids]


def difference_grid(a: Grid, b: Grid) -> Grid:
    """b - a, points; the counts are the smaller of the two."""
    return Grid(
        title=f"{b.model} minus {a.model}, {a.context}" if a.model else f"{b.title} minus {a.title}",
        rows=a.rows,
        columns=a.columns,
        values=b.values - a.values,
        counts=np.minimum(a.counts, b.counts),
        model=b.model,
        context=a.context,
        baseline=a.model,
    )


def needle_grid(store: Store, model: str, context: str, task: str, bins: int = DEPTHS) -> Grid | None:
    """Mean score by needle depth (rows, from the prompt's start to its end) and length, for one needle task.

    The depth is the first needle's, as a share of the prompt. None where no sample records its needle's depth.
    """
    benchmark = scored_over_length(store) or ""
    lengths = [n for n in planned_lengths(store) if Cell(model, context, benchmark, task, n) in store.cells]
    total, counts = np.zeros((bins, len(lengths))), np.zeros((bins, len(lengths)), dtype=int)
    for j, length in enumerate(lengths):
        cell = Cell(model, context, benchmark, task, length)
        if not usable(store, cell):
            continue
        for sample in store.samples(cell):
            depth = (sample.extra.get("ruler") or {}).get("depth", sample.extra.get("depth"))
            if isinstance(depth, int | float) and 0 <= depth <= 1:
                i = min(int(depth * bins), bins - 1)
                total[i, j] += 100 * next(iter(sample.scores.values()))
                counts[i, j] += 1
    if not counts.any():
        return None
    with np.errstate(invalid="ignore"):
        values = np.where(counts > 0, total / np.maximum(counts, 1), np.nan)
    rows = [f"{100 * i // bins}–{100 * (i + 1) // bins}%" for i in range(bins)]  # noqa: RUF001  # a range's dash
    title = f"{model}, {context}"
    return Grid(title=title, rows=rows, columns=lengths, values=values, counts=counts, model=model, context=context)
