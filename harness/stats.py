"""Intervals and paired tests, pure numpy/scipy: what a difference between two models is worth.

Scores are per-sample numbers in 0..1; every function works on that scale. Two facts carry the whole module:

* A sample mean resampled with replacement depends only on how often each *distinct* value is drawn. Scores have few
  distinct values (0 and 1; fifths; tenths), so a bootstrap draws multinomial counts over values instead of indices:
  the same distribution exactly, hundreds of times faster. Sign-flip permutations likewise draw binomials per |value|.
* Both models answer the same samples, so differences are taken per sample first.

Everything random takes a seed and is deterministic: the same run gives the same table, byte for byte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]

LEVEL = 0.95
RESAMPLES = 4_000
SEED = 20250510
RULER_THRESHOLD = 85.6  # Llama-2-7B at 4K, the bar of RULER's "effective length" (Hsieh et al. 2024), on 0-100


class Interval(NamedTuple):
    """A confidence interval and the name of its method; both ends NaN where it cannot be told."""

    low: float
    high: float
    method: str


class Discordance(NamedTuple):
    """Paired 0/1 answers on which two models differ: right only in b (`gained`), right only in a (`lost`)."""

    gained: int
    lost: int


def _column(values: ArrayLike) -> Array:
    column = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(column).all():
        raise ValueError("scores must be finite: a cell with NaN scores has failed and has no statistics")
    return column


def is_binary(values: ArrayLike) -> bool:
    """Whether every score is exactly 0 or 1, so that it counts as a proportion."""
    column = np.asarray(values, dtype=np.float64)
    return bool(((column == 0) | (column == 1)).all())


# ---------------------------------------------------------------------------------------------- one score


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


def _resampled_means(column: Array, draws: int, resamples: int, rng: np.random.Generator) -> Array:
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
    the bootstrap has no spread, and the answer is Wilson's interval for the mean, which is conservative for anything
    in 0..1 (no variable in 0..1 varies more than a coin with the same mean); outside 0..1 it is NaN.
    """
    column = _column(scores)
    if column.size == 0:
        return Interval(math.nan, math.nan, method)
    mean = float(column.mean())
    if np.ptp(column) == 0:
        if not 0 <= mean <= 1:
            return Interval(math.nan, math.nan, method)
        return wilson(mean * column.size, column.size, level)
    means = np.sort(_resampled_means(column, column.size, resamples, np.random.default_rng(seed)))
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
    column = _column(scores)
    if is_binary(column):
        return wilson(float(column.sum()), column.size, level)
    return bootstrap_mean(column, level, seed=seed)


def stratified_interval(
    strata: Sequence[ArrayLike], level: float = LEVEL, *, resamples: int = RESAMPLES, seed: int = SEED
) -> Interval:
    """Interval of the mean of per-stratum means with equal weight: RULER's 13-task average.

    Percentile bootstrap within strata, drawing n_h - 1 of n_h samples (Rao & Wu 1988), which makes its variance
    unbiased, where n_h draws would understate it by 1/n_h. Strata of one sample have no spread to resample, and
    all-equal strata show none; when no stratum has any, or all have a single sample, the answer is Wilson's interval
    with the average as the proportion and the number of samples that equal weights are worth, 1 / sum(w_h^2 / n_h):
    conservative. An empty stratum makes it NaN: a missing task blocks the average.
    """
    columns = [_column(s) for s in strata]
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
    total = sum(_resampled_means(c, c.size - 1, resamples, rng) for c in columns) * weight
    low, high = np.quantile(total, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), name)


def clustered_interval(
    scores: ArrayLike, clusters: Sequence[object], level: float = LEVEL, *, paired: bool = False
) -> Interval:
    """Interval of a mean over all samples when samples of one cluster (an MMLU subject) vary together.

    It answers another question than an interval by sample does: how far the mean could move with other subjects, not
    only with other questions on the same ones. `paired`: the scores are differences, -1..1.

    The cluster-robust sandwich of a regression on a constant, Var = G/(G-1) * sum_g (sum_{i in g} (x_i - mean))^2 /
    n^2 (Liang & Zeger 1986, with the usual small-sample factor, "CR1"), and Student's t with G - 1 degrees of
    freedom. Fewer than two clusters: NaN. Ends are cut to 0..1 for scores in 0..1, to -1..1 for differences of them.
    """
    column = _column(scores)
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


# ---------------------------------------------------------------------------------------------- two scores, paired


def paired_differences(a: Sequence[ArrayLike], b: Sequence[ArrayLike]) -> list[Array]:
    """Per-stratum differences b - a. Raises ValueError where two sample sets differ in size or are empty."""
    if len(a) != len(b) or not a:
        raise ValueError(f"{len(a)} strata against {len(b)}: models are compared on the same tasks or not at all")
    differences = []
    for left, right in zip(map(_column, a), map(_column, b), strict=True):
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
    means = sum(_resampled_means(d, d.size - 1, resamples, rng) for d in columns) / len(columns)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), name)


def discordance(differences: ArrayLike) -> Discordance:
    """How many 0/1 answers are right only in b, and only in a, from differences b - a."""
    column = np.asarray(differences, dtype=np.float64)
    return Discordance(int((column > 0).sum()), int((column < 0).sum()))


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided McNemar test (McNemar 1947): is the split of the samples on which two models differ a coin's?

    p = min(1, 2 * P(Binomial(gained + lost, 1/2) <= min(gained, lost))). No disagreement: 1. 12 against 3 gives 0.035.
    """
    n = gained + lost
    return min(1.0, 2 * float(special.bdtr(min(gained, lost), n, 0.5))) if n else 1.0


def permutation_test(differences: Sequence[Array], *, resamples: int = 50_000, seed: int = SEED) -> float:
    """Two-sided sign-flip permutation test of a paired mean difference, stratified with equal weight (Fisher 1935).

    Under the null either model could have given either answer, so every difference's sign is a fair coin. Monte Carlo,
    p = (1 + #{|T*| >= |T|}) / (resamples + 1): never 0, and at least 1 / (resamples + 1). A first tenth of the draws
    settles what is nowhere near significant. No sample differs: 1.
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
    (Miller 2024, "Adding Error Bars to Evals", section 5). Where nobody disagreed, and for strata of one sample,
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


# ---------------------------------------------------------------------------------------------- curves over length


def effective_length(curve: Mapping[int, float], threshold: float = RULER_THRESHOLD) -> int | None:
    """RULER's effective context length: the longest evaluated length whose score exceeds `threshold` (both 0-100).

    None where no length does. Lengths with NaN are as if not evaluated. As in RULER, a dip at a shorter length is not
    held against a longer one; the curve shows it.
    """
    above = [length for length, score in curve.items() if not math.isnan(score) and score > threshold]
    return max(above, default=None)


def area_under_curve(curve: Mapping[int, float]) -> float:
    """Mean height of the score-length curve over log2(length), by trapezoids: same unit as the scores.

    One length: its score. None, or any NaN between: NaN, since curves over different lengths are not comparable.
    """
    points = sorted(curve.items())
    if not points or any(math.isnan(score) for _, score in points):
        return math.nan
    if len(points) == 1:
        return points[0][1]
    x = np.log2([length for length, _ in points])
    return float(np.trapezoid([score for _, score in points], x) / (x[-1] - x[0]))
