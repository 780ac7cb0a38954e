"""Rerun noise: how far two runs of the same config lie apart, beside the difference of two models.

Greedy decoding is deterministic for a fixed composition of batches. In 16-bit precision another composition rounds
differently, and sometimes another token is chosen. Two runs of one config differ in nothing else: the hashes of their
samples are equal.
"""

from __future__ import annotations

import numpy as np

from harness.store import Store
from harness.store.summary import scale_of
from harness.tables.comparisons import Line
from harness.text import counted, number_text
from harness.types import Cell, GatedevalError


def rerun_sentence(store: Store, again: Store, line: Line) -> str:
    """ "rerun: baseline -0.40 (3 of 500 samples scored otherwise), gated +0.00 (0 of ...)", on the line's own scale."""
    parts = []
    for side in (0, 1):
        cells = [pair[side] for pair in line.comparison.cells]
        change, moved, count = _noise(store, again, cells, line.metric, pooled=line.task == "all")
        moves = f"{moved} of {counted(count, 'sample')} scored otherwise"
        parts.append(f"{cells[0].model} {number_text(change, 2, signed=True)} ({moves})")
    return f"rerun: {', '.join(parts)}"


def _noise(
    store: Store, again: Store, cells: list[Cell], metric: str | None, *, pooled: bool
) -> tuple[float, int, int]:
    """(mean change from one run to the other in points or the metric's own unit, samples scored otherwise, samples).

    Raises GatedevalError where a sample of the cells is not in both with the same content hash: then it is no rerun.
    """
    columns = []
    for cell in cells:
        hashes = store.done(cell)
        if cell not in again.cells or again.done(cell) != hashes or not hashes:
            raise GatedevalError(
                f"{again.path} is no rerun of {store.path}: {cell.key} does not have the same samples there (same "
                "config, finished, with throughput settings alone changed)"
            )
        first, second = store.scores(cell), again.scores(cell)
        name = metric or first.headline or ""
        columns.append((first.metrics[name], second.metrics[name]))
    if pooled:
        columns = [tuple(np.concatenate(side) for side in zip(*columns, strict=True))]
    scale = scale_of(*(scores for pair in columns for scores in pair))
    change = scale * float(np.mean([(b - a).mean() for a, b in columns]))
    return change, sum(int((a != b).sum()) for a, b in columns), sum(a.size for a, _ in columns)
