"""Two models on the same samples: intervals and tests of their difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from harness.stats.intervals import LEVEL, RESAMPLES, SEED, Array, Interval, column_of, resampled_means


class Discordance(NamedTuple):
    """Paired 0/1 answers on which two models differ: right only in b (`gained`), right only in a (`lost`)."""

    gained: int
    lost: int


def paired_differences(a: Sequence[ArrayLike], b: Sequence[ArrayLike]) -> list[Array]:
    """Per-stratum differences b - a. Raises ValueError where two sample sets differ in size or are empty."""
    if len(a) != len(b) or not a:
        raise ValueError(f"{len(a)} strata against {len(b)}: models are compared on the same tasks or not at all")
    differences = []
    for left, right in zip(map(column_of, a), map(column_of, b), strict=True):
        if left.size != right.size or left.size == 0:
            raise ValueError(f"{left.size} samples against {right.size}: compare on the same samples or not at all")
        differences.append(right - left)
    return differences


def mean_difference(differences: Sequence[Array]) -> float:
    """The mean of per-stratum mean differences, with equal weight."""
    return float(np.mean([d.mean() for d in differences]))


def _weighted(differences: Sequence[Array]) -> Array:
    """All differences as one sample whose plain mean is the equal-weight mean over strata."""
    total = sum(d.size for d in differences)
    return np.concatenate([d * (total / (len(differences) * d.size)) for d in differences])


def paired_interval(
    differences: Sequence[Array], level: float = LEVEL, *, resamples: int = RESAMPLES, seed: int = SEED
) -> Interval:
    """Interval of a paired difference: percentile bootstrap of per-sample differences, stratified by task.

    n_h - 1 draws per stratum, as in `stratified_interval`; strata of one sample are resampled together with all
    others. Where no sample differs from another (two equal models; a single sample) nothing can be resampled, and the
    interval is the difference +- z^2 / (n + z^2), the largest share of samples on which, by Wilson's bound, they may
    yet disagree.
    """
    name = "paired bootstrap"
    centre = mean_difference(differences)
    columns = list(differences)
    if any(d.size < 2 for d in columns):
        columns = [_weighted(columns)]
    if all(np.ptp(d) == 0 for d in columns):
        z2 = float(special.ndtri(0.5 + level / 2)) ** 2
        worth = len(differences) ** 2 / sum(1 / d.size for d in differences)
        reach = z2 / (worth + z2)
        return Interval(max(-1.0, centre - reach), min(1.0, centre + reach), "no disagreement seen")
    rng = np.random.default_rng(seed)
    means = sum(resampled_means(d, d.size - 1, resamples, rng) for d in columns) / len(columns)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), name)


def discordance(differences: ArrayLike) -> Discordance:
    """How many 0/1 answers are right only in b, and only in a, from differences b - a."""
    column = np.asarray(differences, dtype=np.float64)
    return Discordance(int((column > 0).sum()), int((column < 0).sum()))


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided McNemar test (McNemar 1947): do the samples on which two models differ split evenly?

    p = min(1, 2 * P(Binomial(gained + lost, 1/2) <= min(gained, lost))). No disagreement: 1. 12 against 3 gives 0.035.
    """
    n = gained + lost
    return min(1.0, 2 * float(special.bdtr(min(gained, lost), n, 0.5))) if n else 1.0


def binomial_tail(successes: int, n: int, rate: float) -> float:
    """P(X >= successes) for X binomial over n draws of probability `rate`: how likely chance gives as many or more."""
    return 1.0 if successes <= 0 else float(special.bdtrc(successes - 1, n, rate))


def permutation_test(differences: Sequence[Array], *, resamples: int = 50_000, seed: int = SEED) -> float:
    """Two-sided sign-flip permutation test of a paired mean difference, stratified with equal weight (Fisher 1935).

    Under the null hypothesis either model could have given either answer, so every difference has either sign with
    probability 1/2. Monte Carlo,
    p = (1 + #{|T*| >= |T|}) / (resamples + 1): never 0, and at least 1 / (resamples + 1). The first tenth of
    the draws is enough where the difference is far from significant. No sample differs: 1.
    """
    weighted = np.concatenate([d / (len(differences) * d.size) for d in differences])
    sizes, counts = np.unique(np.abs(weighted[weighted != 0]).round(15), return_counts=True)
    if not sizes.size:
        return 1.0
    bar = abs(float(weighted.sum())) - 1e-9 * float(sizes.max())
    rng = np.random.default_rng(seed)
    as_far = drawn = 0
    for draws in (resamples // 10, resamples - resamples // 10):
        heads = rng.binomial(counts, 0.5, size=(draws, sizes.size))
        as_far += int((np.abs((2 * heads - counts) @ sizes) >= bar).sum())
        drawn += draws
        if as_far > 0.1 * drawn:
            break
    return (1 + as_far) / (drawn + 1)


def paired_p(differences: Sequence[Array], *, seed: int = SEED) -> tuple[float, str]:
    """The p-value and the test's name: exact McNemar for one task of 0/1 scores, else the sign-flip permutation."""
    if len(differences) == 1 and bool(np.isin(differences[0], (-1.0, 0.0, 1.0)).all()):
        return mcnemar(*discordance(differences[0])), "McNemar"
    return permutation_test(differences, seed=seed), "permutation"


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (Holm 1979): family-wise error over all cells of a table, under any dependence.

    The i-th smallest of m is multiplied by m - i + 1, made monotone, cut at 1. NaN (not tested) stays NaN and is not
    counted in m.
    """
    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(p.shape, np.nan)
    order = [i for i in np.argsort(p, kind="stable") if not math.isnan(p[i])]
    highest = 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, float(p[i]) * (len(order) - rank)))
        adjusted[i] = highest
    return [float(v) for v in adjusted]


def minimum_detectable_difference(differences: Sequence[Array], *, level: float = LEVEL, power: float = 0.8) -> float:
    """The smallest true difference that this many paired samples would show, two-sided, with the given power.

    (z_{1-alpha/2} + z_power) * sqrt(sum_h w_h^2 s_h^2 / n_h), s_h the standard deviation of the differences seen
    (Miller 2024, "Adding Error Bars to Evals", section 5). Where no sample differs, and for strata of one sample,
    s_h^2 is Wilson's upper bound on the share of disagreement, z^2 / (n + z^2). Cut at 1.
    """
    z = float(special.ndtri(0.5 + level / 2))
    pooled = sum(d.size for d in differences)
    bound = z * z / (pooled + z * z)
    variance = 0.0
    for d in differences:
        spread = float(d.var(ddof=1)) if d.size > 1 else 0.0
        variance += (spread or bound) / d.size / len(differences) ** 2
    return min(1.0, (z + float(special.ndtri(power))) * math.sqrt(variance))
