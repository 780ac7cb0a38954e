"""Two models on the same samples: pairs by id and prompt, then difference, interval and test."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness import stats
from harness.store import Store
from harness.store.scores import pair
from harness.store.summary import scale_of
from harness.tables.aggregates import describe
from harness.tables.sampled import design_of, difference_in_rounds, in_rounds
from harness.types import Cell, GatedevalError

ALPHA = 0.05  # a Holm-adjusted p-value below this is a difference


@dataclass(kw_only=True)
class Comparison:
    """Candidate minus baseline over common samples.

    `baseline`, `candidate`, `difference`, its 95% interval `low`..`high`, `mdd` and `clustered` are on 0-100, or on the
    metric's own scale. `p` is the test's own, `adjusted` Holm's over the family of `family` comparisons. `mdd`: the
    smallest difference that the samples show with 80% power at level `ALPHA / family`, the strictest that Holm may ask
    of a single comparison; a test alone (`family` 1) has the level `ALPHA`. `gained` and `lost` count samples that only
    the candidate, or only the baseline, scores higher. `differences`: per task, candidate minus baseline, 0..1.
    `checkpoints`: of two rows of which one is an arm, every checkpoint's mean in both, 0..1. `recipe`: whether
    interval, test and `mdd` are over them, and not by sample; `hierarchical` is then its interval over samples too.
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
    differences: list[NDArray[np.float64]] = field(repr=False)
    scale: float = 100.0
    family: int = 1
    clustered: tuple[float, float] | None = None  # interval with tasks (MMLU: subjects) as clusters, where pooled
    adjusted: float = float("nan")
    checkpoints: tuple[NDArray[np.float64], NDArray[np.float64]] | None = field(default=None, repr=False)
    recipe: bool = False
    hierarchical: tuple[float, float] | None = None

    @property
    def significant(self) -> bool:
        """Whether the difference holds after Holm's adjustment."""
        return self.adjusted < ALPHA

    def judge(self, family: int) -> None:
        """Make this one of `family` comparisons: its detectable difference, and of recipes the test that can decide."""
        self.family, level = family, ALPHA / family
        found = math.nan
        if self.recipe and self.checkpoints is not None:
            self.p, self.test = stats.recipe_p(*self.checkpoints, level)
            found = stats.recipe_detectable(*self.checkpoints, level=1 - level)
        if math.isnan(found):  # by sample; or no two checkpoints of an arm differ
            found = stats.minimum_detectable_difference(self.differences, level=1 - level)
        self.mdd = self.scale * found

    @property
    def larger_than_detectable(self) -> bool:
        """Whether the difference is at least the one that is usually shown: then "not shown" needs another sentence."""
        return abs(self.difference) >= self.mdd

    @property
    def mark(self) -> str:
        """ "▲": the candidate is significantly better, "▼": worse, or nothing."""
        return ("▲" if self.difference > 0 else "▼") if self.significant else ""


