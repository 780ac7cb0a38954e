"""Intervals of one score: a proportion, a mean, a mean over tasks, a mean over clusters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]

LEVEL = 0.95
RESAMPLES = 4_000
SEED = 20250510


class Interval(NamedTuple):
    """A confidence interval and the name of its method; both ends are NaN where there are too few scores for one."""

    low: float
    high: float
    method: str


def column_of(values: ArrayLike) -> Array:
    """Scores as float64, shape (n,). Raises ValueError for NaN and infinity."""
    column = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(column).all():
        raise ValueError("scores must be finite: a cell with NaN scores has failed and has no statistics")
    return column


def is_binary(values: ArrayLike) -> bool:
    """Whether every score is exactly 0 or 1, so that it counts as a proportion."""
    column = np.asarray(values, dtype=np.float64)
    return bool(((column == 0) | (column == 1)).all())


def wilson(successes: float, n: float, level: float = LEVEL) -> Interval:
    """Wilson's score interval for a proportion (Wilson 1927; Agresti & Coull 1998).

    centre (p + z^2/2n) / (1 + z^2/n), half-width z sqrt(p(1-p)/n + z^2/4n^2) / (1 + z^2/n). All right and all wrong
    give one-sided intervals that touch 1 or 0 and never have zero width; n = 0 gives NaN. `successes` may be
    fractional.
    """
    if n <= 0:
        return Interval(math.nan, math.nan, "wilson")
    z = float(special.ndtri(0.5 + level / 2))
    p = successes / n
    scale = 1 + z * z / n
    centre = (p + z * z / (2 * n)) / scale
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / scale
    # At p = 0 and p = 1 the touching end is exact in theory; rounding must not leave it at 1e-17.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Interval(max(0.0, low), min(1.0, high), "wilson")


def resampled_means(column: Array, draws: int, resamples: int, rng: np.random.Generator) -> Array:
    """Means of `draws` values drawn with replacement, `resamples` times: shape (resamples,)."""
    values, counts = np.unique(column, return_counts=True)
    return rng.multinomial(draws, counts / counts.sum(), size=resamples) @ values / draws


def bootstrap_mean(
    scores: ArrayLike, level: float = LEVEL, *, method: str = "bca", resamples: int = RESAMPLES, seed: int = SEED
) -> Interval:
    """Bootstrap interval of a mean: "bca" (Efron 1987) or "percentile".

    BCa: with z0 the normal quantile of the share of resampled means below the mean (ties counted half) and a the
    acceleration sum(d^3) / (6 sum(d^2)^1.5), d the jackknife deviations (for a mean: proportional to x_i - mean), the
    ends are the quantiles at Phi(z0 + (z0 + z) / (1 - a (z0 + z))). No samples: NaN. One sample, or all scores equal:
    the bootstrap has no spread, and the result is Wilson's interval for the mean, which is conservative for anything
    in 0..1 (no variable in 0..1 has a larger variance than a 0/1 variable of the same mean); outside 0..1 it is NaN.
    """
    column = column_of(scores)
    if column.size == 0:
        return Interval(math.nan, math.nan, method)
    mean = float(column.mean())
    if np.ptp(column) == 0:
        if not 0 <= mean <= 1:
            return Interval(math.nan, math.nan, method)
        return wilson(mean * column.size, column.size, level)
    means = np.sort(resampled_means(column, column.size, resamples, np.random.default_rng(seed)))
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    if method == "bca":
        slack = 1e-12 * max(1.0, abs(mean))  # a mean summed in another order is the same mean
        below = (np.searchsorted(means, mean - slack) + np.searchsorted(means, mean + slack)) / 2 / resamples
        z0 = special.ndtri(min(max(below, 0.5 / resamples), 1 - 0.5 / resamples))
        deviations = column - mean
        acceleration = (deviations**3).sum() / (6 * (deviations**2).sum() ** 1.5)
        z = z0 + special.ndtri(tails)
        tails = special.ndtr(z0 + z / (1 - acceleration * z))
    elif method != "percentile":
        raise ValueError(f"method must be bca or percentile, not {method}")
    low, high = np.quantile(means, tails)
    return Interval(float(low), float(high), method)


def mean_interval(scores: ArrayLike, level: float = LEVEL, *, seed: int = SEED) -> Interval:
    """The interval of one cell's mean: Wilson where every score is 0 or 1, BCa bootstrap where some are fractional."""
    column = column_of(scores)
    if is_binary(column):
        return wilson(float(column.sum()), column.size, level)
    return bootstrap_mean(column, level, seed=seed)


