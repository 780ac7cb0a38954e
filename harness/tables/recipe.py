"""Two rows compared: these files, paired by sample, or their recipes, with the checkpoints of an arm as the unit."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from harness import stats
from harness.store import Store
from harness.store.scores import pair
from harness.tables.aggregates import Aggregate
from harness.tables.arms import Arms, arms_of, spread_of
from harness.tables.paired import Comparison, compare_cells
from harness.types import Cell


def compare_pairs(
    store: Store, cells: list[tuple[Cell, Cell]], metric: str | None = None, *, pooled: bool = False
) -> Comparison:
    """`compare_cells`, about what the run infers: the files, or the recipes where it is read by arm and says so.

    Of recipes, interval, p-value and detectable difference are over checkpoints (`harness.stats.arms`); difference and
    counts of samples are those of the files. Where no two checkpoints of an arm differ, nothing is known about other
    trainings: interval and detectable difference stay those by sample, and the permutation decides. Raises
    GatedevalError as `compare_cells` does.
    """
    comparison = compare_cells(store, cells, metric, pooled=pooled)
    arms = arms_of(store)
    if arms is None or all(len(arms.of(cell)) < 2 for cell in cells[0]):
        return comparison
    scores = _common_scores(store, arms, cells, metric)
    if pooled:
        scores = ([np.concatenate(scores[0], axis=1)], [np.concatenate(scores[1], axis=1)])
    left, right = (np.mean([s.mean(axis=1) for s in side], axis=0) for side in scores)
    comparison.checkpoints = left, right
    if arms.infer == "recipe":
        comparison.recipe, comparison.clustered = True, None
        interval, wide = stats.welch_interval(left, right), stats.hierarchical_interval(*scores)
        scale = comparison.scale
        if not math.isnan(interval.low):
            comparison.low, comparison.high = scale * interval.low, scale * interval.high
            comparison.hierarchical = scale * wide.low, scale * wide.high
        comparison.judge(1)
    return comparison


def _common_scores(
    store: Store, arms: Arms, cells: list[tuple[Cell, Cell]], metric: str | None
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]:
    """For each pair of cells, the scores by checkpoint of both arms over the samples that all checkpoints answered."""
    left, right = [], []
    for a, b in cells:
        pairing = pair(store.scores(a), store.scores(b))
        left.append(arms.scores(a, metric)[:, pairing.left])
        right.append(arms.scores(b, metric)[:, pairing.right])
    return left, right


def with_checkpoints(store: Store, aggregate: Aggregate, metric: str | None, *, pooled: bool) -> Aggregate:
    """The aggregate with its arm's checkpoints; of recipes, its interval is over them."""
    if math.isnan(aggregate.value):
        return aggregate
    means, scale = spread_of(store, aggregate.cells, metric, pooled=pooled)
    aggregate.checkpoints = [scale * m for m in means]
    arms = arms_of(store)
    if means and arms is not None and arms.infer == "recipe":
        interval = stats.arm_interval(means)
        aggregate.clustered = None
        if scale == 100.0 and not math.isnan(interval.low):
            aggregate.interval = interval
    return aggregate