def paired_scores(
    store: Store, a: Cell, b: Cell, metric: str | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Scores of a and of b on the samples that both have, 0..1, in natural id order, and how many only one has.

    Raises GatedevalError where a common id has two different prompts (another seed, profile or tokenizer), where there
    is no common sample, and where a score is NaN: two models are compared on the same samples or not at all.
    """
    left, right = store.scores(a), store.scores(b)
    pairing = pair(left, right)
    n = len(pairing.left)
    if not n:
        raise GatedevalError(f"{describe(a)} and {describe(b)} have no sample in common; run both on the same samples")
    if pairing.differing:
        raise GatedevalError(
            f"{describe(a)} and {describe(b)} were asked different things: {len(pairing.differing)} of {n} common "
            f"samples differ in prompt, first {pairing.differing[0]!r}; run both with the same seed, profile, shots "
            "and tokenizer"
        )
    name = metric or left.headline or ""
    if name not in left.metrics or name not in right.metrics:
        raise GatedevalError(
            f"{describe(a)} and {describe(b)} were scored differently: {', '.join(left.metrics)} "
            f"against {', '.join(right.metrics)}"
        )
    if name in left.weights:
        raise GatedevalError(
            f"{describe(a)}: {name} is one number of all texts together, and is not tested text by text"
        )
    x, y = left.metrics[name][pairing.left], right.metrics[name][pairing.right]
    if np.isnan(x).any() or np.isnan(y).any():
        raise GatedevalError(
            f"{describe(a)} or {describe(b)} has samples without a score: it failed, and cannot be compared"
        )
    return x, y, len(left.ids) + len(right.ids) - 2 * n


def compare_cells(
    store: Store, cells: list[tuple[Cell, Cell]], metric: str | None = None, *, pooled: bool = False
) -> Comparison:
    """Compare (baseline cell, candidate cell) pairs: equal weight per pair, or `pooled` by sample (MMLU, GSM8k)."""
    if in_rounds(store, (cell for both in cells for cell in both)):
        return _compare_in_rounds(store, cells, metric, pooled=pooled)
    xs, ys, unpaired = [], [], 0
    for a, b in cells:
        x, y, only = paired_scores(store, a, b, metric)
        xs.append(x)
        ys.append(y)
        unpaired += only
    clusters = np.repeat(np.arange(len(xs)), [x.size for x in xs])
    if pooled:
        xs, ys = [np.concatenate(xs)], [np.concatenate(ys)]
    deltas = stats.paired_differences(xs, ys)
    scale = scale_of(*xs, *ys)
    interval = stats.paired_interval(deltas)
    clustered = stats.clustered_interval(deltas[0], list(clusters), paired=True) if pooled and len(cells) > 1 else None
    p, test = stats.paired_p(deltas)
    return _comparison(
        cells,
        deltas,
        scale,
        unpaired=unpaired,
        means=(float(np.mean([x.mean() for x in xs])), float(np.mean([y.mean() for y in ys]))),
        difference=stats.mean_difference(deltas),
        interval=interval,
        p=p,
        test=test,
        detectable=deltas,
        clustered=None if clustered is None else (scale * clustered.low, scale * clustered.high),
    )


def _compare_in_rounds(store: Store, cells: list[tuple[Cell, Cell]], metric: str | None, *, pooled: bool) -> Comparison:
    """`compare_cells` on the common samples of cells whose samples came in rounds, which may differ in number.

    Of two prefixes of one order of samples, the shorter one is what both have. Pooled by question, a subject counts by
    its questions, asked or not.
    """
    pairs = [paired_scores(store, a, b, metric) for a, b in cells]
    xs, ys = [x for x, _, _ in pairs], [y for _, y, _ in pairs]
    deltas = stats.paired_differences(xs, ys)
    scale = scale_of(*xs, *ys)
    weights = design_of(store, [b for _, b in cells], pooled=pooled).weights
    difference, interval, p, test = difference_in_rounds(store, cells, deltas, pooled=pooled)
    # Scaled so that their mean with equal weight is the difference, which is what detectable differences are of.
    scaled = [d * w * len(deltas) for d, w in zip(deltas, weights, strict=True)]
    return _comparison(
        cells,
        deltas,
        scale,
        unpaired=sum(only for _, _, only in pairs),
        means=(
            float(sum(w * x.mean() for w, x in zip(weights, xs, strict=True))),
            float(sum(w * y.mean() for w, y in zip(weights, ys, strict=True))),
        ),
        difference=difference,
        interval=interval,
        p=p,
        test=test,
        detectable=scaled,
    )


def _comparison(
    cells: list[tuple[Cell, Cell]],
    deltas: list[NDArray[np.float64]],
    scale: float,
    *,
    unpaired: int,
    means: tuple[float, float],
    difference: float,
    interval: stats.Interval,
    p: float,
    test: str,
    detectable: list[NDArray[np.float64]],
    clustered: tuple[float, float] | None = None,
) -> Comparison:
    """The comparison from its numbers on 0..1; `means`: baseline and candidate. `detectable`: the differences by sample
    whose mean with equal weight is the difference.
    """
    split = stats.discordance(np.concatenate(deltas))
    return Comparison(
        cells=cells,
        samples=sum(d.size for d in deltas),
        unpaired=unpaired,
        baseline=scale * means[0],
        candidate=scale * means[1],
        difference=scale * difference,
        low=scale * interval.low,
        high=scale * interval.high,
        p=p,
        test=test,
        gained=split.gained,
        lost=split.lost,
        mdd=scale * stats.minimum_detectable_difference(detectable),
        differences=detectable,
        scale=scale,
        clustered=clustered,
    )


def adjust(comparisons: list[Comparison]) -> None:
    """Make the comparisons one family: Holm-adjusted p-values, and detectable differences at the family's level."""
    for comparison in comparisons:
        comparison.judge(len(comparisons))
    for comparison, p in zip(comparisons, stats.holm([c.p for c in comparisons]), strict=True):
        comparison.adjusted = p