def stratified_interval(
    strata: Sequence[ArrayLike], level: float = LEVEL, *, resamples: int = RESAMPLES, seed: int = SEED
) -> Interval:
    """Interval of the mean of per-stratum means with equal weight: RULER's 13-task average.

    Percentile bootstrap within strata, drawing n_h - 1 of n_h samples (Rao & Wu 1988), which makes its variance
    unbiased, where n_h draws would understate it by 1/n_h. Strata of one sample have no spread to resample, and
    all-equal strata show none; when no stratum has any, or one has a single sample, the result is Wilson's interval
    with the average as the proportion and the effective number of samples under equal weights, 1 / sum(w_h^2 / n_h):
    conservative. An empty stratum makes it NaN: a missing task blocks the average.
    """
    columns = [column_of(s) for s in strata]
    name = "stratified bootstrap"
    if not columns or any(c.size == 0 for c in columns):
        return Interval(math.nan, math.nan, name)
    weight = 1 / len(columns)
    average = weight * sum(float(c.mean()) for c in columns)
    if any(c.size < 2 for c in columns) or all(np.ptp(c) == 0 for c in columns):
        worth = 1 / sum(weight * weight / c.size for c in columns)
        if not 0 <= average <= 1:
            return Interval(math.nan, math.nan, name)
        return wilson(min(average, 1.0) * worth, worth, level)
    rng = np.random.default_rng(seed)
    total = sum(resampled_means(c, c.size - 1, resamples, rng) for c in columns) * weight
    low, high = np.quantile(total, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), name)


def clustered_interval(
    scores: ArrayLike, clusters: Sequence[object], level: float = LEVEL, *, paired: bool = False
) -> Interval:
    """Interval of a mean over all samples when samples of one cluster (an MMLU subject) vary together.

    It says how far the mean could move with other subjects; an interval by sample says how far it could move with
    other questions on the same subjects. `paired`: the scores are differences, -1..1.

    The cluster-robust sandwich of a regression on a constant, Var = G/(G-1) * sum_g (sum_{i in g} (x_i - mean))^2 /
    n^2 (Liang & Zeger 1986, with the usual small-sample factor, "CR1"), and Student's t with G - 1 degrees of
    freedom. Fewer than two clusters: NaN. Ends are cut to 0..1 for scores in 0..1, to -1..1 for differences of them.
    """
    column = column_of(scores)
    _, index = np.unique(np.asarray([str(c) for c in clusters]), return_inverse=True)
    groups = int(index.max()) + 1 if index.size else 0
    if index.size != column.size:
        raise ValueError(f"{column.size} scores but {index.size} cluster labels")
    if groups < 2:
        return Interval(math.nan, math.nan, "clustered")
    mean = float(column.mean())
    sums = np.bincount(index, weights=column - mean, minlength=groups)
    error = math.sqrt(groups / (groups - 1) * float((sums**2).sum())) / column.size
    half = float(special.stdtrit(groups - 1, 0.5 + level / 2)) * error
    low, high = mean - half, mean + half
    least = -1.0 if paired else 0.0
    if column.min() >= least and column.max() <= 1:
        low, high = max(least, low), min(1.0, high)
    return Interval(low, high, "clustered")
