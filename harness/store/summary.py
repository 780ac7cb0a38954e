"""cells.csv: one row per cell, computed from the samples alone (`gatedeval rebuild` writes it again)."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from harness.store.scores import CellScores
from harness.types import Cell


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellSummary:
    """One row of cells.csv; the fields are its columns, in order.

    A cell in which any sample has no score (NaN) has failed as a whole: the mean over the rest would be a mean over a
    selection.
    """

    model: str
    context: str
    benchmark: str
    task: str
    length: int  # tokens; 0 where the benchmark has no length
    samples: int  # finished samples that the plan asks for
    score: float  # 100 x the mean of the headline metric, NaN for a failed or empty cell; see `scale_of`
    metric: str | None  # the headline metric; None where nothing was scored
    planned: int | None  # None where the plan does not say
    length_capped: float  # share of answers that their token budget cut, 0..1; NaN for an empty cell
    error: str | None

    @property
    def complete(self) -> bool:
        """Whether every planned sample is there (at least one where the number is unknown), each with a score."""
        enough = self.planned is None or self.samples >= self.planned
        return bool(self.samples) and not math.isnan(self.score) and enough


def summarise(cell: Cell, columns: CellScores, planned: int | None, error: str | None = None) -> CellSummary:
    """The summary of one cell. `error`: why the cell ended early, where the run recorded it."""
    values = columns.scores
    n, unscored = len(values), int(np.isnan(values).sum())
    if unscored:
        error = f"{unscored} of {n} samples have no score" + (f"; {error}" if error else "")
    return CellSummary(
        **dataclasses.asdict(cell),
        samples=n,
        score=math.nan if n == 0 or unscored else columns.mean() * (1 if columns.weights else scale_of(values)),
        metric=columns.headline,
        planned=planned,
        length_capped=float(columns.capped.mean()) if n else math.nan,
        error=error,
    )


def scale_of(*columns: NDArray[np.float64]) -> float:
    """What a table multiplies scores with: 100 where all are in 0..1, else 1 (perplexity, BLEU keep their scale).

    Each column has shape (n,) and may hold NaN, which is ignored; without any score the scale is 100.
    """
    inside = all(np.all(np.isnan(c) | ((c >= 0) & (c <= 1))) for c in columns)
    return 100.0 if inside else 1.0


def to_csv(rows: Iterable[CellSummary]) -> str:
    """Summaries as CSV, floats with six digits; a missing number is an empty field, never a zero."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [f.name for f in dataclasses.fields(CellSummary)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _field(value) for name, value in dataclasses.asdict(row).items()})
    return out.getvalue()


def _field(value: object) -> object:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value
