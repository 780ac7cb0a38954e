"""Numbers that stand for several cells: RULER's average over tasks, MMLU's over questions and over subjects."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from harness import stats
from harness.store import Store
from harness.store.derived import scale_of
from harness.types import Cell
from tasks.ruler.protocol import TASKS as RULER_TASKS


@dataclass(kw_only=True)
class Aggregate:
    """One number over several cells, 0-100. NaN and its reasons where it cannot be told.

    `missing`: cells without a single score (they block the number unless partial results were asked for);
    `partial`: cells with fewer samples than planned. `cells`: those that went in. `interval` and `clustered` are on
    0..1; the latter takes the cells (MMLU's subjects) as clusters, for a mean over the samples of several.
    """

    value: float
    interval: stats.Interval
    samples: int
    cells: list[Cell] = field(default_factory=list)
    clustered: stats.Interval | None = None
    missing: list[str] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)


def ruler_tasks(store: Store) -> list[str]:
    """Every RULER task that the run plans anywhere, in RULER's order: what its average is over."""
    planned = {cell.task for cell in store.cells if cell.benchmark == "ruler"}
    return [t for t in RULER_TASKS if t in planned] + sorted(planned - set(RULER_TASKS))


def sample_count(store: Store, cell: Cell) -> str:
    """ "137 of 500 samples", or "137 samples" where the plan does not say."""
    n, planned = len(store.scores(cell).ids), store.planned(cell)
    return f"{n} samples" if planned is None else f"{n} of {planned} samples"


def describe(cell: Cell) -> str:
    """A cell in words, for messages."""
    return f"{cell.model} / {cell.context} / {cell.task}" + (f" at {cell.length}" if cell.length else "")


def usable(store: Store, cell: Cell) -> bool:
    """Whether the cell has samples and every one has a score: NaN scores are a failed cell, never a zero."""
    values = store.scores(cell).scores
    return bool(values.size) and not bool(np.isnan(values).any())


def _gather(store: Store, cells: list[Cell]) -> tuple[list[Cell], list[str], list[str]]:
    """The usable cells, and in words the missing and the partial ones."""
    there, missing, partial = [], [], []
    for cell in cells:
        if cell not in store.cells:
            missing.append(f"{describe(cell)}: not in the plan")
            continue
        error = store.failures.get(cell.key)
        values = store.scores(cell).scores
        if not values.size:
            missing.append(f"{describe(cell)}: {error or 'no sample yet'}")
        elif bool(np.isnan(values).any()):
            missing.append(
                f"{describe(cell)}: failed, {int(np.isnan(values).sum())} of {values.size} samples have no score"
            )
        else:
            there.append(cell)
            planned = store.planned(cell)
            if error or (planned is not None and values.size < planned):
                partial.append(f"{describe(cell)}: {sample_count(store, cell)}" + (f"; {error}" if error else ""))
    return there, missing, partial


def task_mean(store: Store, cells: list[Cell], *, allow_partial: bool = False) -> Aggregate:
    """The mean of the cells' means with equal weight (RULER's average, MMLU's mean over subjects), 0-100."""
    there, missing, partial = _gather(store, cells)
    columns = [store.scores(cell).scores for cell in there]
    samples = sum(c.size for c in columns)
    value, interval = math.nan, stats.Interval(math.nan, math.nan, "")
    if columns and (allow_partial or not missing):
        value = 100 * float(np.mean([c.mean() for c in columns]))
        interval = stats.mean_interval(columns[0]) if len(columns) == 1 else stats.stratified_interval(columns)
    return Aggregate(value=value, interval=interval, samples=samples, cells=there, missing=missing, partial=partial)


def question_mean(
    store: Store, cells: list[Cell], metric: str | None = None, *, allow_partial: bool = False
) -> Aggregate:
    """The mean over all samples of the cells (MMLU's headline; GSM8k by `metric`), 0-100 for scores in 0..1."""
    there, missing, partial = _gather(store, cells)
    columns = []
    for cell in there:
        scores = store.scores(cell)
        columns.append(scores.scores if metric is None else scores.metrics.get(metric, np.empty(0)))
    pooled = np.concatenate(columns) if columns else np.empty(0)
    value, interval, clustered = math.nan, stats.Interval(math.nan, math.nan, ""), None
    if pooled.size and not np.isnan(pooled).any() and (allow_partial or not missing):
        value = scale_of(pooled) * float(pooled.mean())
        if scale_of(pooled) == 100.0:
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
        missing=missing,
        partial=partial,
    )
