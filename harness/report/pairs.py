"""Gained, lost, both right, both wrong: two models under one context setting, or one model under two, cell by cell."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from harness.benchmarks.presentation import presentation_of
from harness.store import Store
from harness.store.summary import scale_of
from harness.tables.aggregates import usable
from harness.tables.frames import ordered_cells
from harness.tables.paired import paired_scores
from harness.types import Cell, GatedevalError

PairCounts = list[list[Any]]
"""Per pair of cells and metric: number of the first cell, of the second (as in `ordered_cells`), number of the metric,
then gained, lost, both right, both wrong, difference in points; or in their place the reason why there are none."""


def pair_counts(store: Store) -> PairCounts:
    """Every two cells of one task and length that differ in the model alone, or in the context setting alone.

    gained: samples that the second scores higher; lost: lower, as `gatedeval compare` counts them. Of the others, both
    right have the full score, both wrong less. Samples that only one of the two has are left out.
    """
    alike: dict[tuple[str, str, int], list[tuple[int, Cell]]] = {}
    for number, cell in enumerate(ordered_cells(store)):
        if usable(store, cell):
            alike.setdefault((cell.benchmark, cell.task, cell.length), []).append((number, cell))
    return [
        row
        for cells in alike.values()
        for (i, a), (j, b) in combinations(cells, 2)
        if (a.model == b.model) != (a.context == b.context)
        for row in _counts(store, i, a, j, b)
    ]


def _counts(store: Store, i: int, a: Cell, j: int, b: Cell) -> PairCounts:
    columns = store.scores(a)
    names = list(columns.metrics) if presentation_of(a.benchmark).every_metric else [columns.headline]
    rows: PairCounts = []
    for number, metric in enumerate(names):
        try:
            x, y, _ = paired_scores(store, a, b, metric)
        except GatedevalError as error:
            return [[i, j, 0, str(error)]]
        same = x == y
        both = int((same & (x == 1)).sum())
        difference = scale_of(x, y) * float(np.mean(y - x))
        counts = [int((y > x).sum()), int((y < x).sum()), both, int(same.sum()) - both]
        rows.append([i, j, number, *counts, float(f"{difference:.1f}")])  # the digits of the other maps
    return rows
