"""Two models on the same samples: pairing by id and prompt, then difference, interval and test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness import stats
from harness.store import Store
from harness.tables.aggregates import describe
from harness.types import Cell, GatedevalError


@dataclass(kw_only=True)
class Comparison:
    """Candidate minus baseline over common samples; score, difference, interval and mdd on 0-100.

    `p` is the test's own, `adjusted` Holm's over the table it stands in. `gained` and `lost` count samples that only
    the candidate, or only the baseline, scores higher.
    """

    cells: list[tuple[Cell, Cell]]
    samples: int
    unpaired: int  # samples that only one of the two has
    baseline: float
    candidate: float
    difference: float
    low: float
    high: float
    p: float
    test: str
    gained: int
    lost: int
    mdd: float
    clustered: tuple[float, float] | None = None  # interval with tasks (MMLU: subjects) as clusters, where pooled
    adjusted: float = float("nan")


def differences(store: Store, a: Cell, b: Cell, metric: str | None = None) -> tuple[np.ndarray, np.ndarray, int]:
    """Scores of a and of b on the samples that both have, 0..1, in natural id order, and how many only one has.

    Raises GatedevalError where a common id asks two different things (another seed, profile or tokenizer), where there
    is no common sample, and where a score is NaN: compared on the same samples or not at all.
    """
    left, right = store.scores(a), store.scores(b)
    where = {id: i for i, id in enumerate(right.ids)}
    pairs = [(i, where[id]) for i, id in enumerate(left.ids) if id in where]
    if not pairs:
        raise GatedevalError(f"{describe(a)} and {describe(b)} have no sample in common; run both on the same samples")
    i, j = (np.array(side) for side in zip(*pairs, strict=True))
    differing = np.flatnonzero(left.prompts[i] != right.prompts[j])
    if differing.size:
        first = left.ids[i[differing[0]]]
        raise GatedevalError(
            f"{describe(a)} and {describe(b)} were asked different things: {differing.size} of {len(pairs)} common "
            f"samples differ in prompt, first {first!r}; run both with the same seed, profile, shots and tokenizer"
        )
    name = metric or left.headline or ""
    if name not in left.metrics or name not in right.metrics:
        raise GatedevalError(
            f"{describe(a)} and {describe(b)} were scored differently: {', '.join(left.metrics)} "
            f"against {', '.join(right.metrics)}"
        )
    x, y = left.metrics[name][i], right.metrics[name][j]
    if np.isnan(x).any() or np.isnan(y).any():
        raise GatedevalError(
            f"{describe(a)} or {describe(b)} has samples without a score: it failed, and cannot be compared"
        )
    return x, y, len(left.ids) + len(right.ids) - 2 * len(pairs)


def compare_cells(
    store: Store, cells: list[tuple[Cell, Cell]], metric: str | None = None, *, pooled: bool = False
) -> Comparison:
    """Compare (baseline cell, candidate cell) pairs: equal weight per pair, or `pooled` by sample (MMLU, GSM8k)."""
    xs, ys, unpaired = [], [], 0
    for a, b in cells:
        x, y, only = differences(store, a, b, metric)
        xs.append(x)
        ys.append(y)
        unpaired += only
    clusters = np.repeat(np.arange(len(xs)), [x.size for x in xs])
    if pooled:
        xs, ys = [np.concatenate(xs)], [np.concatenate(ys)]
    deltas = stats.paired_differences(xs, ys)
    scale = 100.0 if all(v.min() >= 0 and v.max() <= 1 for v in (*xs, *ys)) else 1.0
    interval = stats.paired_interval(deltas)
    clustered = stats.clustered_interval(deltas[0], list(clusters), paired=True) if pooled and len(cells) > 1 else None
    p, test = stats.paired_p(deltas)
    split = stats.discordance(np.concatenate(deltas))
    return Comparison(
        cells=cells,
        samples=sum(d.size for d in deltas),
        unpaired=unpaired,
        baseline=scale * float(np.mean([x.mean() for x in xs])),
        candidate=scale * float(np.mean([y.mean() for y in ys])),
        difference=scale * stats.mean_difference(deltas),
        low=scale * interval.low,
        high=scale * interval.high,
        p=p,
        test=test,
        gained=split.gained,
        lost=split.lost,
        mdd=scale * stats.minimum_detectable_difference(deltas),
        clustered=None if clustered is None else (scale * clustered.low, scale * clustered.high),
    )


def adjust(comparisons: list[Comparison]) -> None:
    """Fill in Holm-adjusted p-values over all the comparisons of one table."""
    for comparison, p in zip(comparisons, stats.holm([c.p for c in comparisons]), strict=True):
        comparison.adjusted = p
