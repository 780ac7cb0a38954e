"""Numbers that stand for several cells: a mean over tasks with equal weight, a mean over questions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness import stats
from harness.benchmarks.presentation import presentation_of
from harness.benchmarks.rolling import combined
from harness.store import Store
from harness.store.summary import scale_of
from harness.tables.sampled import in_rounds, mean_in_rounds
from harness.text import counted
from harness.types import Cell


@dataclass(kw_only=True)
class Aggregate:
    """One number over several cells, 0-100 (or on the metric's own scale). NaN when cells are missing.

    `cells`: those that went in. `missing` lists, in words, the cells without scores; they block the number unless
    partial results were asked for. `partial` lists cells with fewer samples than planned. `interval` and `clustered`
    are on 0..1; the latter takes the cells (MMLU's subjects) as clusters, for a mean over the questions of several.
    `checkpoints`: the number of every checkpoint of an arm, unit of the value; empty for a single one.
    `in_rounds`: the samples of some cell came in rounds, so the cells may have different numbers of them.
    """

    value: float
    interval: stats.Interval
    samples: int
    cells: list[Cell] = field(default_factory=list)
    clustered: stats.Interval | None = None
    in_rounds: bool = False
    missing: list[str] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)
    checkpoints: list[float] = field(default_factory=list)


# ------------------------------------------------------------------------------------------------- what is planned


def benchmarks_of(store: Store) -> list[str]:
    """Every benchmark that the run plans, in the order that tables show them."""
    return sorted(dict.fromkeys(cell.benchmark for cell in store.cells), key=lambda name: presentation_of(name).rank)


def tasks_of(store: Store, benchmark: str) -> list[str]:
    """Every task of the benchmark that the run plans anywhere, in the benchmark's own order."""
    return presentation_of(benchmark).ordered(cell.task for cell in store.cells if cell.benchmark == benchmark)


def lengths_of(store: Store, benchmark: str, context: str | None = None) -> list[int]:
    """Every length in tokens that the benchmark is planned at (under one context setting), ascending."""
    return sorted({c.length for c in store.cells if c.benchmark == benchmark and context in (None, c.context)})


def over_length(store: Store) -> list[str]:
    """The run's benchmarks that are scored over length, by their mean over tasks: RULER, and those shown like it."""
    return [name for name in benchmarks_of(store) if presentation_of(name).pooling == "tasks"]


# ------------------------------------------------------------------------------------------------- one cell


def describe(cell: Cell) -> str:
    """A cell in words, for messages."""
    return f"{cell.model} / {cell.context} / {cell.task}" + (f" at {cell.length}" if cell.length else "")


def usable(store: Store, cell: Cell) -> bool:
    """Whether the cell has samples and every one has a score: NaN scores are a failed cell, never a zero."""
    values = store.scores(cell).scores
    return bool(values.size) and not bool(np.isnan(values).any())


def _sample_count(n: int, planned: int | None) -> str:
    """ "137 of 500 samples", or "137 samples" where the plan does not say."""
    return counted(n, "sample") if planned is None else f"{n} of {counted(planned, 'sample')}"


# ------------------------------------------------------------------------------------------------- several cells


def _gather(store: Store, cells: list[Cell]) -> tuple[list[Cell], list[str], list[str]]:
    """The usable cells, and in words the missing and the partial ones."""
    there, missing, partial = [], [], []
    for cell in cells:
        if cell not in store.cells:
            missing.append(f"{describe(cell)}: not in the plan")
            continue
        error = store.failures.get(cell.key)
        values = store.scores(cell).scores
        unscored = int(np.isnan(values).sum())
        if not values.size:
            missing.append(f"{describe(cell)}: {error or 'no sample yet'}")
        elif unscored:
            missing.append(f"{describe(cell)}: failed, {unscored} of {values.size} samples have no score")
        else:
            there.append(cell)
            planned = store.planned(cell)
            if error or (planned is not None and values.size < planned):
                count = _sample_count(values.size, planned)
                partial.append(f"{describe(cell)}: {count}" + (f"; {error}" if error else ""))
    return there, missing, partial


def task_mean(store: Store, cells: list[Cell], *, allow_partial: bool = False) -> Aggregate:
    """The mean of the cells' means with equal weight (RULER's average, MMLU's mean over subjects), 0-100."""
    there, missing, partial = _gather(store, cells)
    columns = [store.scores(cell).scores for cell in there]
    samples = sum(c.size for c in columns)
    value, interval = math.nan, stats.Interval(math.nan, math.nan, "")
    if columns and (allow_partial or not missing):
        value = 100 * float(np.mean([c.mean() for c in columns]))
        if in_rounds(store, there) and scale_of(*columns) == 100.0:
            interval = mean_in_rounds(store, there, columns, pooled=False)[1]
        else:
            interval = stats.mean_interval(columns[0]) if len(columns) == 1 else stats.stratified_interval(columns)
    return Aggregate(
        value=value,
        interval=interval,
        samples=samples,
        cells=there,
        in_rounds=in_rounds(store, there),
        missing=missing,
        partial=partial,
    )


def question_mean(
    store: Store, cells: list[Cell], metric: str | None = None, *, allow_partial: bool = False
) -> Aggregate:
    """The mean over all samples of the cells (MMLU's headline; GSM8k by `metric`), 0-100 for scores in 0..1.

    `metric` None takes each cell's headline metric. Perplexities of texts are combined as lm-eval does.
    """
    there, missing, partial = _gather(store, cells)
    columns: list[NDArray[np.float64]] = []
    weights: list[NDArray[np.float64]] = []
    for cell in there:
        scores = store.scores(cell)
        name = metric or scores.headline or ""
        columns.append(scores.scores if metric is None else scores.metrics.get(metric, np.empty(0)))
        weights += [scores.weights[name]] if name in scores.weights else []
    pooled = np.concatenate(columns) if columns else np.empty(0)
    value, interval, clustered = math.nan, stats.Interval(math.nan, math.nan, ""), None
    if weights:  # perplexities of texts: one number of all of them, without an interval
        if not np.isnan(pooled).any() and (allow_partial or not missing):
            value = combined(name, pooled.tolist(), np.concatenate(weights).tolist())
    elif pooled.size and not np.isnan(pooled).any() and (allow_partial or not missing):
        scale = scale_of(pooled)
        value = scale * float(pooled.mean())
        if in_rounds(store, there):
            value, interval = _pooled_in_rounds(store, there, columns, scale)
        elif scale == 100.0:
            interval = stats.mean_interval(pooled)
            if len(columns) > 1:
                clusters = np.repeat(np.arange(len(columns)), [c.size for c in columns])
                clustered = stats.clustered_interval(pooled, list(clusters))
    return Aggregate(
        value=value,
        interval=interval,
        clustered=clustered,
        samples=int(pooled.size),
        cells=there,
        in_rounds=in_rounds(store, there),
        missing=missing,
        partial=partial,
    )


def _pooled_in_rounds(
    store: Store, cells: list[Cell], columns: list[NDArray[np.float64]], scale: float
) -> tuple[float, stats.Interval]:
    """`question_mean` of cells whose samples came in rounds: every cell counts by its questions, asked or not."""
    value, interval = mean_in_rounds(store, cells, columns, pooled=True)
    return scale * value, interval if scale == 100.0 else stats.Interval(math.nan, math.nan, "")
