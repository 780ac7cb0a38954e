"""Two arms, each of several checkpoints of one recipe: what holds for other trainings, and not for these files alone.

A test by sample treats the checkpoints as given. Two checkpoints of one recipe differ too (seed, data order), so it
finds differences where recipes do not differ. Here the checkpoint is the unit: an arm of K checkpoints has K numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from harness.stats.intervals import LEVEL, Array, Interval, column_of

MOST_ASSIGNMENTS = 200_000  # of checkpoints to arms that are enumerated; beyond, arms are large enough for Welch's t


class Welch(NamedTuple):
    """Welch's t on the checkpoints' means: `difference` b - a, its standard `error`, degrees of freedom, two-sided p.

    `p` is NaN where the test says nothing: fewer than two checkpoints in an arm, or no spread in both.
    """

    difference: float
    error: float
    df: float
    p: float


def spread(means: ArrayLike) -> float:
    """The standard deviation between checkpoints (divisor K - 1), in the unit of the means; NaN for one checkpoint."""
    column = column_of(means)
    return float(column.std(ddof=1)) if column.size > 1 else math.nan


def welch(a: ArrayLike, b: ArrayLike) -> Welch:
    """Welch's t test (Welch 1947) of b - a over the means of K_a and K_b checkpoints.

    t = (mean b - mean a) / sqrt(s_a^2 / K_a + s_b^2 / K_b), with Satterthwaite's degrees of freedom, but never more
    than 2 (min(K_a, K_b) - 1): those of two arms of the smaller size. Without that bound, 2 checkpoints against 5
    reject true null hypotheses in 6.4% (equal spreads) to 10% of cases (the pair twice as spread) at level 5%. Raises
    ValueError for an empty arm.
    """
    x, y = column_of(a), column_of(b)
    if not x.size or not y.size:
        raise ValueError("an arm without checkpoints cannot be compared")
    difference = float(y.mean() - x.mean())
    if x.size < 2 or y.size < 2:
        return Welch(difference, math.nan, math.nan, math.nan)
    parts = [float(c.var(ddof=1)) / c.size for c in (x, y)]
    most = 2.0 * (min(x.size, y.size) - 1)
    error = math.sqrt(sum(parts))
    if error <= 1e-12:  # rounding of equal means
        return Welch(difference, 0.0, most, 1.0 if abs(difference) <= 1e-12 else math.nan)
    shares = [part / sum(parts) for part in parts]
    df = min(most, 1 / sum(s * s / (c.size - 1) for s, c in zip(shares, (x, y), strict=True)))
    p = 2 * float(special.stdtr(df, -abs(difference) / error))
    return Welch(difference, error, df, p)


def welch_interval(a: ArrayLike, b: ArrayLike, level: float = LEVEL) -> Interval:
    """The interval of b - a that belongs to `welch`; NaN where an arm has one checkpoint, or neither has any spread."""
    found = welch(a, b)
    if not found.error > 0:
        return Interval(math.nan, math.nan, "Welch")
    half = _t(found.df, 0.5 + level / 2) * found.error
    return Interval(found.difference - half, found.difference + half, "Welch")


def arm_interval(means: ArrayLike, level: float = LEVEL) -> Interval:
    """Student's interval of one arm's mean over its checkpoints; NaN for one checkpoint, or without any spread.

    Ends are cut to 0..1 for means in 0..1.
    """
    column = column_of(means)
    if column.size < 2 or np.ptp(column) <= 1e-12:
        return Interval(math.nan, math.nan, "t over checkpoints")
    half = _t(column.size - 1, 0.5 + level / 2) * spread(column) / math.sqrt(column.size)
    low, high = float(column.mean()) - half, float(column.mean()) + half
    if column.min() >= 0 and column.max() <= 1:
        low, high = max(0.0, low), min(1.0, high)
    return Interval(low, high, "t over checkpoints")


def assignments(a: int, b: int) -> int:
    """In how many ways a + b checkpoints can be split into arms of a and b."""
    return math.comb(a + b, a)


def permutation_floor(a: int, b: int) -> float:
    """The smallest p-value of `checkpoint_permutation` for arms of a and b checkpoints.

    Two-sided: with arms of one size, the split and its mirror image are equally far. 2 against 2: 1/3; 3 and 3: 0.1;
    4 and 4: 0.029; 5 and 5: 0.0079. Below 4 against 4 it can never reach 5%.
    """
    return (2 if a == b else 1) / assignments(a, b)


def checkpoint_permutation(a: ArrayLike, b: ArrayLike) -> float:
    """Exact two-sided permutation test of the difference of arms' means (Fisher 1935; Pitman 1937).

    If the recipes do not differ, every split of all checkpoints into arms of these sizes is equally likely: p is the
    share of splits whose difference is at least as far from 0. It assumes no distribution. Raises ValueError for more
    than `MOST_ASSIGNMENTS` splits.
    """
    x, y = column_of(a), column_of(b)
    count = assignments(x.size, y.size)
    if count > MOST_ASSIGNMENTS:
        raise ValueError(f"{count} assignments of checkpoints are too many to enumerate")
    pooled = np.concatenate([x, y])
    chosen = np.array(list(combinations(range(pooled.size), x.size)), dtype=np.intp).reshape(count, x.size)
    sums = pooled[chosen].sum(axis=1)
    differences = (pooled.sum() - sums) / y.size - sums / x.size
    seen = abs(float(y.mean() - x.mean()))
    slack = 1e-9 * max(1.0, float(np.abs(pooled).max(initial=0.0)))  # the same sum in another order
    return float((np.abs(differences) >= seen - slack).mean())


def recipe_p(a: ArrayLike, b: ArrayLike, level: float) -> tuple[float, str]:
    """The p-value that decides at `level`, and the name of its test.

    The exact permutation where it can reach `level` with so many checkpoints: it assumes nothing. Else Welch's t, which
    assumes that checkpoints' means are normally distributed. The choice depends on the numbers of checkpoints and on
    `level` alone, never on a score. Where no checkpoint differs from another of its arm, t is infinite and means
    nothing: the permutation decides.
    """
    x, y = column_of(a), column_of(b)
    few = assignments(x.size, y.size) <= MOST_ASSIGNMENTS
    if few and permutation_floor(x.size, y.size) <= level:
        return checkpoint_permutation(x, y), "permutation of checkpoints"
    found = welch(x, y)
    if math.isnan(found.p):
        return (checkpoint_permutation(x, y) if few else 1.0), "permutation of checkpoints"
    return found.p, "Welch t"


def hierarchical_interval(a: Sequence[Array], b: Sequence[Array], level: float = LEVEL) -> Interval:
    """Interval of b - a that holds for other checkpoints and for other samples: a hierarchical bootstrap.

    `a`, `b`: per stratum (task) the scores by checkpoint and sample, shapes (K_a, n_h) and (K_b, n_h), samples in the
    same order; strata have equal weight. A resample draws checkpoints within each arm (the same ones in every stratum)
    and samples within each stratum (the same ones for both arms); K - 1 of K and n_h - 1 of n_h are drawn (Rao & Wu
    1988), because with so few checkpoints K draws would understate the variance by 1/K. The variance of infinitely many
    resamples has a closed form (the draws are multinomial), and no resample is drawn:

        s_a^2 / K_a + s_b^2 / K_b                                    checkpoints: Welch's
        + sum_h [s_d^2 / n_h] / H^2                                  samples; d: arm means' differences by sample
        + sum_h [r_a / ((K_a - 1) (n_h - 1)) + r_b / (...)] / H^2    r: mean square of score - row - column + mean

    Resamples of two or three checkpoints have too few values for percentiles, so the interval is the difference +-
    Student's t (degrees of freedom of `welch`) times the root. An arm of one checkpoint makes it NaN.
    """
    name = "hierarchical bootstrap"
    found = welch(*(np.mean([s.mean(axis=1) for s in arm], axis=0) for arm in (a, b)))
    if math.isnan(found.error):
        return Interval(math.nan, math.nan, name)
    samples = both = 0.0
    for left, right in zip(a, b, strict=True):
        n = left.shape[1]
        if n > 1:
            samples += float((right.mean(axis=0) - left.mean(axis=0)).var(ddof=1)) / n
            both += sum(_interaction(arm) / ((arm.shape[0] - 1) * (n - 1)) for arm in (left, right))
    error = math.sqrt(found.error**2 + (samples + both) / len(a) ** 2)
    half = _t(found.df, 0.5 + level / 2) * error
    return Interval(found.difference - half, found.difference + half, name)


def _interaction(scores: Array) -> float:
    """The mean square of what neither a checkpoint's nor a sample's mean explains; scores (K, n)."""
    centred = scores - scores.mean(axis=1, keepdims=True) - scores.mean(axis=0) + scores.mean()
    return float((centred**2).mean())


def recipe_detectable(a: ArrayLike, b: ArrayLike, *, level: float = LEVEL, power: float = 0.8) -> float:
    """The smallest true difference of recipes that so many checkpoints would show, two-sided, by Welch's t.

    (t_{1-alpha/2} + t_{power}) times the standard error, with Welch's degrees of freedom; cut at 1, for scores in 0..1.
    Without any spread among the checkpoints it is not known: NaN.
    """
    found = welch(a, b)
    if not found.error > 0:
        return math.nan
    return min(1.0, (_t(found.df, 0.5 + level / 2) + _t(found.df, power)) * found.error)


def _t(df: float, probability: float) -> float:
    """A quantile of Student's t."""
    return float(special.stdtrit(df, probability))
